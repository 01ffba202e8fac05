// What an assignment and a declaration do.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "interop/shell_interpreter.h"

namespace lockstep::interop {
namespace {

// Behind the "[...]" that begins at `at`; 0: nothing closes it.
size_t end_of_subscript(const Text& raw, size_t at) {
    int depth = 0;
    while (at < raw.size()) {
        const char c = raw[at];
        at = end_of_quoted(raw, at, "");
        if (c == '[') ++depth;
        if (c == ']' && --depth == 0) return at;
    }
    return 0;
}

}  // namespace

void Interpreter::set(const std::string& name, Variable value, Place place) {
    constexpr size_t kMost = 1 << 20, kMostOfAll = 1 << 23;
    const size_t size = value.size();
    characters_ += size;
    if (size > kMost || characters_ > kMostOfAll)
        refuse_script(file_of(place), place.line,
                      fmt::format("{} has more than {} characters: no command line is as long", name, kMost));
    require_steps(1 + size / 64);
    value.place = place;
    value.is_exported |= state_.exports_all;
    if (const Variable* before = state_.find(name)) {
        if (before->is_readonly) return set_status(1);
        value.is_exported |= before->is_exported;
        value.is_integer |= before->is_integer;
        if (value.letters == 0) value.letters = before->letters;
    }
    if (value.letters != 0) {
        for (auto& [index, text] : value.items) {
            Text changed;
            for (size_t i = 0; i < text.size(); ++i) {
                const auto c = static_cast<unsigned char>(text[i]);
                if (text.why(i)) changed.add(text, i, i + 1);
                else changed.add(static_cast<char>(value.letters == 'u' ? std::toupper(c) : std::tolower(c)), text.place(i));
            }
            text = changed;
        }
    }
    state_.variables[state_.target_of(name)] = std::make_shared<const Variable>(std::move(value));
}

void Interpreter::set(const std::string& name, const Text& value, Place place) {
    Variable v;
    if (const Variable* before = state_.find(name)) v = *before;
    if (v.shape == Variable::Shape::Scalar) v.why = nullptr;
    if (v.shape == Variable::Shape::Table) v.table["0"] = value;
    else v.items[0] = value;
    set(name, std::move(v), place);
}

// Where the value begins of NAME=value, NAME+=value, NAME[subscript]=value; nothing: the word is none.
std::optional<size_t> Interpreter::end_of_assigned(const Text& raw) {
    const std::string& s = raw.chars();
    size_t at = end_of_name(s, 0);
    if (at == 0) return std::nullopt;
    if (at < s.size() && s[at] == '[') {
        at = end_of_subscript(raw, at);
        if (at == 0) return std::nullopt;
    }
    if (s.compare(at, 2, "+=") == 0) return at + 2;
    if (s.compare(at, 1, "=") == 0) return at + 1;
    return std::nullopt;
}

// ( words ), also ([key]=word ...)
void Interpreter::assign_array(Variable& to, const Text& inside) {
    const std::string& s = inside.chars();
    int64_t next = to.items.empty() ? 0 : to.items.rbegin()->first + 1;
    for (size_t at = 0; at < s.size();) {
        if (is_shell_space(s[at])) {
            ++at;
            continue;
        }
        if (s[at] == '#') {
            at = std::min(s.find('\n', at), s.size());
            continue;
        }
        size_t end = end_of_word(inside, at, path_);
        if (end == at) {
            ++at;
            continue;
        }
        const Text raw = inside.part(at, end);
        at = end;
        const size_t close = raw[0] == '[' ? raw.chars().find("]=") : std::string::npos;
        if (close != std::string::npos) {
            const Text key = joined(raw.part(1, close)), value = joined(raw.part(close + 2, raw.size()));
            if (!key.is_known()) to.why = key.why();
            else if (to.shape == Variable::Shape::Table) to.table[key.chars()] = value;
            else {
                Text::Why why;
                const std::optional<int64_t> index = number(key, why);
                if (!index) to.why = why;
                else to.items[*index] = value, next = *index + 1;
            }
            continue;
        }
        for (Text& field : fields(raw)) to.items[next++] = std::move(field);
    }
}

// The value of NAME=value, expanded.
Text Interpreter::value_of_assigned(const Text& raw) {
    const Text value = raw.part(*end_of_assigned(raw), raw.size());
    const std::string name = raw.chars().substr(0, end_of_name(raw.chars(), 0));
    // "DATA=<path to the data>": a place to fill in.
    const bool is_place = value.size() > 1 && value[0] == '<' && value[1] != '(';
    if (!is_place) return joined(value);
    return Text::unknown("$" + name, raw.place(), because(fmt::format("{} is a place to fill in: {}", name, value.chars())));
}

void Interpreter::assign(const Text& raw, const Variable& attributes, const Text* expanded) {
    const std::string& s = raw.chars();
    const size_t value_at = *end_of_assigned(raw), name_end = end_of_name(s, 0);
    const std::string name = s.substr(0, name_end);
    const bool adds = s[value_at - 2] == '+';
    const Place place = raw.place();
    const Variable* before = state_.find(name);
    Variable v = before ? *before : Variable();
    if (attributes.shape != Variable::Shape::Scalar) v.shape = attributes.shape;
    v.is_integer |= attributes.is_integer, v.is_exported |= attributes.is_exported;
    if (attributes.letters != 0) v.letters = attributes.letters;
    const Text value_raw = raw.part(value_at, raw.size());
    if (s.compare(value_at, 1, "(") == 0 && s.back() == ')') {
        Variable made;
        if (adds) made = v;
        made.shape = v.shape == Variable::Shape::Table ? v.shape : Variable::Shape::List;
        made.is_exported = v.is_exported, made.is_integer = v.is_integer;
        assign_array(made, value_raw.part(1, value_raw.size() - 1));
        return set(name, std::move(made), place);
    }
    Text value = expanded ? *expanded : value_of_assigned(raw);
    Text::Why why;
    if (v.is_integer) {
        const std::optional<int64_t> n = number(value, why);
        value = n ? Text(std::to_string(*n), place) : Text::unknown("$" + name, place, of_value(why));
    }
    before = state_.find(name);  // ${NAME:=value} may have set it
    const auto added = [&](const Text& to) {
        if (!adds) return value;
        if (v.is_integer && to.is_known() && value.is_known()) {
            Text sum = to;
            sum.add("+", place), sum.add(value);
            if (const std::optional<int64_t> n = number(sum, why)) return Text(std::to_string(*n), place);
        }
        Text whole = to;
        whole.add(value);
        return whole;
    };
    if (s[name_end] == '[') {
        const Text subscript = raw.part(name_end + 1, end_of_subscript(raw, name_end) - 1);
        if (v.shape == Variable::Shape::Scalar) v.shape = Variable::Shape::List;
        if (v.shape == Variable::Shape::Table) {
            const Text key = joined(subscript);
            if (key.is_known()) v.table[key.chars()] = added(v.table[key.chars()]);
            else v.why = key.why();
        } else if (std::optional<int64_t> index = number(subscript, why)) {
            if (*index < 0 && !v.items.empty()) *index += v.items.rbegin()->first + 1;
            v.items[*index] = added(v.items[*index]);
        } else {
            v.why = why;
        }
        return set(name, std::move(v), place);
    }
    Text base;
    if (adds) {
        const Value present = parameter(name, place, "$" + name);
        // NAME+=value where nothing sets NAME: it begins with what the environment has, which is nothing as a rule.
        if (!present.items.empty() && !(before == nullptr && present.items.front().is_unset_or_empty()))
            base = present.items.front();
    }
    if (v.shape == Variable::Shape::Scalar) v.why = nullptr;
    if (v.shape == Variable::Shape::Table) v.table["0"] = added(base);
    else v.items[0] = added(base);
    set(name, std::move(v), place);
}

void Interpreter::make_local(const std::string& name) {
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
        if (frame->is_loop) continue;
        const auto found = state_.variables.find(name);
        frame->locals.try_emplace(name, found == state_.variables.end() ? nullptr : found->second);
        return;
    }
}

bool Interpreter::declaration(const std::string& name, const Words& raw) {
    Variable attributes;
    bool is_local = name == "local" || name == "declare" || name == "typeset", of_functions = false, refers = false;
    attributes.is_exported = name == "export";
    bool is_readonly = name == "readonly", unexports = false;
    // All words are expanded before the first of them is set.
    struct Declared {
        Text raw;
        std::optional<Text> value;  // of NAME=value
        Words words;
    };
    std::vector<Declared> all;
    for (size_t i = 1; i < raw.size(); ++i) {
        const std::optional<size_t> value = end_of_assigned(raw[i]);
        const bool is_compound = value && raw[i].chars().compare(*value, 1, "(") == 0;
        for (const Text& t : is_compound ? Words{raw[i]} : braced(raw[i])) {
            if (is_compound) all.push_back({t, std::nullopt, {}});
            else if (end_of_assigned(t)) all.push_back({t, value_of_assigned(t), {}});
            else all.push_back({t, std::nullopt, fields(t)});
        }
    }
    if (!runs()) return true;
    set_status(0);
    const auto mark = [&](const std::string& of, const auto& change) {
        auto changed = std::make_shared<Variable>(*state_.find(of));
        change(*changed);
        state_.variables[state_.target_of(of)] = changed;
    };
    for (const Declared& d : all) {
        const std::string& word = d.raw.chars();
        if (word.size() > 1 && (word[0] == '-' || word[0] == '+') && !d.raw.why(0)) {
            const bool on = word[0] == '-';
            for (const char c : word) {
                if (c == 'a' && on) attributes.shape = Variable::Shape::List;
                if (c == 'A' && on) attributes.shape = Variable::Shape::Table;
                if (c == 'i') attributes.is_integer = on;
                if (c == 'x') attributes.is_exported = on;
                if (c == 'g') is_local = false;
                if (c == 'n' && name != "export") refers = true;
                if (c == 'f' || c == 'F' || c == 'p') of_functions = true;
                if (c == 'r') is_readonly = true;
                if (c == 'u' || c == 'l') attributes.letters = c;
                if (c == 'n' && name == "export") unexports = true, attributes.is_exported = false;
            }
            continue;
        }
        if (of_functions) {
            if (attributes.is_exported) state_.exported_functions.insert(word);
            continue;
        }
        if (unexports && !d.value && state_.find(word)) {
            mark(word, [](Variable& v) { v.is_exported = false; });
            continue;
        }
        const auto declare = [&](const Text& t, bool is_assignment) {
            const std::string declared = t.chars().substr(0, end_of_name(t.chars(), 0));
            if (is_local) {
                make_local(declared);
                if (!is_assignment || attributes.shape != Variable::Shape::Scalar) {
                    const bool keeps = !is_assignment && frames_.empty() && state_.find(declared);  // outside of functions
                    Variable v = keeps ? *state_.find(declared) : Variable();
                    if (attributes.shape != Variable::Shape::Scalar) v.shape = attributes.shape;
                    v.is_integer |= attributes.is_integer, v.is_exported |= attributes.is_exported;
                    state_.variables.erase(declared);
                    set(declared, v, t.place());
                }
            }
            if (is_assignment) assign(t, attributes, d.value ? &*d.value : nullptr);
            else if (const Variable* v = state_.find(declared)) {
                Variable changed = *v;
                changed.is_exported |= attributes.is_exported, changed.is_integer |= attributes.is_integer;
                set(declared, changed, v->place);
            }
            if (is_readonly && state_.find(declared)) mark(declared, [](Variable& v) { v.is_readonly = true; });
        };
        if (refers) {
            const std::string declared = word.substr(0, end_of_name(word, 0));
            if (is_local) make_local(declared);
            Variable v;
            v.place = d.raw.place();
            const std::string target = d.value ? d.value->chars() : "";
            if (d.value && d.value->is_known() && end_of_name(target, 0) == target.size() && !target.empty() &&
                target != declared)
                v.refers_to = target;
            else v.why = because(fmt::format("{} refers to another variable, and which one is not known", declared));
            if (d.value && v.why) forget_variables(fmt::format("`{} -n` on {}", name, line_of(v.place)));
            state_.variables[declared] = std::make_shared<const Variable>(v);
            continue;
        }
        if (end_of_assigned(d.raw)) {
            declare(d.raw, true);
            continue;
        }
        for (const Text& field : d.words) {
            const size_t equals = field.chars().find('=');
            if (equals == std::string::npos) {
                if (field.is_known() && end_of_name(field.chars(), 0) == field.size()) declare(field, false);
                else if (!field.is_known() && field.why()->text.find("known only to a run") != std::string::npos)
                    forget_variables(fmt::format("`{} {}` on {}", name, field.chars(), line_of(raw[0].place())));
                continue;
            }
            const std::string target = field.chars().substr(0, equals);
            if (end_of_name(target, 0) != target.size()) continue;
            if (is_local) make_local(target);
            Variable v;
            v.items[0] = field.part(equals + 1, field.size());
            v.is_exported = attributes.is_exported;
            set(target, v, d.raw.place());
        }
    }
    return true;
}

// A command that may set any variable, and is not known. What --script-env gives is what it leaves there.
void Interpreter::forget_variables(const std::string& command) {
    for (auto& [name, variable] : state_.variables) {
        if (name.starts_with("SLURM_") || name == "IFS" || variable->why) continue;
        auto changed = std::make_shared<Variable>(*variable);
        changed->why = because(
            fmt::format("{} is set on {}, and {}, which is not known, may change it", name, line_of(variable->place), command),
            "--script-env " + name + "=VALUE");
        variable = changed;
    }
    take_environment();
}

}  // namespace lockstep::interop
