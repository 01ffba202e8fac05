// What "$NAME", "$1" and "${NAME<operator>word}" stand for.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "interop/shell_interpreter.h"
#include "interop/shell_pattern.h"

namespace lockstep::interop {
namespace {

// An item of a list that nothing in the script has set.
bool is_unset_parameter(const std::vector<Text>& items) {
    return items.size() == 1 && !items.front().empty() && items.front().is_unset_or_empty();
}

}  // namespace

Interpreter::Value Interpreter::parameter(const std::string& name, Place place, const std::string& written) {
    const auto unknown = [&](const std::string& why) { return Value{{Text::unknown(written, place, because(why))}}; };
    if (name == "?") {
        if (state_.status) return {{Text(std::to_string(*state_.status), place)}};
        return {{Text::unknown(written, place, state_.status_why)}};
    }
    const bool all = name == "@" || name == "*";
    if (all || name == "#" || std::isdigit(static_cast<unsigned char>(name[0]))) {
        if (name == "0") return {{state_.zero}};
        if (state_.arguments_why) return {{Text::unknown(written, place, state_.arguments_why)}};
        if (name == "#") return {{Text(std::to_string(state_.arguments.size()), place)}};
        constexpr size_t kDigits = 6;
        const size_t index = all ? 0 : name.size() > kDigits ? SIZE_MAX : std::stoul(name);
        if (!state_.has_arguments && (all ? state_.arguments.empty() : index > state_.arguments.size()))
            return {
                {Text::unknown(written, place,
                               std::make_shared<const Reason>(Reason{fmt::format("{} is what the script is called with", written),
                                                                     "--script-args \"A B\"", true}))}};
        if (all) return {state_.arguments, name == "@"};
        return {index <= state_.arguments.size() ? Words{state_.arguments[index - 1]} : Words{}};
    }
    if (name == "$" || name == "!" || name == "-" || name == "_" || name == "RANDOM" || name == "SECONDS" || name == "PPID" ||
        name == "EPOCHSECONDS" || name == "HOSTNAME" || name == "UID")
        if (!state_.find(name)) return unknown(fmt::format("{} is known only to a run", written));
    if (name == "PWD" && !state_.find(name)) return {{state_.folder}};
    if (name == "LINENO") return {{Text(std::to_string(place.line), place)}};
    if (name == "BASH_SOURCE") return {{Text(resolved(Text(paths_[static_cast<size_t>(place.file)], place)), place)}};
    const Variable* v = state_.find(name);
    if (!v) return {{Text::unknown(written, place, why_unset(name))}};
    if (v->why) return {{Text::unknown(written, place, v->why)}};
    if (v->shape == Variable::Shape::Table) {
        const auto zero = v->table.find("0");
        return zero == v->table.end() ? Value{} : Value{{zero->second}};
    }
    const auto first = v->items.find(0);
    return first == v->items.end() ? Value{} : Value{{first->second}};
}

// `set -u` ends the script at a value that it has not. What the environment may have is left to the run.
void Interpreter::require_set(const std::string& name, const Value& value, Place place) {
    if (!state_.refuses_unset || !value.items.empty() || name == "@" || name == "*" || !runs()) return;
    state_.flow = Flow::Exits;
    out_.ended = fmt::format("{}, where {} has no value under `set -u`", line_of(place), name);
}

Interpreter::Value Interpreter::element(const std::string& name, const Text& subscript, Place place, const std::string& written) {
    if (name == "BASH_SOURCE") return parameter(name, place, written);
    const Variable* v = state_.find(name);
    if (!v) return {{Text::unknown(written, place, why_unset(name))}};
    if (v->why) return {{Text::unknown(written, place, v->why)}};
    const bool at = subscript.chars() == "@";
    if (at || subscript.chars() == "*") {
        if (v->table.size() > 1)  // the order is bash's own
            return {{Text::unknown(written, place, because(fmt::format("{} has an order that bash chooses", written)))}};
        return {v->values(), at};
    }
    if (v->shape == Variable::Shape::Table) {
        const Text key = joined(subscript);
        if (const Text::Why why = key.why()) return {{Text::unknown(written, place, why)}};
        const auto found = v->table.find(key.chars());
        return found == v->table.end() ? Value{} : Value{{found->second}};
    }
    Text::Why why;
    std::optional<int64_t> index = number(subscript, why);
    if (!index) return {{Text::unknown(written, place, of_value(why))}};
    v = state_.find(name);
    if (!v) return {};
    if (*index < 0 && !v->items.empty()) index = v->items.rbegin()->first + 1 + *index;
    const auto found = v->items.find(*index);
    return found == v->items.end() ? Value{} : Value{{found->second}};
}

Interpreter::Value Interpreter::braces(const Text& raw, size_t begin, size_t end) {
    const std::string& s = raw.chars();
    const Place place = raw.place(begin);
    const size_t stop = end - 1;
    size_t at = begin + 2;
    const std::string written = without_shell_blanks(s.substr(begin, end - begin));
    const auto unknown = [&](const Text::Why& why) { return Value{{Text::unknown(written, place, why)}}; };
    const auto not_known_here = [&] { return unknown(because(fmt::format("{} is not known to Lockstep", written))); };
    if (at >= stop) return not_known_here();
    const bool counts = s[at] == '#' && at + 1 < stop, refers = s[at] == '!' && at + 1 < stop;
    if (counts || refers) ++at;
    size_t name_end = end_of_name(s, at);
    if (name_end == at) {
        while (name_end < stop && std::isdigit(static_cast<unsigned char>(s[name_end]))) ++name_end;
        if (name_end == at && is_special_parameter(s[at])) ++name_end;
    }
    const std::string name = s.substr(at, std::min(name_end, stop) - at);
    if (name.empty()) return not_known_here();
    at = name_end;
    Value value;
    Text subscript;
    if (at < stop && s[at] == '[') {
        size_t close = at + 1;
        for (int depth = 0; close < stop && (s[close] != ']' || depth > 0); close = end_of_quoted(raw, close, path_))
            depth += s[close] == '[' ? 1 : s[close] == ']' ? -1 : 0;
        if (close >= stop) return not_known_here();
        subscript = raw.part(at + 1, close);
        at = close + 1;
    }
    const bool every = subscript.chars() == "@" || subscript.chars() == "*";
    if (refers) {
        const bool lists_names = at + 1 == stop && (s[at] == '*' || s[at] == '@') && begins_shell_name(name[0]);
        if (lists_names) {
            for (const auto& [other, variable] : state_.variables) {
                if (other.starts_with(name) && (variable->why || !variable->values().empty()))
                    value.items.emplace_back(other, place);
            }
            value.apart = s[at] == '@';
            return value;
        }
        const Variable* v = state_.find(name);
        if (every && v && !v->why && at == stop) {
            for (const auto& [index, text] : v->items) value.items.emplace_back(std::to_string(index), place);
            for (const auto& [key, text] : v->table) value.items.emplace_back(key, place);
            if (v->table.size() > 1) return unknown(because(fmt::format("{} has an order that bash chooses", written)));
            value.apart = subscript.chars() == "@";
            return value;
        }
        if (every || !subscript.empty()) return not_known_here();
        const Value target = parameter(name, place, written);
        if (target.items.empty()) return {};
        if (const Text::Why why = target.items.front().why()) return unknown(why);
        const std::string other = target.items.front().chars();
        if (other.empty() || end_of_name(other, 0) != other.size()) {
            const bool is_number = !other.empty() && other.find_first_not_of("0123456789") == std::string::npos;
            if (!is_number) return not_known_here();
        }
        value = parameter(other, place, "${" + other + "}");
    } else {
        value = subscript.empty() ? parameter(name, place, written) : element(name, subscript, place, written);
    }
    if (counts) {
        if (name == "@" || name == "*") return parameter("#", place, written);
        if (at != stop) return not_known_here();
        if (every) {
            const Variable* v = state_.find(name);
            if (v && !v->why) return {{Text(std::to_string(v->values().size()), place)}};
        }
        size_t size = 0;
        for (const Text& t : value.items) {
            if (const Text::Why why = t.why()) return unknown(of_value(why));
            size += t.size();
        }
        return {{Text(std::to_string(size), place)}};
    }
    if (at == stop) {
        if (is_unset_parameter(value.items) && subscript.empty())
            value.items.front() = Text::unknown(written, place, value.items.front().why());
        if (subscript.empty()) require_set(name, value, place);
        return value;
    }
    return changed(subscript.empty() ? name : name + "[" + subscript.chars() + "]", std::move(value), raw, at, stop,
                   Text::unknown(written, place, nullptr));
}

// ${NAME<operator>word}: raw from `at` to `end` is the operator and what follows.
Interpreter::Value Interpreter::changed(const std::string& name, Value value, const Text& raw, size_t at, size_t end,
                                        const Text& written) {
    const std::string& s = raw.chars();
    const Place place = raw.place(at);
    const auto unknown = [&](const Text::Why& why) { return Value{{Text::unknown(written.chars(), place, why)}}; };
    const bool colon = s[at] == ':' && at + 1 < end && std::string("-=?+").find(s[at + 1]) != std::string::npos;
    const char op = colon ? s[at + 1] : s[at];
    const auto rest = [&](size_t skipped) { return raw.part(std::min(at + skipped, end), end); };
    const Text::Why first_why = value.items.empty() ? nullptr : value.items.front().why();
    if (std::string("-=?+").find(op) != std::string::npos) {
        // Of $@ and arrays the items together; of one value that is only in part not known, that it is not empty.
        const bool is_known_unset = value.items.empty() || is_unset_parameter(value.items);
        const bool empty = value.items.empty() || (value.items.size() == 1 && value.items.front().is_unset_or_empty());
        const bool absent = colon ? empty : is_known_unset;
        const bool all_unknown = !absent && first_why && value.items.size() == 1 && value.items.front().why(0);
        if (all_unknown && colon) return unknown(first_why);
        if (op == '+') return absent ? Value{} : Value{{}, false, rest(colon ? 2 : 1)};
        if (!absent) return value;
        if (op == '?') {
            const Text message = joined(rest(colon ? 2 : 1));
            state_.flow = Flow::Exits;
            const std::string shown = std::isdigit(static_cast<unsigned char>(name[0])) ? "$" + name : name;
            out_.ended = fmt::format("{}, which needs {} (\"{}\")", line_of(place), shown, message.chars());
            return unknown(value.items.empty() ? why_unset(name) : first_why);
        }
        if (op == '-') return {{}, false, rest(colon ? 2 : 1)};
        Text otherwise = joined(rest(colon ? 2 : 1));
        set(name, otherwise, place);
        return {{std::move(otherwise)}};
    }
    if (value.items.empty()) return value;
    // ${X##*-} keeps what follows the last "-", ${X%%-*} what precedes the first.
    const size_t mark = at + (op == '#' ? 3 : 2);
    const bool cuts_all = (op == '#' || op == '%') && at + 4 == end && s[at + 1] == op && s[op == '#' ? at + 2 : at + 3] == '*' &&
                          std::string("-_./=:,@").find(s[mark]) != std::string::npos;
    for (Text& t : value.items) {
        const Text::Why why = t.why();
        if (!why) continue;
        if (cuts_all && value.items.size() == 1) {
            const size_t found = op == '#' ? t.chars().rfind(s[mark]) : t.chars().find(s[mark]);
            const Text kept = op == '#' ? t.part(found + 1, t.size()) : t.part(0, found);
            if (found != std::string::npos && !t.why(found) && kept.is_known()) return {{kept}};
        }
        bool is_part = false;
        for (size_t i = 0; i < t.size(); ++i) is_part |= !t.why(i);
        return unknown(is_part ? because(fmt::format("a part of {} is not known: {}", name, why->text), why) : why);
    }
    if (op == ':') {
        const Text inside = rest(1);
        size_t comma = 0;
        while (comma < inside.size() && inside[comma] != ':') comma = end_of_quoted(inside, comma, path_);
        Text::Why why;
        const std::optional<int64_t> offset = number(inside.part(0, comma), why);
        const std::optional<int64_t> length =
            comma < inside.size() ? number(inside.part(comma + 1, inside.size()), why) : std::optional<int64_t>(INT64_MAX);
        if (!offset || !length) return unknown(why);
        const auto cut = [&](int64_t size) {
            if (*offset < -size) return std::pair<size_t, size_t>(0, 0);
            const int64_t from = std::clamp<int64_t>(*offset < 0 ? size + *offset : *offset, 0, size);
            const int64_t to = *length < 0 ? size + *length : *length > size - from ? size : from + *length;
            return std::pair(static_cast<size_t>(from), static_cast<size_t>(std::max(from, to)));
        };
        const bool is_list = value.apart || name == "@" || name.ends_with("[@]") || name.ends_with("[*]");
        if (name == "@" || name == "*") value.items.insert(value.items.begin(), state_.zero);  // ${@:1} begins at $1
        const Variable* list = is_list && name != "@" ? state_.find(name.substr(0, name.find('['))) : nullptr;
        if (list && list->shape == Variable::Shape::List && !list->items.empty()) {
            const int64_t last = list->items.rbegin()->first;
            const int64_t from = *offset < 0 ? last + 1 + *offset : *offset;
            if (from < 0 || *length < 0)
                return from < 0 ? Value{} : unknown(because(fmt::format("{} has no length", written.chars())));
            value.items.clear();
            for (auto it = list->items.lower_bound(from); it != list->items.end(); ++it) {
                if (static_cast<int64_t>(value.items.size()) >= *length) break;
                value.items.push_back(it->second);
            }
            return value;
        }
        if (is_list || name == "*") {
            const auto [from, to] = cut(static_cast<int64_t>(value.items.size()));
            value.items = Words(value.items.begin() + static_cast<long>(from), value.items.begin() + static_cast<long>(to));
            return value;
        }
        for (Text& t : value.items) {
            const auto [from, to] = cut(static_cast<int64_t>(t.size()));
            t = t.part(from, to);
        }
        return value;
    }
    const bool doubled = at + 1 < end && s[at + 1] == op;
    if (op == '^' || op == ',') {
        if (at + (doubled ? 2 : 1) != end) return unknown(because(fmt::format("{} is not known to Lockstep", written.chars())));
        for (Text& t : value.items) {
            Text out;
            for (size_t i = 0; i < t.size(); ++i) {
                const auto c = static_cast<unsigned char>(t[i]);
                const int changed = op == '^' ? std::toupper(c) : std::tolower(c);
                out.add(i == 0 || doubled ? static_cast<char>(changed) : t[i], t.place(i));
            }
            t = out;
        }
        return value;
    }
    Text::Why why;
    constexpr size_t kLongest = 4096;
    const auto too_long = [&] {
        return std::any_of(value.items.begin(), value.items.end(), [](const Text& t) { return t.size() > kLongest; });
    };
    if (op == '#' || op == '%') {
        const Pattern pattern(pattern_of(rest(doubled ? 2 : 1), why));
        if (why || too_long() || !pattern.is_known())
            return unknown(why ? why : because(fmt::format("{} is not known to Lockstep", written.chars())));
        for (Text& t : value.items) {
            require_steps(pattern.cost(t.size()));
            if (const auto cut = op == '#' ? pattern.prefix(t.chars(), doubled) : pattern.suffix(t.chars(), doubled))
                t = op == '#' ? t.part(*cut, t.size()) : t.part(0, *cut);
        }
        return value;
    }
    if (op != '/') return unknown(because(fmt::format("{} is not known to Lockstep", written.chars())));
    size_t from = at + (doubled ? 2 : 1);
    const bool at_begin = !doubled && s.compare(from, 1, "#") == 0, at_end = !doubled && s.compare(from, 1, "%") == 0;
    from += at_begin || at_end;
    size_t slash = from;
    while (slash < end && s[slash] != '/') slash = end_of_quoted(raw, slash, path_);
    const Pattern pattern(pattern_of(raw.part(from, std::min(slash, end)), why));
    const Text by = slash < end ? joined(raw.part(slash + 1, end)) : Text();
    if (!why) why = by.why();
    const bool has_match =
        by.chars().find('&') != std::string::npos && std::string("\"'\\").find(s[slash + 1]) == std::string::npos;
    if (!why && has_match) why = because(fmt::format("what & stands for in {} depends on bash's version", written.chars()));
    if (why || too_long() || !pattern.is_known())
        return unknown(why ? why : because(fmt::format("{} is not known to Lockstep", written.chars())));
    for (Text& t : value.items) {
        require_steps(pattern.cost(t.size()));
        Text out;
        size_t i = 0;
        if (pattern.is_empty() && (at_begin || at_end)) {
            if (at_begin) out.add(by);
            out.add(t);
            if (at_end) out.add(by);
            t = out;
            continue;
        }
        for (bool done = false; i < t.size() && !done;) {
            std::optional<size_t> match = pattern.longest_at(t.chars(), i);
            if (at_end && match && *match != t.size()) match.reset();
            if (!match || *match == i) {
                if (at_begin) break;
                out.add(t, i, i + 1), ++i;
                continue;
            }
            out.add(by);
            i = *match;
            done = !doubled;
        }
        out.add(t, i, t.size());
        t = out;
    }
    return value;
}

}  // namespace lockstep::interop
