// Mixtures: proportions, every sample of a part in order, and the same whatever came before.
#include "data/mixture.h"

#include <cmath>

#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::TempFolder;

TEST(DataProportions, HoldAfterAnyNumberOfSamples) {
    const std::vector<std::vector<double>> cases = {{1},       {0.7, 0.3},         {1, 1, 1},      {5, 0.01},
                                                    {0.01, 5}, {3, 1, 4, 1, 5, 9}, {1e-9, 1, 1e9}, std::vector<double>(1000, 1)};
    for (const std::vector<double>& weights : cases) {
        double sum = 0;
        for (const double weight : weights) sum += weight;
        const Proportions proportions(weights);
        std::vector<int64_t> counts(weights.size());
        for (int64_t n = 0; n < 20000; ++n) {
            const Proportions::Pick place = proportions(n);
            ASSERT_LT(place.part, weights.size());
            ASSERT_EQ(place.index, counts[place.part]++) << "the samples of a part come in order, none is left out";
            if (n % 97 != 0) continue;
            for (size_t part = 0; part < weights.size(); ++part) {
                const double due = static_cast<double>(n + 1) * weights[part] / sum;
                ASSERT_LT(std::abs(static_cast<double>(counts[part]) - due), 3 + std::log(static_cast<double>(weights.size())))
                    << "part " << part << " after " << n + 1;
            }
        }
    }
}

TEST(DataProportions, AreFixedForever) {  // a changed value would silently change what resumed runs see
    std::string order;
    const Proportions proportions({0.5, 0.3, 0.2});
    for (int64_t n = 0; n < 20; ++n) order += static_cast<char>('a' + proportions(n).part);
    EXPECT_EQ(order, "abacabacababacabacab");
    EXPECT_EQ(proportions((int64_t{1} << 50) + 1).part, 1u);
}

}  // namespace
}  // namespace lockstep::data
