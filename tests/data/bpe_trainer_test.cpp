// Learning a vocabulary: against a plain reference that counts everything anew, deterministic, with its limits reported.
#include "data/bpe_trainer.h"

#include <map>

#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::random_text;
using testing::sample_prose;
using testing::TextCorpus;

// Counts all pairs from scratch before every merge.
std::vector<Merge> merges_by_definition(const Corpus& corpus, int count) {
    struct Word {
        std::vector<int32_t> symbols;
        int64_t count;
    };
    std::vector<Word> words;
    for (const WordCount& word : count_words(corpus, PreSplitPattern{std::string(kLlama3SplitPattern)}, {})) {
        words.push_back({{}, word.count});
        for (const char c : word.word) words.back().symbols.push_back(static_cast<uint8_t>(c));
    }
    std::vector<std::string> tokens;
    std::map<std::string, int32_t> ids;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (int32_t id = 0; id < 256; ++id) ids[tokens[id]] = id;
    std::vector<Merge> merges;
    while (static_cast<int>(merges.size()) < count) {
        std::map<std::pair<int32_t, int32_t>, int64_t> pairs;  // ascending: the first of the largest count wins
        for (const Word& word : words)
            for (size_t i = 0; i + 1 < word.symbols.size(); ++i) pairs[{word.symbols[i], word.symbols[i + 1]}] += word.count;
        const auto best = std::max_element(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.second < b.second; });
        const auto [left, right] = best->first;
        const auto [id, is_new] = ids.emplace(tokens[left] + tokens[right], static_cast<int32_t>(tokens.size()));
        if (is_new) tokens.push_back(id->first);
        merges.push_back({left, right, id->second});
        for (Word& word : words) {
            std::vector<int32_t> merged;
            for (size_t i = 0; i < word.symbols.size(); ++i) {
                const bool applies = i + 1 < word.symbols.size() && word.symbols[i] == left && word.symbols[i + 1] == right;
                merged.push_back(applies ? id->second : word.symbols[i]);
                i += applies;
            }
            word.symbols = merged;
        }
    }
    return merges;
}

TEST(DataBpeTrainer, LearnsByDefinition) {
    std::mt19937_64 random(21);
    const TextCorpus corpora[] = {TextCorpus({sample_prose(4, 1500)}),
                                  TextCorpus({random_text(random, 6000), "aaaaaaa aaaa aaaaaaaaaa"})};
    for (const TextCorpus& corpus : corpora) {
        const Tokenizer tokenizer = train_bpe(corpus, 310);
        const std::vector<Merge> expected = merges_by_definition(corpus, static_cast<int>(tokenizer.parts().merges.size()));
        EXPECT_EQ(tokenizer.parts().merges, expected);
        EXPECT_EQ(tokenizer.vocab_size(), 310);
        EXPECT_EQ(tokenizer.separator(), 309);
    }
}

TEST(DataBpeTrainer, TiesTakeTheSmallerPair) {
    const Tokenizer tokenizer = train_bpe(TextCorpus({"zy zy ba ba"}), 258);  // "zy", " b" and "ba" occur twice
    EXPECT_EQ(tokenizer.parts().merges[0], (Merge{' ', 'b', 256}));
}

TEST(DataBpeTrainer, ThreadsAndOrderChangeNothing) {
    std::vector<std::string> texts;
    for (int i = 0; i < 40; ++i) texts.push_back(sample_prose(i, 300));
    const std::string one = train_bpe(TextCorpus(texts), 305, {.threads = 1}).to_json();
    EXPECT_EQ(train_bpe(TextCorpus(texts), 305, {.threads = 2}).to_json(), one);
    std::reverse(texts.begin(), texts.end());
    EXPECT_EQ(train_bpe(TextCorpus(texts), 305, {.threads = 2}).to_json(), one);
}

TEST(DataBpeTrainer, ReportsProgress) {
    std::vector<std::string> stages;
    train_bpe(TextCorpus({sample_prose(1, 500)}), 280, {}, [&](std::string_view stage, int64_t done, int64_t total) {
        EXPECT_LE(done, total);
        if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
    });
    EXPECT_EQ(stages, (std::vector<std::string>{"counting words", "merging pairs"}));
}

TEST(DataBpeTrainer, RefusesSizesThatCannotBe) {
    const TextCorpus corpus({"ab ab ab"});
    expect_user_error(
        [&] { train_bpe(corpus, 257); }, "data.vocab_too_small",
        "a vocabulary of 257 is too small for byte-pair encoding: 256 bytes and the separator make 257. Ask for 258");
    expect_user_error(
        [&] { train_bpe(corpus, 5000); }, "data.vocab_too_large",
        "a vocabulary of 5000 is more than this text supports: after 259 no pair of tokens occurs twice. Ask for at most 259");
    EXPECT_EQ(train_bpe(corpus, 259).vocab_size(), 259);
}

TEST(DataWordCounts, SamplesEvenlyUpToTheLimit) {
    // 60 documents of about 100 KiB, each with a word of its own.
    std::vector<std::string> texts;
    int64_t total = 0;
    for (int d = 0; d < 60; ++d) {
        std::string line =
            "word" + std::string(1, static_cast<char>('a' + d / 26)) + std::string(1, static_cast<char>('a' + d % 26)) + "\n";
        texts.emplace_back();
        while (texts.back().size() < 100 << 10) texts.back() += line;
        total += static_cast<int64_t>(texts.back().size());
    }
    const TextCorpus corpus(texts);
    const PreSplitPattern pattern{std::string(kLlama3SplitPattern)};
    const auto bytes_of = [](const std::vector<WordCount>& words) {
        int64_t bytes = 0;
        for (const WordCount& word : words) bytes += word.count * static_cast<int64_t>(word.word.size() + 1);
        return bytes;
    };
    const std::vector<WordCount> whole = count_words(corpus, pattern, {});
    EXPECT_EQ(whole.size(), 60u);
    EXPECT_EQ(bytes_of(whole), total);
    const std::vector<WordCount> half = count_words(corpus, pattern, {.max_text_bytes = total / 2, .threads = 1});
    EXPECT_EQ(half.size(), 60u) << "every document gives its share";
    EXPECT_NEAR(static_cast<double>(bytes_of(half)), static_cast<double>(total) / 2, static_cast<double>(total) / 20);
    for (size_t i = 0; i < half.size(); ++i) EXPECT_EQ(half[i].word.size(), 6u) << "no word is cut: " << half[i].word;
}

TEST(DataWordCounts, ErrorsInAThreadArrive) {
    class BrokenCorpus : public TextCorpus {
        using TextCorpus::TextCorpus;
        void visit(int64_t, const Use&) const override { throw UserError("data.file_unreadable", "x", "cannot read x"); }
    };
    expect_user_error(
        [] {
            count_words(BrokenCorpus({"a", "b", "c"}), PreSplitPattern("."), {});
        },
        "data.file_unreadable", "cannot read x");
}

}  // namespace
}  // namespace lockstep::data
