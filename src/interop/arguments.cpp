#include "interop/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace lockstep::interop {
namespace {

bool is_number(const std::string& word) { return word.find_first_not_of("0123456789.eE+-") == std::string::npos; }

// A word that only a run knows, and that is where no value is expected, or whose name says that it holds arguments.
bool holds_arguments(const std::string& word, const std::vector<Argument>& before) {
    if (!word.starts_with("$") && !word.starts_with("`")) return false;
    if (word == "$@" || word == "$*" || before.empty()) return true;
    if (const auto& values = before.back().values; !values.empty() && !is_number(values.back())) return true;
    std::string name = word.substr(word.starts_with("${") ? 2 : 1);
    name = name.substr(0, name.find_first_of("[}:"));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    constexpr const char* parts[] = {"ARG", "OPTS", "OPTIONS", "FLAGS", "PARAMS"};
    return std::any_of(std::begin(parts), std::end(parts), [&](const char* p) { return name.find(p) != std::string::npos; });
}

// Quotes that a script keeps within a variable, for `eval` to take off.
std::string without_quotes(const std::string& text) {
    const bool quoted = text.size() > 1 && (text.front() == '"' || text.front() == '\'') && text.front() == text.back();
    return quoted ? text.substr(1, text.size() - 2) : text;
}

[[noreturn]] void refuse(const Argument& a, const std::string& what) {
    throw UserError("recipe.argument_value", "--" + a.name, fmt::format("{}: {}: {}", a.where, a.text(), what));
}

template <class T>
bool parse(const std::string& text, T& value) {
    std::string digits;
    for (size_t i = text.starts_with("+") ? 1 : 0; i < text.size(); ++i) {
        const auto is_digit = [&](size_t at) { return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); };
        if (text[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1)) continue;  // 1_000, as Python reads numbers
        digits += text[i];
    }
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

bool begins_argument(const std::string& word) {
    return word.size() > 2 && word.starts_with("--") && std::isalpha(static_cast<unsigned char>(word[2]));
}

std::string Argument::text() const {
    constexpr size_t kMost = 60;
    std::string out = fmt::format("--{}{}{}", name, values.empty() ? "" : " ", fmt::join(values, " "));
    if (out.size() > kMost) out.replace(kMost, std::string::npos, " ...");
    return out;
}

Arguments::Arguments(const std::vector<Word>& words, const std::string& origin) : origin_(origin) {
    std::vector<Argument> given;
    for (const Word& w : words) {
        if (begins_argument(w.text)) {
            const size_t equals = w.text.find('=');
            given.push_back({w.text.substr(2, equals - 2), {}, w.where, w.why, w.id, w.asks});
            if (equals != std::string::npos) given.back().values.push_back(without_quotes(w.text.substr(equals + 1)));
        } else if (!w.why.empty() && (holds_arguments(w.text, given) || (w.may_be_nothing && !given.back().values.empty()))) {
            unread_.push_back({w.text, {}, w.where, w.why, w.id, w.asks});
        } else if (!given.empty()) {
            Argument& last = given.back();
            last.values.push_back(without_quotes(w.text));
            last.may_be_nothing = w.may_be_nothing;
            if (last.why.empty()) last.why = w.why, last.id = w.id, last.asks = w.asks;
        }
    }
    for (size_t i = 0; i < given.size(); ++i) {
        const auto is_same = [&](const Argument& a) { return a.name == given[i].name; };
        if (std::none_of(given.begin() + static_cast<long>(i) + 1, given.end(), is_same)) all_.push_back(given[i]);
    }
}

std::vector<Argument> Arguments::leave_out(const std::vector<std::string>& names) {
    const auto kept = std::stable_partition(all_.begin(), all_.end(), [&](const Argument& a) {
        return std::find(names.begin(), names.end(), a.name) == names.end();
    });
    std::vector<Argument> out(kept, all_.end());
    all_.erase(kept, all_.end());
    return out;
}

const Argument* Arguments::find(const std::vector<std::string>& names) const {
    for (const Argument& a : all_) {
        if (std::find(names.begin(), names.end(), a.name) != names.end()) return &a;
    }
    return nullptr;
}

std::string Arguments::why_unread() const {
    std::vector<std::string> out;
    for (const Argument& a : unread_) out.push_back(fmt::format("{}: {}", a.name, a.why));
    return fmt::format("{}", fmt::join(out, "; "));
}

std::string Arguments::remedy(const std::string& asks) const {
    const std::string otherwise = "put `echo` before the command that starts the run and give what it prints";
    if (asks.empty()) return "give the value in its place, or " + otherwise;
    return fmt::format("give it (`lockstep recipe --from {} {}`), or the value in its place", origin_, asks);
}

std::string Arguments::text(const Argument& a) const {
    if (a.values.empty()) refuse(a, "needs a value, and none follows");
    if (!a.why.empty()) refuse(a, fmt::format("{}; {}", a.why, remedy(a.asks)));
    if (a.values.size() > 1) refuse(a, fmt::format("takes one value, and {} follow", a.values.size()));
    return a.values.front();
}

std::string Arguments::word(const Argument& a, const std::vector<std::string>& words) const {
    std::string value = text(a);
    if (std::find(words.begin(), words.end(), value) == words.end())
        refuse(a, fmt::format("must be {} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back()));
    return value;
}

int64_t Arguments::integer(const Argument& a) const {
    int64_t value = 0;
    if (!parse(text(a), value)) refuse(a, "must be a whole number");
    return value;
}

double Arguments::number(const Argument& a) const {
    double value = 0;
    if (!parse(text(a), value) || !std::isfinite(value)) refuse(a, "must be a number");
    return value;
}

void Arguments::require_no_value(const Argument& a) const {
    if (a.may_be_nothing) return;
    if (std::any_of(a.values.begin(), a.values.end(), [](const std::string& v) { return !v.empty(); }))
        refuse(a, fmt::format("takes no value: take {} out", fmt::join(a.values, " ")));
}

}  // namespace lockstep::interop
