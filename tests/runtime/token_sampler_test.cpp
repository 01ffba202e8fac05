// What is drawn follows the distribution that temperature, top-k and top-p leave, and is the same every time.
#include "runtime/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace lockstep::runtime {
namespace {

const std::vector<double> kLogits = {1.0, 3.0, -INFINITY, 2.0, 3.0, 0.0};

std::map<int32_t, double> shares(const SamplingOptions& options, int draws = 20000) {
    TokenSampler sampler(6, options);
    std::map<int32_t, double> out;
    for (int i = 0; i < draws; ++i) out[sampler.pick(kLogits, i % 3, i / 3)] += 1.0 / draws;
    return out;
}

TEST(TokenSampler, WithoutTemperatureTheLargestAndAmongEqualsTheFirst) {
    EXPECT_EQ(shares({0, 0, 1, 1}, 64), (std::map<int32_t, double>{{1, 1.0}}));
}

TEST(TokenSampler, DrawsBySoftmax) {
    for (double temperature : {0.7, 1.0, 2.0}) {
        double total = 0;
        for (double x : kLogits) total += std::exp(x / temperature);
        std::map<int32_t, double> got = shares({temperature, 0, 1, 7});
        for (int32_t i = 0; i < 6; ++i)
            EXPECT_NEAR(got[i], std::exp(kLogits[static_cast<size_t>(i)] / temperature) / total, 0.012)
                << i << " at " << temperature;
    }
}

// A row that no token has is not drawn, be its logit the largest of all.
TEST(TokenSampler, ChoosesAmongTheTokensThatThereAre) {
    const std::vector<double> logits = {1, 2, 700, 2.5, 900};
    for (const SamplingOptions& options : {SamplingOptions{0, 0, 1, 1}, SamplingOptions{1, 0, 1, 1}, SamplingOptions{1, 1, 1, 1},
                                           SamplingOptions{5, 0, 0.5, 1}, SamplingOptions{0.001, 4, 1, 1}}) {
        TokenSampler sampler(std::vector<int32_t>{0, 1, 3}, options);
        int64_t largest = 0;
        for (int i = 0; i < 300; ++i) {
            const int32_t token = sampler.pick(logits, 0, i);
            EXPECT_TRUE(token == 0 || token == 1 || token == 3) << token;
            largest += token == 3;
        }
        EXPECT_GT(largest, 80);
    }
}

TEST(TokenSampler, TopKAndTopPKeepTheLikeliest) {
    const auto ids = [](const std::map<int32_t, double>& m) {
        std::vector<int32_t> out;
        for (const auto& [id, share] : m) out.push_back(id);
        return out;
    };
    EXPECT_EQ(ids(shares({1, 1, 1, 0})), (std::vector<int32_t>{1}));
    EXPECT_EQ(ids(shares({1, 3, 1, 0})), (std::vector<int32_t>{1, 3, 4}));
    // Probabilities: 0.39, 0.39, 0.14, 0.05, 0.02.
    EXPECT_EQ(ids(shares({1, 0, 0.3, 0})), (std::vector<int32_t>{1}));
    EXPECT_EQ(ids(shares({1, 0, 0.7, 0})), (std::vector<int32_t>{1, 4}));
    EXPECT_EQ(ids(shares({1, 0, 0.9, 0})), (std::vector<int32_t>{1, 3, 4}));
    EXPECT_NEAR(shares({1, 2, 1, 3}).at(1), 0.5, 0.015);
}

TEST(TokenSampler, IsAFunctionOfSeedSequenceAndPlace) {
    TokenSampler a(6, {1, 0, 1, 5}), b(6, {1, 0, 1, 5}), other(6, {1, 0, 1, 6});
    int differs = 0;
    for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(a.pick(kLogits, 2, i), b.pick(kLogits, 2, i));
        b.pick(kLogits, 0, 3);  // what was drawn before does not matter
        differs += a.pick(kLogits, 2, i) != other.pick(kLogits, 2, i);
        differs += a.pick(kLogits, 1, i) != a.pick(kLogits, 2, i);
    }
    EXPECT_GT(differs, 100);
}

}  // namespace
}  // namespace lockstep::runtime
