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

struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

// Null: `error` and `offset` say why.
Code compile_expression(const std::string& words, int& error, PCRE2_SIZE& offset) {
    return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(words.data()), words.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                              &error, &offset, nullptr));
}

bool compiles(const std::string& words) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    return compile_expression(words, error, offset) != nullptr;
}

constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";  // PCRE2 leaves out marks

// Outside a class Oniguruma asks Latin-1's table of the first 256 characters: superscripts and fractions are of words there.
constexpr const char* kWordAlone = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

// A class in brackets, such as [:alpha:], by Oniguruma's Unicode tables.
struct PosixClass {
    std::string_view name;
    const char* members;  // inside a class of characters
    const char* others;   // of [:^alpha:]; null: it cannot be said inside a class
};
constexpr PosixClass kPosixClasses[] = {{"alpha", R"(\p{Alphabetic})", R"(\P{Alphabetic})"},
                                        {"digit", R"(\p{Nd})", R"(\P{Nd})"},
                                        {"alnum", R"(\p{Alphabetic}\p{Nd})", nullptr},
                                        {"upper", R"(\p{Uppercase})", R"(\P{Uppercase})"},
                                        {"lower", R"(\p{Lowercase})", R"(\P{Lowercase})"},
                                        {"space", R"(\p{White_Space})", R"(\P{White_Space})"},
                                        {"blank", R"(\p{Zs}\t)", nullptr},
                                        {"cntrl", R"(\p{Cc})", R"(\P{Cc})"},
                                        {"punct", R"(\p{P}\p{S})", nullptr},
                                        {"xdigit", "0-9A-Fa-f", nullptr},
                                        {"word", kWord, nullptr},
                                        {"ascii", R"(\x{00}-\x{7F})", R"(\x{80}-\x{10FFFF})"}};

// An expression of Oniguruma (Ruby's syntax) in PCRE2's words.
// What PCRE2 would read in another way is put otherwise, or refused.
class InWordsOfPcre2 {
public:
    explicit InWordsOfPcre2(const std::string& expression) : expression_(expression) {}

    std::string translate() {
        while (at_ < expression_.size()) {
            const char c = expression_[at_];
            if (c == '\\' && at_ + 1 < expression_.size()) escape();
            else if (in_class_) class_member(c);
            else if (c == '[') begin_class();
            else if (c == '{') repetition();
            else if (c == '(') group();
            else if (c == '}' && next() == '+') means_otherwise("a '+' behind a counted repetition");
            else take(1);
        }
        return std::move(result_);
    }

private:
    [[noreturn]] void means_otherwise(const std::string& what) const {
        refuse(expression_, fmt::format("has {}, which PCRE2 reads in another way than Hugging Face's engine", what));
    }
    char next(size_t ahead = 1) const { return at_ + ahead < expression_.size() ? expression_[at_ + ahead] : '\0'; }
    void take(size_t characters) {
        result_.append(expression_, at_, characters);
        at_ += characters;
    }
    void put(const std::string& words, size_t characters) {
        result_ += words;
        at_ += characters;
    }
    // `inside`: in a class of characters.
    void put_class(const char* inside, size_t characters) {
        put(in_class_ ? std::string(inside) : fmt::format("[{}]", inside), characters);
    }
    void put_outside(char letter, const std::string& words) {
        if (in_class_) means_otherwise(fmt::format("\\{} in a class of characters", letter));
        put(words, 2);
    }

    void escape() {
        const char c = next();
        switch (c) {
            case 's': return put(R"(\p{White_Space})", 2);  // PCRE2 still counts U+180E
            case 'S': return put(R"(\P{White_Space})", 2);
            case 'h': return put_class("0-9A-Fa-f", 2);
            case 'H': return put_outside(c, "[^0-9A-Fa-f]");
            case 'w': return put_class(in_class_ ? kWord : kWordAlone, 2);
            case 'W': return put_outside(c, fmt::format("[^{}]", kWordAlone));
            case 'b':
                if (in_class_) return take(2);
                return put(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordAlone), 2);
            case 'B': return put_outside(c, fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordAlone));
            case 'v': return put(R"(\x0B)", 2);
            case 'O': return put_outside(c, "(?s:.)");
            case 'V':
            case 'C':
            case 'M':
            case 'Q':
            case 'E': means_otherwise(fmt::format("\\{}", c));
            case 'u':
                if (at_ + 5 >= expression_.size()) means_otherwise("\\u");
                return put(fmt::format("\\x{{{}}}", expression_.substr(at_ + 2, 4)), 6);
            default: break;
        }
        const bool has_braces = std::string_view("pPxkgo").find(c) != std::string_view::npos && next(2) == '{';
        if (!has_braces && (c == 'p' || c == 'P')) means_otherwise("\\p without braces");
        if (!has_braces) return take(2);
        const size_t length = std::min(expression_.find('}', at_), expression_.size() - 1) + 1 - at_;  // no repetition
        if (c == 'p' || c == 'P') return property(length);
        take(length);
    }

    // Of a script, PCRE2 takes the characters that are used in it, too: \p{Han} would hold the punctuation of Japanese.
    void property(size_t length) {
        const std::string all = expression_.substr(at_, length);
        const bool is_negated = all.substr(3).starts_with('^');
        const size_t begin = is_negated ? 4 : 3;
        const std::string name = length > begin ? all.substr(begin, length - 1 - begin) : "";
        const bool is_long = name.size() > 2 && name.find_first_of(":=") == std::string::npos;
        if (!is_long || !compiles(fmt::format("\\p{{sc:{}}}", name))) return take(length);
        put(fmt::format("\\{}{{sc:{}}}", (all[1] == 'p') != is_negated ? 'p' : 'P', name), length);
    }

    void begin_class() {
        in_class_ = true;
        take(next() == '^' ? 2 : 1);
        if (at_ < expression_.size() && expression_[at_] == ']') put("\\]", 1);  // a member
    }

    void class_member(char c) {
        if (c == '[' && next() == ':') return posix_class();
        if (c == '[') means_otherwise("a class of characters in another");
        if (c == '&' && next() == '&') means_otherwise("&& in a class of characters");
        in_class_ = c != ']';
        take(1);
    }

    void posix_class() {
        const size_t end = expression_.find(":]", at_);
        if (end == std::string::npos) means_otherwise("a class of characters in another");
        const std::string all = expression_.substr(at_, end + 2 - at_);
        std::string_view name = std::string_view(all).substr(2, all.size() - 4);
        const bool is_negated = name.starts_with('^');
        if (is_negated) name.remove_prefix(1);
        for (const PosixClass& known : kPosixClasses) {
            const char* words = is_negated ? known.others : known.members;
            if (known.name == name && words != nullptr) return put(words, all.size());
        }
        means_otherwise(all);
    }

    // {,3} is from none to three.
    void repetition() {
        const size_t end = expression_.find('}', at_);
        const bool is_up_to =
            next() == ',' && end != std::string::npos && end > at_ + 2 &&
            std::all_of(expression_.begin() + static_cast<std::ptrdiff_t>(at_) + 2,
                        expression_.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c >= '0' && c <= '9'; });
        if (is_up_to) return put("{0", 1);
        const size_t digits = expression_.find_first_not_of("0123456789", at_ + 1);
        const bool is_exact = digits != std::string::npos && digits == end && end > at_ + 1;
        if (is_exact && next(end + 1 - at_) == '?') means_otherwise("a '?' behind {n}");
        take(1);
    }

    // (?m) lets the dot match ends of lines, as PCRE2's (?s).
    void group() {
        size_t options = 0;
        while (next() == '?' && std::string_view("imx-").find(next(2 + options)) != std::string_view::npos &&
               next(2 + options) != '\0')
            ++options;
        if (options == 0 || (next(2 + options) != ':' && next(2 + options) != ')')) return take(1);
        std::string words = expression_.substr(at_, options + 3);
        std::replace(words.begin(), words.end(), 'm', 's');
        put(words, options + 3);
    }

    const std::string& expression_;
    size_t at_ = 0;
    bool in_class_ = false;
    std::string result_;
};

}  // namespace

PreSplitPattern::PreSplitPattern(std::string expression) : expression_(std::move(expression)), known_(known_split(expression_)) {
    if (valid_utf8_prefix_bytes(expression_) != expression_.size()) refuse("(not UTF-8)", "is not valid UTF-8");
    int error = 0;
    PCRE2_SIZE offset = 0;
    Code code = compile_expression(InWordsOfPcre2(expression_).translate(), error, offset);
    if (code == nullptr)
        refuse(expression_, fmt::format("is not a valid expression: {} (at byte {})", pcre2_message(error), offset));
    // Where the system forbids executable memory this fails, and pcre2_match interprets instead: slower, same result.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    code_ = std::move(code);
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
