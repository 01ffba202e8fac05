#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pre_split.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace lockstep::data {
namespace {

std::string pcre2_message(int code) {
    PCRE2_UCHAR text[256];
    if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return fmt::format("PCRE2 error {}", code);
    return reinterpret_cast<const char*>(text);
}

// Length of the character at the start of `text`, 0 where it is not valid UTF-8. Table 3-7 of the Unicode standard.
size_t character_bytes(const uint8_t* text, size_t available) {
    const uint8_t first = text[0];
    if (first < 0x80) return 1;
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || available < length) return 0;
    const uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < lowest || text[1] > highest) return 0;
    for (size_t i = 2; i < length; ++i)
        if ((text[i] & 0xC0) != 0x80) return 0;
    return length;
}

// PCRE2's \s still counts U+180E as white space, which Unicode has not since 6.3, and neither does Hugging Face's engine.
std::string with_unicode_white_space(std::string_view expression) {
    std::string result;
    for (size_t i = 0; i < expression.size(); ++i) {
        const std::string_view escape = expression.substr(i, 2);
        if (expression[i] != '\\' || escape.size() < 2) {
            result += expression[i];
            continue;
        }
        result += escape == "\\s" ? "\\p{White_Space}" : escape == "\\S" ? "\\P{White_Space}" : escape;
        ++i;
    }
    return result;
}

}  // namespace

size_t valid_utf8_prefix_bytes(std::string_view text) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    size_t at = 0;
    while (at < text.size()) {
        uint64_t eight;
        if (at + sizeof(eight) <= text.size()) {
            std::memcpy(&eight, bytes + at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        const size_t length = character_bytes(bytes + at, text.size() - at);
        if (length == 0) break;
        at += length;
    }
    return at;
}

PreSplitPattern::PreSplitPattern(std::string expression) : expression_(std::move(expression)) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string compiled = with_unicode_white_space(expression_);
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(compiled.data()), compiled.size(), PCRE2_UTF | PCRE2_UCP,
                                     &error, &offset, nullptr);
    if (code == nullptr) {
        throw UserError("data.split_pattern", "pre_tokenizer",
                        fmt::format("the tokenizer's split pattern '{}' is not a valid expression: {} (at byte {}). "
                                    "Use a tokenizer.json whose Split pattern PCRE2 accepts.",
                                    expression_, pcre2_message(error), offset));
    }
    // Where the system forbids executable memory this fails, and pcre2_match interprets instead: slower, same result.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    code_.reset(code, [](pcre2_code* c) { pcre2_code_free(c); });
}

PreSplitter::PreSplitter(const PreSplitPattern& pattern)
    : pattern_(pattern),
      match_data_(pcre2_match_data_create(1, nullptr), [](pcre2_match_data* data) { pcre2_match_data_free(data); }) {
    ensure(match_data_ != nullptr, "PreSplitter: PCRE2 could not allocate its match data");
}

void PreSplitter::start(std::string_view text) {
    text_ = text;
    position_ = valid_begin_ = match_begin_ = match_end_ = 0;
    valid_end_ = valid_utf8_prefix_bytes(text_);
}

std::string_view PreSplitter::next() {
    if (position_ == text_.size()) return {};
    const size_t begin = position_;
    if (begin == valid_end_) {  // a byte outside UTF-8
        position_ = begin + 1;
        valid_end_ = position_ + valid_utf8_prefix_bytes(text_.substr(position_));
        valid_begin_ = match_begin_ = match_end_ = position_;
        return text_.substr(begin, 1);
    }
    if (begin >= match_end_) find_match();
    position_ = begin < match_begin_ ? match_begin_ : match_end_;
    return text_.substr(begin, position_ - begin);
}

// Afterwards [match_begin_, match_end_) is the next non-empty match inside the valid text, or both are its end.
void PreSplitter::find_match() {
    // Only the valid run is shown to PCRE2: look-around ends with it, and the encoding needs no further check.
    const std::string_view shown = text_.substr(valid_begin_, valid_end_ - valid_begin_);
    const int found = pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(shown.data()), shown.size(),
                                  position_ - valid_begin_, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match_data_.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) {
        match_begin_ = match_end_ = valid_end_;
        return;
    }
    if (found < 0) {
        throw UserError("data.split_limit", "pre_tokenizer",
                        fmt::format("the tokenizer's split pattern '{}' gave up at byte {} of a text: {}. "
                                    "Use a tokenizer whose pattern does not backtrack without end.",
                                    pattern_.expression(), position_, pcre2_message(found)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_data_.get());
    match_begin_ = valid_begin_ + offsets[0];
    match_end_ = valid_begin_ + offsets[1];
}

}  // namespace lockstep::data
