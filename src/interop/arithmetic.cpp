#include "interop/arithmetic.h"

#include <cctype>

namespace lockstep::interop {
namespace {

using Number = std::optional<int64_t>;
using ValueOf = std::function<std::optional<std::string>(const std::string&)>;

constexpr int kDeepest = 16;  // numbers, brackets and names inside each other: a script has few

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

Number apply(char op, Number a, Number b) {
    if (!a || !b) return std::nullopt;
    int64_t out = 0;
    switch (op) {
        case '+': return __builtin_add_overflow(*a, *b, &out) ? Number() : out;
        case '-': return __builtin_sub_overflow(*a, *b, &out) ? Number() : out;
        case '*': return __builtin_mul_overflow(*a, *b, &out) ? Number() : out;
        default: break;
    }
    if (*b == 0 || (*a == INT64_MIN && *b == -1)) return std::nullopt;
    return op == '/' ? *a / *b : *a % *b;
}

class Evaluation {
public:
    Evaluation(const std::string& text, const ValueOf& value_of, int depth) : text_(text), value_of_(value_of), depth_(depth) {}

    Number whole() {
        const Number n = sum();
        skip_blanks();
        return at_ == text_.size() ? n : std::nullopt;
    }

private:
    void skip_blanks() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    }
    // The operator here if it is one of these.
    char take(const std::string& operators) {
        skip_blanks();
        return at_ < text_.size() && operators.find(text_[at_]) != std::string::npos ? text_[at_++] : '\0';
    }

    Number sum() {
        Number n = product();
        while (const char op = take("+-")) n = apply(op, n, product());
        return n;
    }
    Number product() {
        Number n = factor();
        while (const char op = take("*/%")) n = apply(op, n, factor());
        return n;
    }
    Number factor() {
        if (++depth_ > kDeepest) return std::nullopt;
        if (take("(")) {
            const Number n = sum();
            return take(")") ? n : std::nullopt;
        }
        if (take("-")) return apply('-', 0, factor());
        return name_or_number();
    }
    Number name_or_number() {
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '$') ++at_;
        const bool braces = at_ < text_.size() && text_[at_] == '{';
        if (braces) ++at_;
        const size_t begin = at_;
        while (at_ < text_.size() && is_of_name(text_[at_])) ++at_;
        const std::string word = text_.substr(begin, at_ - begin);
        if (braces && !take("}")) return std::nullopt;
        if (word.empty()) return std::nullopt;
        if (!std::isdigit(static_cast<unsigned char>(word[0]))) {
            const std::optional<std::string> value = value_of_(word);
            return value ? Evaluation(*value, value_of_, depth_).whole() : std::nullopt;
        }
        constexpr size_t kDigits = 18;
        if (word.size() > kDigits || word.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
        return std::stoll(word);
    }

    const std::string& text_;
    const ValueOf& value_of_;
    int depth_;
    size_t at_ = 0;
};

}  // namespace

std::optional<int64_t> evaluate(const std::string& text, const ValueOf& value_of) {
    return Evaluation(text, value_of, 0).whole();
}

}  // namespace lockstep::interop
