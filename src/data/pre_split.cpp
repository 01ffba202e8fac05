#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pre_split.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::data {
namespace {

std::string pcre2_message(int code) {
    PCRE2_UCHAR text[256];
    if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return fmt::format("PCRE2 error {}", code);
    return reinterpret_cast<const char*>(text);
}

[[noreturn]] void refuse(const std::string& expression, const std::string& why) {
    throw UserError("data.split_pattern", "pre_tokenizer",
                    fmt::format("the tokenizer's split pattern '{}' {}. Use a tokenizer.json whose Split pattern PCRE2 accepts.",
                                expression, why));
}

// An expression of Oniguruma in PCRE2's words.
// \s: PCRE2 still counts U+180E, which is no white space since Unicode 6.3. \w: PCRE2 leaves out marks. \h: a hex digit.
std::string in_words_of_pcre2(const std::string& expression) {
    const auto means_otherwise = [&](const char* what) {
        refuse(expression, fmt::format("has {}, which PCRE2 reads in another way than Hugging Face's engine", what));
    };
    std::string result;
    bool in_class = false;
    for (size_t i = 0; i < expression.size(); ++i) {
        const char c = expression[i];
        const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
        if (c == '\\' && next != '\0') {
            ++i;
            switch (next) {
                case 's': result += R"(\p{White_Space})"; break;
                case 'S': result += R"(\P{White_Space})"; break;
                case 'h': result += in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]"; break;
                case 'w':
                    result += in_class ? R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})" : R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])";
                    break;
                case 'W':
                    if (in_class) means_otherwise("\\W in a class of characters");
                    result += R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])";
                    break;
                case 'u':
                    if (i + 4 >= expression.size()) means_otherwise("\\u");
                    result += fmt::format("\\x{{{}}}", expression.substr(i + 1, 4));
                    i += 4;
                    break;
                default:
                    result.append({c, next});
                    if (std::string_view("pPxkgo").find(next) != std::string_view::npos &&
                        expression.substr(i + 1, 1) == "{") {  // \p{L}: no repetition
                        const size_t end = std::min(expression.find('}', i), expression.size() - 1);
                        result += expression.substr(i + 1, end - i);
                        i = end;
                    }
            }
            continue;
        }
        if (in_class) {
            if (c == '[' && next != ':') means_otherwise("a class of characters in another");
            if (c == '&' && next == '&') means_otherwise("&& in a class of characters");
            if (c == '[') {  // [:alpha:]
                const size_t end = expression.find(":]", i);
                if (end == std::string::npos) means_otherwise("a class of characters in another");
                result += expression.substr(i, end + 2 - i);
                i = end + 1;
                continue;
            }
            if (c == ']') in_class = false;
        } else if (c == '[') {
            in_class = true;
            result += c;
            if (next == '^') result += expression[++i];
            if (i + 1 < expression.size() && expression[i + 1] == ']') {  // a member
                result += "\\]";
                ++i;
            }
            continue;
        } else if (c == '}' && next == '+') {
            means_otherwise("a '+' behind a counted repetition");
        }
        result += c;
    }
    return result;
}

}  // namespace

PreSplitPattern::PreSplitPattern(std::string expression) : expression_(std::move(expression)), known_(known_split(expression_)) {
    if (valid_utf8_prefix_bytes(expression_) != expression_.size()) refuse("(not UTF-8)", "is not valid UTF-8");
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string compiled = in_words_of_pcre2(expression_);
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(compiled.data()), compiled.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
    if (code == nullptr)
        refuse(expression_, fmt::format("is not a valid expression: {} (at byte {})", pcre2_message(error), offset));
    // Where the system forbids executable memory this fails, and pcre2_match interprets instead: slower, same result.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    code_.reset(code, [](pcre2_code* c) { pcre2_code_free(c); });
}

bool PreSplitPattern::can_match_nothing() const {
    uint32_t can = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &can);
    return can != 0;
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
        is_match_ = false;
        return text_.substr(begin, 1);
    }
    if (!pattern_.known_) return next_by_expression();
    position_ = (*pattern_.known_)(text_.substr(0, valid_end_), begin);
    is_match_ = true;
    return text_.substr(begin, position_ - begin);
}

std::string_view PreSplitter::next_by_expression() {
    const size_t begin = position_;
    if (begin >= match_end_) find_match();
    is_match_ = begin >= match_begin_ && match_begin_ < match_end_;
    position_ = begin < match_begin_ ? match_begin_ : match_end_;
    return text_.substr(begin, position_ - begin);
}

// Afterwards [match_begin_, match_end_) is the next match inside the valid text, or both are its end. An empty match cuts the
// text, but not where the last match ended: there the search goes on one character further.
void PreSplitter::find_match() {
    search(position_);
    if (match_begin_ > position_ || match_end_ > position_ || position_ == valid_end_) return;
    search(position_ + first_valid_character(text_.data() + position_).bytes);
}

void PreSplitter::search(size_t from) {
    // Only the valid run is shown to PCRE2: look-around ends with it, and the encoding needs no further check.
    const std::string_view shown = text_.substr(valid_begin_, valid_end_ - valid_begin_);
    const int found = pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(shown.data()), shown.size(),
                                  from - valid_begin_, PCRE2_NO_UTF_CHECK, match_data_.get(), nullptr);
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
