// Commands of the shell itself, and programs that are computed here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/text_file.h"
#include "interop/shell_interpreter.h"
#include "interop/shell_programs.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;

// Commands that change no variable and print nothing that a script reads.
const std::set<std::string>& quiet_builtins() {
    static const std::set<std::string> all = {"alias",   "bg",     "disown", "enable", "fg",    "hash", "history", "jobs",
                                              "kill",    "module", "shopt",  "sleep",  "times", "trap", "ulimit",  "umask",
                                              "unalias", "wait",   "mkdir",  "touch",  "chmod", "bind", "complete"};
    return all;
}

bool is_environment_hook(const std::string& text) {
    constexpr const char* names[] = {"conda", "mamba", "pyenv", "direnv", "ssh-agent", "modulecmd", "dircolors", "brew"};
    return std::any_of(std::begin(names), std::end(names), [&](const char* n) { return text.find(n) != std::string::npos; });
}

}  // namespace

bool Interpreter::builtin(const std::string& name, const Words& words, const Words& raw) {
    const int64_t loops = std::count_if(frames_.begin(), frames_.end(), [](const Frame& f) { return f.is_loop; });
    const auto flow = [&](Flow f) {
        Text::Why why;
        const std::optional<int64_t> n =
            words.size() > 1 ? number(words[1], why) : std::optional<int64_t>(f == Flow::Breaks || f == Flow::Continues ? 1 : 0);
        state_.flow = f;
        if (f == Flow::Breaks || f == Flow::Continues)
            state_.levels = static_cast<int>(std::clamp<int64_t>(n.value_or(1), 1, loops));
        else if (words.size() > 1) set_status(n ? std::optional<int>(static_cast<int>(*n & 255)) : std::nullopt, why);
    };
    if (name == ":" || name == "true") set_status(0);
    else if (name == "false") set_status(1);
    else if (name == "echo") echo(words);
    else if (name == "printf") print_formatted(words);
    else if (name == "cd") change_folder(words);
    else if (name == "pushd" && words.size() == 2) {
        state_.folders.push_back(state_.folder);
        change_folder(words);
    } else if (name == "popd" && words.size() == 1 && !state_.folders.empty()) {
        state_.folder = state_.folders.back();
        state_.folders.pop_back(), set_status(0);
    } else if (name == "pushd" || name == "popd") {
        state_.folders.clear();
        state_.folder = Text::unknown("$(pwd)", words[0].place(), because("the folder is known only to a run"));
        set_status(0);
    } else if (name == "pwd") {
        Text line = state_.folder;
        line.add('\n', words[0].place());
        print(line), set_status(0);
    } else if (name == "exit") {
        flow(Flow::Exits);
        out_.ended = fmt::format("{}, by `exit`", line_of(words[0].place()));
    } else if (name == "return") flow(Flow::Returns);
    else if (name == "break" || name == "continue")
        loops > 0 ? flow(name == "break" ? Flow::Breaks : Flow::Continues) : set_status(0);
    else if (name == "shift") {
        Text::Why why;
        const std::optional<int64_t> n = words.size() > 1 ? number(words[1], why) : 1;
        if (!n) state_.arguments_why = why;
        const int64_t size = static_cast<int64_t>(state_.arguments.size());
        if (n && *n <= size)
            state_.arguments.erase(state_.arguments.begin(),
                                   state_.arguments.begin() + static_cast<long>(std::max<int64_t>(*n, 0)));
        else if (n && !state_.has_arguments && !state_.arguments_why)
            state_.arguments_why = because("it is what the script is called with", "--script-args \"A B\"");
        set_status(n && *n <= size ? 0 : 1);
    } else if (name == "set") set_options(words);
    else if (name == "unset") unset(words);
    else if (name == "export" || name == "declare" || name == "typeset" || name == "local" || name == "readonly") {
        return declaration(name, raw);
    } else if (name == "let") {
        Text::Why why;
        std::optional<int64_t> n;
        for (size_t i = 1; i < words.size(); ++i) n = number(words[i], why);
        set_status(n ? std::optional<int>(*n == 0) : std::nullopt, why);
    } else if (name == "[" || name == "test") {
        Words inside(words.begin() + 1, words.end());
        if (name == "[" && !inside.empty() && inside.back().chars() == "]") inside.pop_back();
        const Verdict v = test(inside);
        set_status(v.holds ? std::optional<int>(!*v.holds) : std::nullopt, v.why);
    } else if (name == "eval") evaluate_words(words);
    else if (name == "source" || name == ".") source(words);
    else if (name == "read") read_input(words);
    else if (name == "getopts") getopts(words);
    else if (name == "mapfile" || name == "readarray") {
        std::string array = "MAPFILE";
        if (words.size() > 1 && !words.back().chars().starts_with("-")) array = words.back().chars();
        const bool plain = input_ && input_->is_known() && (words.size() < 3 || (words.size() == 3 && words[1].chars() == "-t"));
        if (plain) characters_ += input_->size(), require_steps(1 + input_->size() / 16);
        Variable list;
        list.shape = Variable::Shape::List;
        if (plain) {
            for (const std::string& line : lines_of(input_->chars()))
                list.items[static_cast<int64_t>(list.items.size())] =
                    Text(words.size() == 3 ? line : line + "\n", words[0].place());
        } else {
            list.why = because(fmt::format("{} is read from the input of a command on {}", array, line_of(words[0].place())));
        }
        set(array, list, words[0].place()), set_status(0);
    } else if (name == "exec" && words.size() == 1) set_status(0);
    else if (quiet_builtins().contains(name)) set_status(0);
    else return false;
    return true;
}

void Interpreter::echo(const Words& words) {
    size_t at = 1;
    bool ends_line = true, escapes = false;
    const auto is_option = [](const std::string& w) {
        return w.size() > 1 && w[0] == '-' && w.find_first_not_of("neE", 1) == std::string::npos;
    };
    for (; at < words.size() && words[at].is_known() && is_option(words[at].chars()); ++at) {
        ends_line &= words[at].chars().find('n') == std::string::npos;
        escapes |= words[at].chars().find('e') != std::string::npos;
    }
    Text line;
    for (size_t i = at; i < words.size(); ++i) {
        if (i > at) line.add(' ', words[i].place());
        for (size_t k = 0; k < words[i].size(); ++k) {
            const char c = words[i][k], next = k + 1 < words[i].size() ? words[i][k + 1] : '\0';
            const bool is_escape = escapes && c == '\\' && !words[i].why(k) && (next == 'n' || next == 't' || next == '\\');
            if (!is_escape) line.add(words[i], k, k + 1);
            else line.add(next == 'n' ? '\n' : next == 't' ? '\t' : '\\', words[i].place(k)), ++k;
        }
    }
    if (ends_line) line.add('\n', words[0].place());
    print(line), set_status(0);
}

void Interpreter::print_formatted(const Words& words) {
    size_t at = 1;
    std::string variable;
    if (words.size() > 3 && words[1].chars() == "-v") variable = words[2].chars(), at = 3;
    if (at < words.size() && words[at].chars() == "--") ++at;
    if (at >= words.size()) return set_status(1);
    const Text& format = words[at];
    Text out;
    size_t next = at + 1;
    Text::Why why = format.why();
    do {
        const size_t before = next;
        for (size_t i = 0; i < format.size(); ++i) {
            const char c = format[i];
            if (format.why(i)) {
                out.add(format, i, i + 1);
                continue;
            }
            if (c == '\\' && i + 1 < format.size()) {
                const char e = format[++i];
                out.add(e == 'n' ? '\n' : e == 't' ? '\t' : e, format.place(i));
                continue;
            }
            if (c != '%' || i + 1 >= format.size()) {
                out.add(format, i, i + 1);
                continue;
            }
            const size_t end = format.chars().find_first_not_of("0123456789.-+ #", i + 1);
            const std::string spec = format.chars().substr(i, end == std::string::npos ? end : end - i);
            const char kind = end == std::string::npos ? '\0' : format[end];
            i = end == std::string::npos ? format.size() : end;
            if (kind == '%') {
                out.add('%', format.place());
                continue;
            }
            const Text value = next < words.size() ? words[next++] : Text();
            constexpr size_t kWidth = 5;
            if (kind == 's' && spec == "%") {
                out.add(value);
                continue;
            }
            if (!why) why = value.why();
            if (spec.size() > kWidth || why) {
                if (!why) why = because("printf with " + spec);
                continue;
            }
            char made[512] = "";
            char* stop = nullptr;
            const std::string digits = value.empty() ? "0" : value.chars();
            if (kind == 's') {
                std::snprintf(made, sizeof made, (spec + "s").c_str(), value.chars().c_str());
            } else if (kind == 'd' || kind == 'i' || kind == 'x' || kind == 'u') {
                const long long n = std::strtoll(digits.c_str(), &stop, 0);
                if (*stop) why = because("printf of " + digits);
                std::snprintf(made, sizeof made, (spec + "ll" + kind).c_str(), n);
            } else if (kind == 'f' || kind == 'g' || kind == 'e') {
                const double n = std::strtod(digits.c_str(), &stop);
                if (*stop) why = because("printf of " + digits);
                std::snprintf(made, sizeof made, (spec + kind).c_str(), n);
            } else {
                why = because(fmt::format("printf's %{}", kind));
            }
            out.add(made, format.place());
        }
        if (next == before) break;
        require_steps(1);
    } while (next < words.size());
    if (why) out = Text::unknown("$(...)", format.place(), because("the output of printf is known only to a run: " + why->text));
    if (variable.empty()) print(out);
    else set(variable, out, format.place());
    set_status(0);
}

void Interpreter::change_folder(const Words& words) {
    set_status(0);
    size_t at = 1;
    while (at < words.size() && (words[at].chars() == "--" || words[at].chars() == "-P" || words[at].chars() == "-L")) ++at;
    const auto unknown = [&](const Text::Why& why) { state_.folder = Text::unknown("$(pwd)", words[0].place(), why); };
    if (at >= words.size() || words[at].chars() == "-") return unknown(because("the folder is known only to a run"));
    if (const Text::Why why = words[at].why()) return unknown(why);
    const std::string& to = words[at].chars();
    if (to.starts_with("~")) return unknown(because("the home folder is known only to a run"));
    if (!to.starts_with("/") && !state_.folder.is_known()) return;
    std::string path = (to.starts_with("/") ? fs::path(to) : fs::path(state_.folder.chars()) / to).lexically_normal().string();
    if (path.size() > 1 && path.back() == '/') path.pop_back();
    state_.folder = Text(path, words[0].place());
}

// set -e, set +e, set -- words.
void Interpreter::set_options(const Words& words) {
    set_status(0);
    for (size_t i = 1; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        const bool is_option = words[i].is_known() && word.size() > 1 && (word[0] == '-' || word[0] == '+') && word != "--";
        if (!is_option) {
            return take_arguments(Words(words.begin() + static_cast<long>(i) + (word == "--"), words.end()), words[0].place());
        }
        const bool on = word[0] == '-';
        for (const char c : word.substr(1)) {
            if (c == 'e') set_option("errexit", on);
            if (c == 'u') set_option("nounset", on);
            if (c == 'a') set_option("allexport", on);
            if (c == 'o' && i + 1 < words.size()) set_option(words[++i].chars(), on);  // -euo pipefail
        }
    }
}

void Interpreter::set_option(const std::string& name, bool on) {
    if (name == "errexit") state_.ends_at_failure = on;
    if (name == "nounset") state_.refuses_unset = on;
    if (name == "pipefail") state_.fails_in_pipes = on;
    if (name == "allexport") state_.exports_all = on;
}

void Interpreter::take_arguments(Words arguments, Place place) {
    size_t size = 0;
    for (const Text& t : arguments) size += t.size() + 1;
    constexpr size_t kMost = 1 << 20, kMostOfAll = 1 << 23;
    characters_ += size;
    if (size > kMost || characters_ > kMostOfAll)
        refuse_script(file_of(place), place.line,
                      fmt::format("the arguments have more than {} characters: no command line is as long", kMost));
    require_steps(1 + arguments.size() + size / 64);
    state_.arguments = std::move(arguments);
    state_.has_arguments = true, state_.arguments_why = nullptr;
}

void Interpreter::unset(const Words& words) {
    set_status(0);
    bool of_functions = false;
    for (size_t i = 1; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        if (!words[i].is_known()) return forget_variables(fmt::format("`unset {}` on {}", word, line_of(words[0].place())));
        if (word.starts_with("-")) {
            of_functions = word == "-f";
            continue;
        }
        const size_t bracket = word.find('[');
        const std::string name = word.substr(0, bracket);
        if (of_functions || (!state_.find(name) && state_.functions.contains(name))) {
            state_.functions.erase(name);
            continue;
        }
        Variable v;
        if (bracket != std::string::npos && state_.find(name)) {
            v = *state_.find(name);
            Text::Why why;
            const std::string key = word.substr(bracket + 1, word.size() - bracket - 2);
            if (v.shape == Variable::Shape::Table) v.table.erase(key);
            else if (auto index = number(Text(key, words[i].place()), why)) {
                if (*index < 0 && !v.items.empty()) *index += v.items.rbegin()->first + 1;
                v.items.erase(*index);
            } else v.why = why;
        }
        set(name, v, words[i].place());
    }
}

// read [-r] [-a ARRAY] [-d X] NAME... of a here-string, or of what only a run knows.
void Interpreter::read_input(const Words& words) {
    std::vector<std::string> names;
    std::string array, end_of_line = "\n";
    bool plain = input_.has_value(), is_raw = false;
    for (size_t i = 1; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        if (!word.starts_with("-") || word.size() < 2) {
            names.push_back(word);
            continue;
        }
        for (size_t k = 1; k < word.size(); ++k) {
            const char c = word[k];
            if (c == 'r') is_raw = true;
            if (c == 'n' || c == 'N' || c == 't' || c == 'u' || c == 'i') plain = false;
            if (std::string("pdaniNtu").find(c) == std::string::npos) continue;
            const bool here = k + 1 < word.size();
            const std::string value = here ? word.substr(k + 1) : i + 1 < words.size() ? words[++i].chars() : "";
            if (c == 'd') end_of_line = value.substr(0, 1);
            if (c == 'a') array = value;
            break;
        }
    }
    const bool has_names = !names.empty();
    if (!has_names && array.empty()) names.emplace_back("REPLY");
    const Place place = words[0].place();
    const Text::Why cause = input_ ? input_->why() : nullptr;
    const auto why = because(fmt::format("the input of `read` on {} is known only to a run{}{}", line_of(place),
                                         cause ? ": " : "", cause ? cause->text : ""),
                             cause);
    // The line, and which of its characters end no word.
    Text line;
    std::vector<bool> is_literal;
    size_t at = 0;
    bool ended = false;
    for (; plain && at < input_->size() && !ended; ++at) {
        plain &= !input_->why(at);
        const char c = (*input_)[at];
        const bool escapes = !is_raw && c == '\\' && at + 1 < input_->size();
        if (escapes && (*input_)[++at] == '\n') continue;
        if (!escapes && !end_of_line.empty() && c == end_of_line[0]) ended = true;
        else line.add(*input_, at, at + 1), is_literal.push_back(escapes);
    }
    const auto unknown = [&](const std::string& name) {
        Variable v;
        v.why = because(fmt::format("{} is read from the input of a command on {}", name, line_of(place)));
        set(name, v, place);
    };
    if (!plain) {
        for (const std::string& name : names) unknown(name);
        if (!array.empty()) unknown(array);
        return set_status(std::nullopt, why);
    }
    require_steps(1 + input_->size() / 256 + line.size() / 16);
    input_ = input_->part(at, input_->size());
    const Variable* ifs = state_.find("IFS");
    const std::string separators = ifs && !ifs->items.empty() ? ifs->items.begin()->second.chars() : " \t\n";
    const auto is_separator = [&](size_t i) { return !is_literal[i] && separators.find(line[i]) != std::string::npos; };
    const auto is_blank = [&](size_t i) { return is_separator(i) && is_shell_space(line[i]); };
    size_t begin = 0, stop = line.size();
    if (has_names || !array.empty()) {
        while (begin < stop && is_blank(begin)) ++begin;
        while (stop > begin && is_blank(stop - 1)) --stop;
    }
    Words parts;
    const size_t most = array.empty() ? names.size() : SIZE_MAX;
    while (begin < stop) {
        size_t end = begin;
        while (end < stop && !is_separator(end)) ++end;
        size_t next = end;
        while (next < stop && is_blank(next)) ++next;
        if (next < stop && is_separator(next) && !is_shell_space(line[next])) {
            ++next;
            while (next < stop && is_blank(next)) ++next;
        }
        const bool is_rest = parts.size() + 1 == most && (next < stop || !has_names);
        parts.push_back(line.part(begin, is_rest ? stop : end));
        begin = is_rest ? stop : next;
    }
    if (!array.empty()) {
        Variable list;
        list.shape = Variable::Shape::List;
        for (const Text& t : parts) list.items[static_cast<int64_t>(list.items.size())] = t;
        set(array, list, place);
    }
    for (size_t i = 0; i < names.size() && array.empty(); ++i) set(names[i], i < parts.size() ? parts[i] : Text(), place);
    set_status(ended ? 0 : 1);
}

// getopts "ab:" NAME [words]
void Interpreter::getopts(const Words& words) {
    if (words.size() < 3 || !words[1].is_known()) return set_status(std::nullopt, because("getopts without its options"));
    const std::string& name = words[2].chars();
    const Words arguments = words.size() > 3 ? Words(words.begin() + 3, words.end()) : state_.arguments;
    const Place place = words[0].place();
    if (state_.arguments_why && words.size() == 3) {
        Variable v;
        v.why = state_.arguments_why;
        set(name, v, place), set("OPTARG", v, place);
        return set_status(std::nullopt, state_.arguments_why);
    }
    const Variable *optind = state_.find("OPTIND"), *within = state_.find("_LOCKSTEP_OPTION");
    size_t index = 1, inside = 1;
    if (optind && !optind->items.empty())
        index = static_cast<size_t>(std::max(1L, std::strtol(optind->items.begin()->second.chars().c_str(), nullptr, 10)));
    if (within && !within->items.empty()) inside = within->items.begin()->second.size();
    const auto finish = [&](size_t i, size_t k) {
        set("OPTIND", Text(std::to_string(i), place), place);
        set("_LOCKSTEP_OPTION", Text(std::string(k, '.'), place), place);
    };
    if (index > arguments.size() || arguments[index - 1].size() < 2 || arguments[index - 1][0] != '-' ||
        arguments[index - 1].chars() == "--") {
        if (index <= arguments.size() && arguments[index - 1].chars() == "--") ++index;
        finish(index, 1);
        set(name, Text("?", place), place);
        return set_status(1);
    }
    const Text& word = arguments[index - 1];
    if (const Text::Why why = word.why()) {
        Variable v;
        v.why = why;
        set(name, v, place);
        return set_status(std::nullopt, why);
    }
    const char option = word[std::min(inside, word.size() - 1)];
    const size_t known = words[1].chars().find(option);
    const bool takes = known != std::string::npos && words[1].chars().compare(known + 1, 1, ":") == 0;
    const bool is_known = known != std::string::npos && option != ':', is_silent = words[1].chars().starts_with(":");
    const bool misses = takes && inside + 1 >= word.size() && index >= arguments.size();
    set(name, Text(std::string(1, misses ? (is_silent ? ':' : '?') : is_known ? option : '?'), place), place);
    if (!is_known || misses) set("OPTARG", is_silent ? Text(std::string(1, option), place) : Text(), place);
    if (takes) {
        const bool here = inside + 1 < word.size();
        if (!misses)
            set("OPTARG",
                here                       ? word.part(inside + 1, word.size())
                : index < arguments.size() ? arguments[index]
                                           : Text(),
                place);
        finish(index + (here ? 1 : 2), 1);
    } else {
        const bool last = inside + 1 >= word.size();
        finish(last ? index + 1 : index, last ? 1 : inside + 1);
    }
    set_status(0);
}

void Interpreter::evaluate_words(const Words& words) {
    Text all;
    for (size_t i = 1; i < words.size(); ++i) {
        if (i > 1) all.add(' ', words[i].place());
        all.add(words[i]);
    }
    set_status(0);
    const Text::Why why = all.why();
    const size_t first = all.chars().find_first_not_of(" \t\n");
    if (first == std::string::npos) return;
    if (all.why(first)) {
        if (!is_environment_hook(all.chars()) && !is_environment_hook(why->text)) {
            out_.unread.push_back({fmt::format("eval {}", all.chars()), where_of(words[0].place()), why->text, "", why->asks});
            forget_variables(fmt::format("`eval {}` on {}", all.chars(), line_of(words[0].place())));
        }
        return;
    }
    run_text(all, file_of(words[0].place()));
}

}  // namespace lockstep::interop
