// [ words ] and [[ words ]], where some of the words may not be known.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "interop/shell_interpreter.h"
#include "interop/shell_pattern.h"
#include "interop/shell_regex.h"

namespace lockstep::interop {
namespace {

Verdict shell_not(Verdict v) {
    if (v.holds) v.holds = !*v.holds;
    return v;
}

// `decides`: what one of both decides by itself; false for "and", true for "or".
Verdict shell_joined(const Verdict& a, const Verdict& b, bool decides) {
    if (a.holds == decides || b.holds == decides) return Verdict::of(decides);
    if (!a.holds) return a;
    return b;
}

bool is_binary(const std::string& op) {
    static const std::set<std::string> all = {"=",   "==",  "!=",  "-eq", "-ne", "-gt", "-ge", "-lt",
                                              "-le", "-nt", "-ot", "-ef", "=~",  "<",   ">"};
    return all.contains(op);
}

bool is_unary(const std::string& op) {
    return op.size() == 2 && op[0] == '-' && std::string("znfdesrwxLhptvbcgkuGNOSoa").find(op[1]) != std::string::npos;
}

std::optional<long long> shell_integer(const std::string& text) {
    constexpr size_t kDigits = 18;
    const std::string digits = text.starts_with("-") || text.starts_with("+") ? text.substr(1) : text;
    if (digits.empty() || digits.size() > kDigits || digits.find_first_not_of("0123456789") != std::string::npos)
        return std::nullopt;
    return std::stoll(text.starts_with("+") ? digits : text);
}

}  // namespace

Verdict Interpreter::compare(const Text& a, const std::string& op, const Text& b) {
    const Text::Why why = a.why() ? a.why() : b.why();
    if (op == "=" || op == "==" || op == "!=") {
        const bool equal = op != "!=";
        if (!why) return Verdict::of((a.chars() == b.chars()) == equal);
        if ((a.empty() || b.empty()) && a.is_unset_or_empty() && b.is_unset_or_empty()) return Verdict::of(equal);
        return Verdict::unknown(why);
    }
    if (why) return Verdict::unknown(why);
    if (op == "<") return Verdict::of(a.chars() < b.chars());
    if (op == ">") return Verdict::of(a.chars() > b.chars());
    const auto x = shell_integer(a.chars()), y = shell_integer(b.chars());
    if (op == "-nt" || op == "-ot" || op == "-ef")
        return Verdict::unknown(because(fmt::format("only a run knows of {} {} {}", a.chars(), op, b.chars())));
    if (!x || !y) return Verdict::of(false);  // bash says so, and goes on
    if (op == "-eq") return Verdict::of(*x == *y);
    if (op == "-ne") return Verdict::of(*x != *y);
    if (op == "-gt") return Verdict::of(*x > *y);
    if (op == "-ge") return Verdict::of(*x >= *y);
    if (op == "-lt") return Verdict::of(*x < *y);
    return Verdict::of(*x <= *y);
}

Verdict Interpreter::is_file(const std::string& op, const Text& path) const {
    if (path.why()) return Verdict::unknown(path.why());
    const bool of_text = op == "-f" || op == "-e" || op == "-s" || op == "-r";
    if (const std::optional<Text> text = of_text ? file_text(path) : std::nullopt; text && (op != "-s" || !text->empty()))
        return Verdict::of(true);
    if (is_removed(path)) return Verdict::of(false);
    return Verdict::unknown(because(fmt::format("only a run knows what is at {}", path.chars())));
}

// One word, or an operator and a word.
Verdict Interpreter::test_one(const Words& words) {
    const auto is_empty = [](const Text& t) {
        if (t.is_unset_or_empty()) return Verdict::of(true);
        for (size_t i = 0; i < t.size(); ++i) {
            if (!t.why(i)) return Verdict::of(false);
        }
        return Verdict::unknown(t.why());
    };
    if (words.size() == 1) {
        const Text& t = words.front();
        // What nothing sets may be set outside.
        if (!t.empty() && t.is_unset_or_empty()) return Verdict::unknown(t.why());
        return shell_not(is_empty(t));
    }
    const std::string& op = words.front().chars();
    const Text& t = words.back();
    if (op == "-z") return is_empty(t);
    if (op == "-n") return shell_not(is_empty(t));
    if (op == "-v") {
        if (t.why()) return Verdict::unknown(t.why());
        const size_t bracket = t.chars().find('[');
        const std::string name = t.chars().substr(0, bracket);
        const Variable* v = state_.find(name);
        if (v && v->why) return Verdict::unknown(v->why);
        if (!v || v->values().empty()) return Verdict::of(false);
        if (bracket == std::string::npos) return Verdict::of(v->items.contains(0) || v->table.contains("0"));
        const std::string key = t.chars().substr(bracket + 1, t.size() - bracket - 2);
        if (key == "@" || key == "*") return Verdict::of(true);
        if (v->shape == Variable::Shape::Table) return Verdict::of(v->table.contains(key));
        Text::Why why;
        std::optional<int64_t> index = number(Text(key, t.place()), why);
        if (!index) return Verdict::unknown(why);
        if (*index < 0) *index += v->items.rbegin()->first + 1;
        return Verdict::of(v->items.contains(*index));
    }
    if (op == "-a" || op == "-o" || op == "-t" || op == "-p") return Verdict::unknown(because(op + " is known only to a run"));
    return is_file(op, t);
}

Verdict Interpreter::test(const Words& words) {
    if (words.empty()) return Verdict::of(false);
    size_t at = 0;
    const Verdict v = test_expression(words, at, TestKind::Single, 0);
    if (at == words.size()) return v;
    // Of [ == 1 ], where a variable is empty, bash says that it is wrong, and goes on.
    const bool is_plain = std::all_of(words.begin(), words.end(), [](const Text& t) { return t.is_known(); });
    constexpr size_t kFew = 3;
    if (is_plain && words.size() <= kFew && words[0].chars() != "!" && words[0].chars() != "(") return Verdict::of(false);
    return Verdict::unknown(because("the test has words that it cannot have"));
}

// Of both kinds of test: depth / 3 brackets deep; depth % 3: 0 for "or", 1 for "and", 2 for one. Words of [[ ]] are not split,
// so that "!" and "(" are never operands there.
Verdict Interpreter::test_expression(const Words& words, size_t& at, TestKind kind, int depth) {
    constexpr int kDeepest = 60;
    const Verdict wrong = Verdict::unknown(because("the test has words that it cannot have"));
    const bool is_double = kind == TestKind::Double;
    if (depth > kDeepest || at >= words.size()) return wrong;
    if (depth % 3 < 2) {
        const bool is_or = depth % 3 == 0;
        const char* const joins = is_double ? (is_or ? "||" : "&&") : is_or ? "-o" : "-a";
        Verdict v = test_expression(words, at, kind, depth + 1);
        while (at < words.size() && words[at].chars() == joins) {
            ++at;
            v = shell_joined(v, test_expression(words, at, kind, depth + 1), is_or);
        }
        return v;
    }
    const size_t left = words.size() - at;
    const std::string& first = words[at].chars();
    const bool is_compared = !is_double && left >= 3 && is_binary(words[at + 1].chars()) && words[at + 1].is_known();
    if (!is_compared && first == "!" && (is_double || left >= 2)) {
        ++at;
        return shell_not(test_expression(words, at, kind, depth + 3));
    }
    if (!is_compared && first == "(" && (is_double || left >= 3)) {
        ++at;
        const Verdict v = test_expression(words, at, kind, depth + 1);
        if (at >= words.size() || words[at].chars() != ")") return wrong;
        ++at;
        return v;
    }
    size_t end = at + 1;
    if (is_double) {
        for (end = at;
             end < words.size() && words[end].chars() != "&&" && words[end].chars() != "||" && words[end].chars() != ")";)
            ++end;
    } else if (is_compared) {
        end = at + 3;
    } else if (left >= 2 && is_unary(first) && words[at + 1].chars() != "-a" && words[at + 1].chars() != "-o") {
        end = at + 2;
    }
    const Words one(words.begin() + static_cast<long>(at), words.begin() + static_cast<long>(end));
    at = end;
    if (is_double) return double_test_one(one);
    return is_compared ? compare(one[0], one[1].chars(), one[2]) : test_one(one);
}

Verdict Interpreter::double_test_one(const Words& raw) {
    if (raw.size() == 1) return test_one({joined(raw[0])});
    if (raw.size() == 2) return test_one({raw[0], joined(raw[1])});
    if (raw.size() != 3) return Verdict::unknown(because("the test has words that it cannot have"));
    const std::string& op = raw[1].chars();
    const Text a = joined(raw[0]);
    if (op.starts_with("-")) {
        Text::Why why;
        const auto x = number(raw[0], why);
        if (!x) return Verdict::unknown(why);
        const auto y = number(raw[2], why);
        if (!y) return Verdict::unknown(why);
        return compare(Text(std::to_string(*x), a.place()), op, Text(std::to_string(*y), a.place()));
    }
    if (op == "=" || op == "==" || op == "!=") {
        Text::Why why;
        const std::string pattern = pattern_of(raw[2], why);
        if (why || !a.is_known()) return compare(a, op, joined(raw[2]));
        constexpr size_t kLongest = 4096;
        if (!Pattern(pattern).is_known() || a.size() > kLongest)
            return Verdict::unknown(because(fmt::format("the pattern {} is not known to Lockstep", raw[2].chars())));
        return Verdict::of(Pattern(pattern).matches(a.chars()) == (op != "!="));
    }
    if (op != "=~") return compare(a, op, joined(raw[2]));
    Text::Why why;
    std::string pattern;
    for (size_t i = 0; i < raw[2].size();) {  // quoted parts stand for themselves
        const size_t end = end_of_quoted(raw[2], i, path_);
        const char c = raw[2][i];
        const size_t name = c == '$' && end == i + 1 ? end_of_name(raw[2].chars(), end) : end;
        const bool plain = name == i + 1 || c == '\\';
        const Text piece = plain ? raw[2].part(i, name) : joined(raw[2].part(i, name));
        if (!why) why = piece.why();
        for (const char k : piece.chars()) {
            if ((c == '"' || c == '\'') && std::string(".[]{}()*+?|^$\\").find(k) != std::string::npos) pattern += '\\';
            pattern += k;
        }
        i = name;
    }
    if (!why) why = a.why();
    if (why) return Verdict::unknown(why);
    const std::optional<Regex> regex = Regex::compile(pattern, Regex::Kind::Extended);
    constexpr size_t kLongest = 1 << 16;
    if (!regex || a.size() > kLongest) return Verdict::unknown(because(fmt::format("{} is no regular expression", pattern)));
    const auto found = regex->find(a.chars(), 0);
    if (regex->failed()) return Verdict::unknown(because(fmt::format("{} takes too long", pattern)));
    Variable groups;
    groups.shape = Variable::Shape::List;
    if (found) {
        for (size_t i = 0; i < found->size(); ++i) {
            const auto [begin, end] = (*found)[i];
            groups.items[static_cast<int64_t>(i)] = begin == std::string::npos ? Text() : a.part(begin, end);
        }
    }
    set("BASH_REMATCH", groups, raw[0].place());
    return Verdict::of(found.has_value());
}

}  // namespace lockstep::interop
