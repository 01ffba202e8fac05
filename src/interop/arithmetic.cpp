#include "interop/arithmetic.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace lockstep::interop {
namespace {

using Number = std::optional<int64_t>;

constexpr int kDeepest = 32;  // numbers, brackets and names inside each other: a script has few

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

Number power(int64_t a, int64_t b) {
    if (b < 0) return std::nullopt;
    int64_t out = 1;
    for (; b > 0; --b) {
        if (__builtin_mul_overflow(out, a, &out)) return std::nullopt;
        if (a == 0 || a == 1) return a;
        if (a == -1) return b % 2 ? -1 : 1;
    }
    return out;
}

Number apply(const std::string& op, Number a, Number b) {
    if (!a || !b) return std::nullopt;
    int64_t out = 0;
    if (op == "+") return __builtin_add_overflow(*a, *b, &out) ? Number() : out;
    if (op == "-") return __builtin_sub_overflow(*a, *b, &out) ? Number() : out;
    if (op == "*") return __builtin_mul_overflow(*a, *b, &out) ? Number() : out;
    if (op == "**") return power(*a, *b);
    if (op == "==") return *a == *b;
    if (op == "!=") return *a != *b;
    if (op == "<") return *a < *b;
    if (op == ">") return *a > *b;
    if (op == "<=") return *a <= *b;
    if (op == ">=") return *a >= *b;
    if (op == "&") return *a & *b;
    if (op == "|") return *a | *b;
    if (op == "^") return *a ^ *b;
    constexpr int64_t kBits = 63;
    if (op == "<<" || op == ">>") {
        if (*b < 0 || *b >= kBits || (op == "<<" && (*a < 0 || *a > (INT64_MAX >> *b)))) return std::nullopt;
        return op == "<<" ? *a << *b : *a >> *b;
    }
    if (*b == 0 || (*a == INT64_MIN && *b == -1)) return std::nullopt;
    return op == "/" ? *a / *b : *a % *b;
}

// Operators from those that bind least, without those that assign or choose.
const std::array<std::vector<std::string>, 10> kBinary = {
    {{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}}};

class Evaluation {
public:
    Evaluation(const std::string& text, const Names& names, int depth, int& left)
        : text_(text), names_(names), depth_(depth), left_(left) {}

    Number whole() {
        const Number n = comma();
        skip_blanks();
        return at_ == text_.size() ? n : std::nullopt;
    }

private:
    void skip_blanks() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    }
    // The operator here, the longest that bash has.
    std::string operator_here() {
        skip_blanks();
        for (const char* op : {"<<=", ">>=", "**", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "++", "--",
                               "+=",  "-=",  "*=", "/=", "%=", "&=", "|=", "^=", "+",  "-",  "*",  "/",  "%",
                               "<",   ">",   "&",  "|",  "^",  "=",  "?",  ":",  "!",  "~",  "(",  ")",  ","}) {
            if (text_.compare(at_, std::char_traits<char>::length(op), op) == 0) return op;
        }
        return "";
    }
    bool take(const std::string& op) {
        if (operator_here() != op) return false;
        at_ += op.size();
        return true;
    }

    Number comma() {
        Number n = assignment();
        while (take(",")) n = assignment();
        return n;
    }
    Number assignment() {
        if (++depth_ > kDeepest) return std::nullopt;
        const Number n = assigned();
        --depth_;
        return n;
    }
    Number assigned() {
        const size_t begin = at_;
        const std::string name = name_here();
        if (!name.empty()) {
            const std::string op = operator_here();
            if (op == "=" || (op.size() >= 2 && op.back() == '=' && op != "==" && op != "!=" && op != "<=" && op != ">=")) {
                at_ += op.size();
                const Number before = op == "=" ? Number(0) : value_of(name);
                const Number right = assignment();
                return set(name, op == "=" ? right : apply(op.substr(0, op.size() - 1), before, right));
            }
        }
        at_ = begin;
        return choice();
    }
    Number set(const std::string& name, Number n) {
        if (!n || !names_.assign || is_idle_) return is_idle_ ? n : std::nullopt;
        names_.assign(name, *n);
        return n;
    }
    Number choice() {
        const Number condition = binary(0);
        if (!take("?")) return condition;
        const bool was_idle = is_idle_;
        is_idle_ = was_idle || !condition || !*condition;
        const Number a = assignment();
        if (!take(":")) return std::nullopt;
        is_idle_ = was_idle || !condition || *condition;
        const Number b = assignment();
        is_idle_ = was_idle;
        if (!condition) return std::nullopt;
        return *condition ? a : b;
    }
    Number binary(size_t level) {
        if (level == kBinary.size()) return raised();
        Number a = binary(level + 1);
        while (true) {
            const std::string op = operator_here();
            if (std::find(kBinary[level].begin(), kBinary[level].end(), op) == kBinary[level].end()) return a;
            at_ += op.size();
            if (op != "||" && op != "&&") {
                a = apply(op, a, binary(level + 1));
                continue;
            }
            const bool was_idle = is_idle_, decides = a && (op == "||") == (*a != 0);
            is_idle_ = was_idle || decides;
            const Number b = binary(level + 1);
            is_idle_ = was_idle;
            if (decides) a = op == "||";
            else a = a && b ? Number(*b != 0) : std::nullopt;
        }
    }
    Number raised() {
        const Number base = unary();
        if (!take("**")) return base;
        if (++depth_ > kDeepest) return std::nullopt;
        return apply("**", base, raised());
    }
    Number unary() {
        if (++depth_ > kDeepest || --left_ < 0) return std::nullopt;
        const Number n = signed_factor();
        --depth_;
        return n;
    }
    Number signed_factor() {
        const std::string op = operator_here();
        if (op == "++" || op == "--") {
            at_ += 2;
            const std::string name = name_here();
            return name.empty() ? std::nullopt : set(name, apply(op.substr(1), value_of(name), 1));
        }
        for (const char* sign : {"!", "~", "-", "+"}) {
            if (!take(sign)) continue;
            const Number n = unary();
            if (!n) return n;
            return *sign == '!' ? Number(!*n) : *sign == '~' ? Number(~*n) : apply(sign, 0, n);
        }
        if (take("(")) {
            const Number n = comma();
            return take(")") ? n : std::nullopt;
        }
        const std::string name = name_here();
        if (name.empty()) return number();
        const Number before = value_of(name);
        const std::string after = operator_here();
        if (after != "++" && after != "--") return before;
        at_ += 2;
        set(name, apply(after.substr(1), before, 1));
        return before;
    }
    void skip_subscript() {
        int depth = 0;
        while (at_ < text_.size()) {
            const char c = text_[at_++];
            if (c == '[') ++depth;
            if (c == ']' && --depth == 0) return;
        }
    }
    // A name or an element, "A[1]"; empty: none is here.
    std::string name_here() {
        skip_blanks();
        if (at_ >= text_.size() || !is_of_name(text_[at_]) || std::isdigit(static_cast<unsigned char>(text_[at_]))) return "";
        const size_t begin = at_;
        while (at_ < text_.size() && is_of_name(text_[at_])) ++at_;
        if (at_ < text_.size() && text_[at_] == '[') skip_subscript();
        return text_.substr(begin, at_ - begin);
    }
    Number value_of(const std::string& name) {
        if (is_idle_) return 0;
        const std::optional<std::string> value = names_.value(name);
        if (!value) return std::nullopt;
        return value->empty() ? Number(0) : Evaluation(*value, names_, depth_ + 1, left_).whole();
    }
    Number number() {
        const size_t begin = at_;
        while (at_ < text_.size() && (is_of_name(text_[at_]) || text_[at_] == '#')) ++at_;
        const std::string word = text_.substr(begin, at_ - begin);
        constexpr size_t kDigits = 18;
        if (word.empty() || word.size() > kDigits) return std::nullopt;
        const bool is_hex = word.starts_with("0x") || word.starts_with("0X");
        const size_t hash = word.find('#');
        int base = is_hex ? 16 : word[0] == '0' ? 8 : 10;
        std::string digits = is_hex ? word.substr(2) : word;
        if (hash != std::string::npos) {
            const std::string given = word.substr(0, hash);
            if (given != "2" && given != "8" && given != "10" && given != "16") return std::nullopt;
            base = std::stoi(given), digits = word.substr(hash + 1);
            if (digits.starts_with("0x") || digits.starts_with("0X")) return std::nullopt;
        }
        size_t used = 0;
        if (digits.empty() || !std::isxdigit(static_cast<unsigned char>(digits[0]))) return std::nullopt;
        try {
            const int64_t n = std::stoll(digits, &used, base);
            return used == digits.size() ? Number(n) : std::nullopt;
        } catch (const std::exception&) {
            return std::nullopt;
        }
    }

    const std::string& text_;
    const Names& names_;
    int depth_;
    int& left_;  // numbers and names that may still be read, as a name may stand for many names
    size_t at_ = 0;
    bool is_idle_ = false;  // in the part of && || ?: that does not count
};

}  // namespace

std::optional<int64_t> evaluate(const std::string& text, const Names& names) {
    constexpr size_t kMost = 1 << 12;
    int left = kMost;
    return text.size() > kMost ? std::nullopt : Evaluation(text, names, 0, left).whole();
}

}  // namespace lockstep::interop
