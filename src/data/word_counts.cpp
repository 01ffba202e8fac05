#include "data/word_counts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <unordered_map>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kBlockBytes = 16 << 10;
constexpr size_t kTurnSearchBytes = 1 << 10;
constexpr size_t kLongestWordBytes = 256;  // keeps the cost of a merge bounded on text without spaces

struct StringHash : std::hash<std::string_view> {
    using is_transparent = void;
};
using WordMap = std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;

int64_t block_count(int64_t document_bytes) {
    return (document_bytes + static_cast<int64_t>(kBlockBytes) - 1) / static_cast<int64_t>(kBlockBytes);
}

struct Sample {
    double fraction = 1;  // of the blocks
    // Multiples of the golden ratio modulo 1 fill the unit interval evenly, so any stretch of blocks gives its share.
    bool takes(int64_t block) const {
        if (fraction >= 1) return true;
        const uint64_t point = static_cast<uint64_t>(block) * 0x9E3779B97F4A7C15u;
        return static_cast<double>(point >> 11) * 0x1p-53 < fraction;
    }
};

// The border near `offset`: after the next line end close by, else there exactly. The same for the blocks on both sides.
size_t block_border(std::string_view text, size_t offset) {
    if (offset >= text.size()) return text.size();
    const size_t line_end = text.substr(offset, kTurnSearchBytes).find('\n');
    return line_end == std::string_view::npos ? offset : offset + line_end + 1;
}

void add_word(WordMap& words, std::string_view word) {
    if (word.size() < 2) return;
    const auto found = words.find(word);
    if (found != words.end()) {
        ++found->second;
    } else {
        words.emplace(word, 1);
    }
}

void count_text(std::string_view text, PreSplitter& splitter, WordMap& words) {
    splitter.start(text);
    for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next())
        for (size_t at = 0; at < piece.size(); at += kLongestWordBytes) add_word(words, piece.substr(at, kLongestWordBytes));
}

void count_document(std::string_view text, int64_t first_block, const Sample& sample, PreSplitter& splitter, WordMap& words) {
    if (sample.fraction >= 1) return count_text(text, splitter, words);
    for (int64_t block = 0; block < block_count(static_cast<int64_t>(text.size())); ++block) {
        if (!sample.takes(first_block + block)) continue;
        const size_t begin = block == 0 ? 0 : block_border(text, block * kBlockBytes);
        const size_t end = block_border(text, (block + 1) * kBlockBytes);
        if (begin < end) count_text(text.substr(begin, end - begin), splitter, words);
    }
}

bool takes_any(const Sample& sample, int64_t first_block, int64_t blocks) {
    for (int64_t block = 0; block < blocks; ++block)
        if (sample.takes(first_block + block)) return true;
    return false;
}

// The documents of a file, whose blocks count on from `first_block`.
void count_file(const Corpus& corpus, int64_t file, int64_t first_block, const Sample& sample, PreSplitter& splitter,
                WordMap& words) {
    corpus.visit(file, [&](const Document& document) {
        if (!document.is_text()) return true;
        count_document(document.text, first_block, sample, splitter, words);
        first_block += block_count(static_cast<int64_t>(document.text.size()));
        return true;
    });
}

}  // namespace

std::vector<WordCount> count_words(const Corpus& corpus, const PreSplitPattern& pattern, const WordCountOptions& options,
                                   const Progress& progress) {
    const int64_t files = corpus.files();
    std::vector<int64_t> first_block(files + 1, 0), bytes_before(files + 1, 0);
    for (int64_t f = 0; f < files; ++f) {
        bytes_before[f + 1] = bytes_before[f] + corpus.file_bytes(f);
        first_block[f + 1] = first_block[f] + block_count(corpus.file_bytes(f));
    }
    const int64_t corpus_bytes = bytes_before[files];
    Sample sample;
    if (corpus_bytes > options.max_text_bytes)
        sample.fraction = static_cast<double>(options.max_text_bytes) / static_cast<double>(corpus_bytes);

    std::atomic<int64_t> next_file{0};
    std::atomic<bool> failed{false};
    std::vector<WordMap> words(std::max(1, options.threads));
    std::vector<std::exception_ptr> errors(words.size());
    const auto work = [&](size_t thread) {
        try {
            PreSplitter splitter(pattern);
            for (int64_t f = next_file++; f < files && !failed; f = next_file++) {
                if (thread == 0) report(progress, "counting words", bytes_before[f], corpus_bytes);
                // The blocks of a file of text are known before it is read.
                if (!takes_any(sample, first_block[f], first_block[f + 1] - first_block[f])) continue;
                count_file(corpus, f, first_block[f], sample, splitter, words[thread]);
            }
        } catch (...) {
            errors[thread] = std::current_exception();
            failed = true;
        }
    };
    {
        std::vector<std::jthread> others;
        for (size_t thread = 1; thread < words.size(); ++thread) others.emplace_back(work, thread);
        work(0);
    }
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);

    for (size_t thread = 1; thread < words.size(); ++thread)
        for (const auto& [word, count] : words[thread]) words[0][word] += count;
    std::vector<WordCount> sorted;
    sorted.reserve(words[0].size());
    for (const auto& [word, count] : words[0]) sorted.push_back({word, count});
    std::sort(sorted.begin(), sorted.end(), [](const WordCount& a, const WordCount& b) { return a.word < b.word; });
    report(progress, "counting words", corpus_bytes, corpus_bytes);
    return sorted;
}

}  // namespace lockstep::data
