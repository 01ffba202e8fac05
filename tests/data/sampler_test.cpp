// The order of samples and what a sample holds.
#include "data/sampler.h"

#include <cmath>
#include <map>

#include "data/sample_order.h"
#include "data/synthetic_source.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::TempFolder;

constexpr int32_t kSeparator = 299;

// One sample's four arrays.
struct Sample {
    std::vector<int32_t> ids, targets, positions, documents;
    explicit Sample(int seq_len) : ids(seq_len), targets(seq_len), positions(seq_len), documents(seq_len) {}
    bool operator==(const Sample&) const = default;
};

Sample take(const Source& source, int64_t samples_seen) {
    Sample s(source.seq_len());
    source.sample(samples_seen, s.ids, s.targets, s.positions, s.documents);
    return s;
}

Sample take_in_order(const Dataset& dataset, int64_t index) {
    Sample s(dataset.seq_len());
    dataset.sequential(index, s.ids, s.targets, s.positions, s.documents);
    return s;
}

// Documents 0 1 2 … of the lengths given, the tokens counting on through all of them.
TokenFile file_of(const TempFolder& folder, const std::vector<int>& document_tokens) {
    TokenFileWriter writer(folder / "a.tokens", 300, kSeparator);
    int32_t next = 0;
    for (const int length : document_tokens) {
        for (int i = 0; i < length; ++i) writer.append(std::vector<int32_t>{next++ % kSeparator});
        writer.end_document();
    }
    writer.finish();
    writer.publish();
    return TokenFile::open(folder / "a.tokens");
}

TEST(DataSampleOrder, IsAPermutationOfAnySize) {
    for (int64_t count = 1; count < 700; ++count) {
        const Permutation permutation(count, 17 * count);
        std::vector<bool> seen(count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t value = permutation(i);
            ASSERT_TRUE(value >= 0 && value < count);
            ASSERT_FALSE(seen[value]) << count;
            seen[value] = true;
        }
    }
    for (const int64_t count : {4095, 4096, 4097, 65537, 1000003}) {
        const Permutation permutation(count, 5);
        std::vector<bool> seen(count);
        for (int64_t i = 0; i < count; ++i) seen[permutation(i)] = true;
        EXPECT_EQ(std::count(seen.begin(), seen.end(), true), count);
    }
    const Permutation huge(int64_t{1} << 50, 3);
    for (int64_t i = 0; i < 1000; ++i) ASSERT_LT(huge(i), int64_t{1} << 50);
}

TEST(DataSampleOrder, MixesWell) {
    // Of a random order the correlation with the plain one is about 1 / sqrt(count).
    constexpr int64_t kCount = 10000;
    const Permutation permutation(kCount, 99);
    double sum = 0, steps = 0;
    for (int64_t i = 0; i < kCount; ++i) {
        sum += (static_cast<double>(i) - kCount / 2.0) * (static_cast<double>(permutation(i)) - kCount / 2.0);
        if (i > 0) steps += permutation(i) > permutation(i - 1);
    }
    EXPECT_LT(std::abs(sum / (static_cast<double>(kCount) * kCount * kCount / 12)), 0.05);
    EXPECT_NEAR(steps / kCount, 0.5, 0.02);
    // All orders of three occur, about equally often.
    std::map<std::vector<int64_t>, int> orders;
    for (uint64_t key = 0; key < 6000; ++key) {
        const Permutation three(3, mix64(key));
        ++orders[{three(0), three(1), three(2)}];
    }
    EXPECT_EQ(orders.size(), 6u);
    for (const auto& [order, count] : orders) EXPECT_NEAR(count, 1000, 200);
}

TEST(DataSampleOrder, IsFixedForever) {  // a changed value would silently change what resumed runs see
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 12; ++i) order.push_back(window_of_sample(i, 6, 42));
    EXPECT_EQ(order, (std::vector<int64_t>{5, 2, 3, 1, 0, 4, 0, 3, 1, 5, 4, 2}));
}

TEST(DataDataset, WindowsCoverTheStream) {
    const TempFolder folder;
    const Dataset dataset(file_of(folder, {10, 10, 10}), {.seq_len = 4});  // 33 tokens: 8 windows of 4 + 1
    ASSERT_EQ(dataset.windows(), 8);
    EXPECT_EQ(dataset.vocab_size(), 300);
    const Sample first = take_in_order(dataset, 0), third = take_in_order(dataset, 2);
    EXPECT_EQ(first.ids, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(first.targets, (std::vector<int32_t>{1, 2, 3, 4}));
    EXPECT_EQ(first.positions, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(first.documents, (std::vector<int32_t>{0, 0, 0, 0}));
    EXPECT_EQ(third.ids, (std::vector<int32_t>{8, 9, kSeparator, 10}));
    EXPECT_EQ(third.targets, (std::vector<int32_t>{9, kSeparator, 10, 11}));
    EXPECT_EQ(third.positions, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(take_in_order(dataset, 10), third);
}

TEST(DataDataset, WindowsOverlapOrDoNot) {
    const TempFolder folder;
    const auto starts = [&](int64_t stride) {
        const Dataset dataset(file_of(folder, {29}), {.seq_len = 4, .window_stride = stride});  // 30 tokens: 0 to 28, separator
        std::vector<int32_t> first;
        for (int64_t w = 0; w < dataset.windows(); ++w) first.push_back(take_in_order(dataset, w).ids[0]);
        return first;
    };
    EXPECT_EQ(starts(0), starts(4));
    EXPECT_EQ(starts(4), (std::vector<int32_t>{0, 4, 8, 12, 16, 20, 24}));
    EXPECT_EQ(starts(5), (std::vector<int32_t>{0, 5, 10, 15, 20, 25}));  // no token in two windows
    EXPECT_EQ(starts(2).size(), 13u);                                    // every token is a target twice
    EXPECT_EQ(starts(100), std::vector<int32_t>{0});
    expect_user_error([&] { starts(-1); }, "data.window_stride", "a window stride of -1 is asked for");
}

TEST(DataDataset, PackedRestartsAtBorders) {
    const TempFolder folder;
    const Dataset dataset(file_of(folder, {3, 0, 2, 9}), {.seq_len = 8, .mode = SampleMode::packed});
    const Sample s = take_in_order(dataset, 0);
    EXPECT_EQ(s.ids, (std::vector<int32_t>{0, 1, 2, kSeparator, kSeparator, 3, 4, kSeparator}));
    EXPECT_EQ(s.targets, (std::vector<int32_t>{1, 2, kSeparator, kSeparator, 3, 4, kSeparator, 5}));
    EXPECT_EQ(s.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 0, 1, 2}));
    EXPECT_EQ(s.documents, (std::vector<int32_t>{0, 0, 0, 0, 1, 2, 2, 2}));
    const Sample next = take_in_order(dataset, 1);
    EXPECT_EQ(next.ids.front(), 5);
    EXPECT_EQ(next.documents.front(), 0);
}

TEST(DataDataset, EpochsShowEveryWindowInANewOrder) {
    const TempFolder folder;
    const Dataset dataset(file_of(folder, {1000}), {.seq_len = 10, .seed = 7});
    std::vector<std::vector<int32_t>> starts(3);
    for (int64_t i = 0; i < 3 * dataset.windows(); ++i) starts[i / dataset.windows()].push_back(take(dataset, i).ids[0]);
    EXPECT_NE(starts[0], starts[1]);
    EXPECT_NE(starts[1], starts[2]);
    for (auto& epoch : starts) std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(starts[0], starts[1]);
    EXPECT_EQ(starts[1], starts[2]);
    const Dataset other_seed(file_of(folder, {1000}), {.seq_len = 10, .seed = 8});
    int same = 0;
    for (int64_t i = 0; i < 100; ++i) same += take(dataset, i) == take(other_seed, i);
    EXPECT_LT(same, 15);
}

TEST(DataDataset, Errors) {
    const TempFolder folder;
    expect_user_error([&] { Dataset(file_of(folder, {7}), {.seq_len = 8}); }, "data.too_few_tokens",
                      "a.tokens holds 8 tokens, a sequence length of 8 needs 9. Shorten the sequence length to 7 or less");
    EXPECT_EQ(Dataset(file_of(folder, {7}), {.seq_len = 7}).windows(), 1);
    expect_user_error([&] { Dataset(file_of(folder, {7}), {.seq_len = 0}); }, "data.seq_len",
                      "a sequence length of 0 is asked for; it must be at least 1");
}

TEST(DataSyntheticSource, IsAFunctionOfSeedAndIndex) {
    const SyntheticOptions options{.seed = 3, .vocab_size = 50, .seq_len = 64};
    const SyntheticSource source(options);
    EXPECT_EQ(take(source, 5), take(SyntheticSource(options), 5));
    EXPECT_NE(take(source, 5), take(source, 6));
    EXPECT_NE(take(source, 5), take(SyntheticSource({.seed = 4, .vocab_size = 50, .seq_len = 64}), 5));
    const Sample s = take(source, 0);
    int follows = 0;
    for (int t = 0; t < 64; ++t) {
        ASSERT_TRUE(s.ids[t] >= 0 && s.ids[t] < 50);
        if (t > 0) {
            EXPECT_EQ(s.ids[t], s.targets[t - 1]);
        }
        follows += s.targets[t] == (5 * s.ids[t] + 1) % 50;
        EXPECT_EQ(s.positions[t], t);
        EXPECT_EQ(s.documents[t], 0);
    }
    EXPECT_GT(follows, 30);
}

TEST(DataSyntheticSource, MasksTargetsAndEndsDocuments) {
    const SyntheticSource source({.vocab_size = 50, .seq_len = 1000, .masked_target_fraction = 0.25, .mean_document_tokens = 20});
    const Sample s = take(source, 1);
    EXPECT_NEAR(static_cast<double>(std::count(s.targets.begin(), s.targets.end(), kNoTarget)), 250, 60);
    EXPECT_NEAR(s.documents.back(), 50, 25);
    for (int t = 1; t < 1000; ++t) {
        const bool is_same = s.documents[t] == s.documents[t - 1];
        EXPECT_EQ(s.positions[t], is_same ? s.positions[t - 1] + 1 : 0);
        EXPECT_LE(s.documents[t] - s.documents[t - 1], 1);
    }
    const Sample all = take(SyntheticSource({.vocab_size = 9, .seq_len = 20, .masked_target_fraction = 1}), 0);
    EXPECT_EQ(std::count(all.targets.begin(), all.targets.end(), kNoTarget), 20);
}

}  // namespace
}  // namespace lockstep::data
