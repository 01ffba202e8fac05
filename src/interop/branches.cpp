#include "interop/branches.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::interop {
namespace {

std::optional<long long> number(const std::string& text) {
    constexpr size_t kDigits = 18;
    const std::string digits = text.starts_with("-") ? text.substr(1) : text;
    if (digits.empty() || digits.size() > kDigits || digits.find_first_not_of("0123456789") != std::string::npos)
        return std::nullopt;
    return std::stoll(text);
}

std::optional<bool> compare(const std::string& a, const std::string& op, const std::string& b) {
    if (op == "=" || op == "==") return a == b;
    if (op == "!=") return a != b;
    const auto x = number(a), y = number(b);
    if (!x || !y) return std::nullopt;
    if (op == "-eq") return *x == *y;
    if (op == "-ne") return *x != *y;
    if (op == "-gt") return *x > *y;
    if (op == "-ge") return *x >= *y;
    if (op == "-lt") return *x < *y;
    if (op == "-le") return *x <= *y;
    return std::nullopt;
}

}  // namespace

std::optional<bool> evaluate_test(std::vector<std::string> words) {
    if (words.size() < 3 || (words.front() != "[" && words.front() != "[[")) return std::nullopt;
    if (words.back() != (words.front() == "[" ? "]" : "]]")) return std::nullopt;
    words.erase(words.begin()), words.pop_back();
    for (const std::string& word : words) {
        if (word.find_first_of("$`*?") != std::string::npos) return std::nullopt;  // not known, or a pattern
    }
    const bool negated = words.front() == "!";
    if (negated) words.erase(words.begin());
    std::optional<bool> holds;
    if (words.size() == 2 && words[0] == "-z") holds = words[1].empty();
    if (words.size() == 2 && words[0] == "-n") holds = !words[1].empty();
    if (words.size() == 3) holds = compare(words[0], words[1], words[2]);
    return holds ? std::optional(*holds != negated) : std::nullopt;
}

bool Branches::takes(const std::string& word, int line) {
    const auto is = [&](std::initializer_list<const char*> words) {
        return std::any_of(words.begin(), words.end(), [&](const char* w) { return word == w; });
    };
    const bool in_if = !blocks_.empty() && blocks_.back().keyword == "if";
    if (is({"if", "for", "while", "until", "case", "select", "{", "function"})) open(word, line);
    else if (word == "fi") close({"if"});
    else if (word == "done") close({"for", "while", "until", "select"});
    else if (word == "esac") close({"case"});
    else if (word == "}") close({"{", "function"});
    else if (word == "then" && in_if) then(blocks_.back());
    else if (is({"else", "elif"}) && in_if) {
        other(blocks_.back());
        blocks_.back().in_condition = word == "elif";
    } else return is({"then", "do", "!", "time"});
    return true;
}

void Branches::open(const std::string& keyword, int line) {
    blocks_.push_back({keyword, line, State::Unknown});
    blocks_.back().in_condition = keyword == "if";
}

void Branches::close(const std::vector<std::string>& keywords) {
    if (!blocks_.empty() && std::find(keywords.begin(), keywords.end(), blocks_.back().keyword) != keywords.end())
        blocks_.pop_back();
}

void Branches::condition(std::optional<bool> holds) { ++blocks_.back().conditions, blocks_.back().holds = holds; }

void Branches::then(Block& b) {
    b.in_condition = false;
    const bool known = b.conditions == 1 && b.holds && !b.was_unknown;
    if (b.was_taken) b.state = State::Skipped;
    else if (!known) b.state = State::Unknown, b.was_unknown = true;
    else b.state = *b.holds ? State::Runs : State::Skipped, b.was_taken = *b.holds;
    b.conditions = 0, b.holds = std::nullopt;
}

// The branch of `else`; that of `elif` until its own condition is known.
void Branches::other(Block& b) { b.state = b.was_taken ? State::Skipped : b.was_unknown ? State::Unknown : State::Runs; }

Branches::State Branches::state() const {
    State out = State::Runs;
    for (const Block& b : blocks_) {
        if (b.state == State::Skipped) return State::Skipped;
        if (b.state == State::Unknown) out = State::Unknown;
    }
    return out;
}

std::string Branches::where() const {
    for (const Block& b : blocks_) {
        if (b.state != State::Unknown) continue;
        const bool is_function = b.keyword == "{" || b.keyword == "function";
        return is_function ? fmt::format("a function on line {}", b.line) : fmt::format("`{}` on line {}", b.keyword, b.line);
    }
    return "";
}

}  // namespace lockstep::interop
