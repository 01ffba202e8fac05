// Cuts text into the pieces that byte-pair merges never cross, by a regular expression (PCRE2, Unicode properties, JIT).
// Guarantees: the pieces tile the text exactly; text between two matches is a piece of its own (Hugging Face's "Isolated").
// Any bytes are accepted: a byte that is not part of valid UTF-8 is a piece of one byte, the text around it is split apart.
// A PreSplitPattern is immutable and may be shared between threads; a PreSplitter belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace lockstep::data {

// The split of Llama 3 (and, but for digits, GPT-4): contractions, words with one leading mark, up to three digits,
// punctuation with trailing newlines, white space.
inline constexpr std::string_view kLlama3SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What Hugging Face's ByteLevel splits by when use_regex is set (GPT-2).
inline constexpr std::string_view kGpt2SplitPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Bytes at the start of `text` that are valid UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
size_t valid_utf8_prefix_bytes(std::string_view text);

class PreSplitPattern {
public:
    // UserError data.split_pattern where PCRE2 does not compile the expression.
    explicit PreSplitPattern(std::string expression);
    const std::string& expression() const { return expression_; }

private:
    friend class PreSplitter;
    std::string expression_;
    std::shared_ptr<const pcre2_real_code_8> code_;
};

class PreSplitter {
public:
    explicit PreSplitter(const PreSplitPattern& pattern);

    // Begins a new text, which must stay alive while pieces are taken from it.
    void start(std::string_view text);
    // The next piece, empty at the end of the text. UserError data.split_limit where the expression backtracks without end.
    std::string_view next();

private:
    void find_match();

    PreSplitPattern pattern_;  // shares the compiled code
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> match_data_;
    std::string_view text_;
    size_t position_ = 0;
    size_t valid_begin_ = 0;  // text_[valid_begin_, valid_end_) is the run of valid UTF-8 at or after position_
    size_t valid_end_ = 0;
    size_t match_begin_ = 0;  // the next match; equal to position_ or later
    size_t match_end_ = 0;
};

}  // namespace lockstep::data
