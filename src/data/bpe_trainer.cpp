#include "data/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kSmallestPairCount = 2;  // a pair seen once teaches nothing about other text

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
    size_t operator()(const Pair& pair) const {
        const uint64_t key = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
        const uint64_t hash = key * 0x9E3779B97F4A7C15u;
        return hash ^ hash >> 32;
    }
};

struct PairUse {
    int64_t count = 0;
    std::vector<uint32_t> words;  // may name words that no longer hold the pair
};

struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // the largest is merged first
        return count != other.count ? count < other.count : pair > other.pair;
    }
};

// Word counts turned into tokens, with the count of every pair kept up to date. A candidate in the heap may be out of date:
// its pair's count has fallen since (it is pushed again when it comes up) or risen (a newer candidate exists already).
class Merger {
public:
    explicit Merger(const std::vector<WordCount>& words) {
        for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
        for (int32_t id = 0; id < 256; ++id) ids_.emplace(tokens_[id], id);
        for (const WordCount& word : words) {
            words_.push_back({static_cast<uint32_t>(symbols_.size()), static_cast<uint32_t>(word.word.size()), word.count});
            for (const char c : word.word) symbols_.push_back(static_cast<uint8_t>(c));
        }
        for (uint32_t w = 0; w < words_.size(); ++w) {
            const int32_t* symbols = symbols_.data() + words_[w].begin;
            for (uint32_t i = 0; i + 1 < words_[w].length; ++i) add(symbols[i], symbols[i + 1], w);
        }
        push_grown();
    }

    // Merges the most frequent pair everywhere; false when no pair is frequent enough.
    bool merge_next() {
        while (!heap_.empty()) {
            const Candidate best = heap_.top();
            heap_.pop();
            const auto use = uses_.find(best.pair);
            const int64_t count = use == uses_.end() ? 0 : use->second.count;
            if (count < kSmallestPairCount) continue;
            if (count != best.count) {
                if (count < best.count) heap_.push({count, best.pair});
                continue;
            }
            merge(best.pair, std::move(use->second.words));
            return true;
        }
        return false;
    }

    int vocab_size() const { return static_cast<int>(tokens_.size()) + 1; }  // with the separator

    TokenizerParts parts() && {
        TokenizerParts parts;
        parts.tokens = std::move(tokens_);
        parts.merges = std::move(merges_);
        parts.separator = static_cast<int32_t>(parts.tokens.size());
        parts.tokens.emplace_back(kSeparatorText);
        parts.special = {parts.separator};
        return parts;
    }

private:
    struct Word {
        uint32_t begin;   // in symbols_
        uint32_t length;  // in tokens
        int64_t count;
    };

    void add(int32_t left, int32_t right, uint32_t word) {
        PairUse& use = uses_[{left, right}];
        use.count += words_[word].count;
        if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
        grown_.push_back({left, right});
    }

    void remove(int32_t left, int32_t right, uint32_t word) { uses_[{left, right}].count -= words_[word].count; }

    void push_grown() {
        std::sort(grown_.begin(), grown_.end());
        grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
        for (const Pair& pair : grown_) {
            const int64_t count = uses_[pair].count;
            if (count >= kSmallestPairCount) heap_.push({count, pair});
        }
        grown_.clear();
    }

    void merge(Pair pair, std::vector<uint32_t> words) {
        // Two ways to merge to the same bytes share one token, as in Hugging Face's vocabulary.
        const std::string text = tokens_[pair.first] + tokens_[pair.second];
        const auto [found, is_new] = ids_.emplace(text, static_cast<int32_t>(tokens_.size()));
        if (is_new) tokens_.push_back(text);
        merges_.push_back({pair.first, pair.second, found->second});
        for (const uint32_t word : words) merge_in_word(merges_.back(), word);
        uses_.erase(pair);
        push_grown();
    }

    // Rewrites the word's tokens in place, left to right, and moves the counts of the neighbouring pairs.
    void merge_in_word(const Merge& merge, uint32_t word) {
        int32_t* symbols = symbols_.data() + words_[word].begin;
        const uint32_t length = words_[word].length;
        uint32_t out = 0;
        for (uint32_t in = 0; in < length; ++in, ++out) {
            const bool applies = in + 1 < length && symbols[in] == merge.left && symbols[in + 1] == merge.right;
            if (!applies) {
                symbols[out] = symbols[in];
                continue;
            }
            if (out > 0) {
                remove(symbols[out - 1], merge.left, word);
                add(symbols[out - 1], merge.result, word);
            }
            if (in + 2 < length) {
                remove(merge.right, symbols[in + 2], word);
                add(merge.result, symbols[in + 2], word);
            }
            symbols[out] = merge.result;
            ++in;
        }
        words_[word].length = out;
    }

    std::vector<std::string> tokens_;
    std::unordered_map<std::string, int32_t> ids_;
    std::vector<Merge> merges_;
    std::vector<int32_t> symbols_;
    std::vector<Word> words_;
    std::unordered_map<Pair, PairUse, PairHash> uses_;
    std::vector<Pair> grown_;  // pairs whose count rose since the last push_grown()
    std::priority_queue<Candidate> heap_;
};

}  // namespace

Tokenizer train_bpe(const Corpus& corpus, int vocab_size, const WordCountOptions& options, const Progress& progress) {
    if (vocab_size <= kBytesVocab) {
        throw UserError(
            "data.vocab_too_small", "vocab",
            fmt::format("a vocabulary of {} is too small for byte-pair encoding: 256 bytes and the separator make {}. "
                        "Ask for {} or more, or for the tokenizer 'bytes'.",
                        vocab_size, kBytesVocab, kBytesVocab + 1));
    }
    const PreSplitPattern pattern{std::string(kLlama3SplitPattern)};
    Merger merger(count_words(corpus, pattern, options, progress));
    while (merger.vocab_size() < vocab_size) {
        if (!merger.merge_next()) {
            throw UserError("data.vocab_too_large", "vocab",
                            fmt::format("a vocabulary of {} is more than this text supports: after {} no pair of tokens occurs "
                                        "twice. Ask for at most {}, or give more text.",
                                        vocab_size, merger.vocab_size(), merger.vocab_size()));
        }
        if (merger.vocab_size() % 64 == 0) report(progress, "merging pairs", merger.vocab_size(), vocab_size);
    }
    report(progress, "merging pairs", vocab_size, vocab_size);
    return Tokenizer(std::move(merger).parts());
}

}  // namespace lockstep::data
