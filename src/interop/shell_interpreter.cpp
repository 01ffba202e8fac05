#include "interop/shell_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "interop/shell_pattern.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;
using Kind = Node::Kind;

std::string shell_base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// An unquoted * or ?, which bash replaces by names of files.
bool has_bare_star(const Text& raw) {
    for (size_t i = 0; i < raw.size(); i = end_of_quoted(raw, i, "")) {
        const bool is_parameter = i > 0 && raw[i - 1] == '$';
        if (!raw.why(i) && !is_parameter && (raw[i] == '*' || raw[i] == '?')) return true;
    }
    return false;
}

// Around a call that may go on for ever.
struct Deeper {
    Deeper(int& depth, const std::string& file, int line) : depth_(depth) {
        constexpr int kDeepest = 160;
        if (++depth_ > kDeepest) {
            --depth_;
            refuse_script(file, line,
                          "commands and functions run inside each other too deeply: give the arguments of the run as a plain "
                          "text file");
        }
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    int& depth_;
};

}  // namespace

std::string Interpreter::where_of(Place place) const { return fmt::format("{}:{}", file_of(place), place.line); }

std::string Interpreter::line_of(Place place) const {
    return place.file == 0 ? fmt::format("line {}", place.line) : fmt::format("line {} of {}", place.line, file_of(place));
}

void Interpreter::require_steps(size_t n) {
    constexpr size_t kMost = 400000;
    steps_ += n;
    if (steps_ > kMost)
        throw UserError("recipe.script", path_,
                        fmt::format("{}: takes more than {} steps before it starts a run, or never ends: give the arguments of "
                                    "the run as a plain text file",
                                    path_, kMost));
}

Verdict Interpreter::succeeded() const {
    return state_.status ? Verdict::of(*state_.status == 0) : Verdict::unknown(state_.status_why);
}

Word Interpreter::word_of(const Text& t) const {
    const Text::Why why = t.why();
    return {t.chars(), where_of(t.place()),  why ? why->text : "",
            id_of(t),  why ? why->asks : "", !t.empty() && t.is_unset_or_empty()};
}

// Of variables that nothing sets their names, else which value it is.
std::string Interpreter::id_of(const Text& t) {
    std::string out;
    for (size_t i = 0; i < t.size(); ++i) {
        const Text::Why& why = t.why(i);
        if (why && (i == 0 || t.why(i - 1) != why))
            out += why->is_unset ? "\n" + why->text : fmt::format("\n{}", static_cast<const void*>(why.get()));
    }
    return out;
}

void Interpreter::run(const Node& n) {
    if (!runs()) return;
    require_steps(1);
    const Deeper deeper(depth_, file_of(n.place), n.place.line);
    const auto body = [&] { n.redirections.empty() ? run_kind(n) : run_redirected(n); };
    if (n.in_background) {
        run_apart(false, body);
        set_status(0);
    } else {
        body();
    }
    const bool may_fail = n.kind == Kind::Simple || n.kind == Kind::Test || n.kind == Kind::Arithmetic ||
                          n.kind == Kind::Subshell || (n.kind == Kind::Pipeline && !n.is_negated);
    if (may_fail && runs() && state_.ends_at_failure && conditions_ == 0 && state_.status.value_or(0) != 0) {
        state_.flow = Flow::Exits;
        out_.ended = fmt::format("{}, where a command fails under `set -e`", line_of(n.place));
    }
}

void Interpreter::condition(const Node& n) {
    ++conditions_;
    run(n);
    --conditions_;
}

void Interpreter::run_kind(const Node& n) {
    switch (n.kind) {
        case Kind::Simple: return run_simple(n);
        case Kind::Test: {
            size_t at = 0;
            const Verdict v = test_expression(n.words, at, TestKind::Double, 0);
            return set_status(v.holds ? std::optional<int>(!*v.holds) : std::nullopt, v.why);
        }
        case Kind::Arithmetic: {
            Text::Why why;
            const std::optional<int64_t> value = number(n.words.front(), why);
            return set_status(value ? std::optional<int>(*value == 0) : std::nullopt, why);
        }
        case Kind::Pipeline: return run_pipeline(n);
        case Kind::AndOr: return run_and_or(n);
        case Kind::List:
            for (const auto& part : n.parts) run(*part);
            return;
        case Kind::Subshell: return run_apart(false, [&] { run(*n.parts.front()); });
        case Kind::Group: return run(*n.parts.front());
        case Kind::If: return run_if(n, 0);
        case Kind::While: return run_while(n);
        case Kind::For: return run_for(n);
        case Kind::ForCount: return run_for_count(n);
        case Kind::Case: return run_case(n, joined(n.words.front()), 0);
        case Kind::Function: state_.functions[n.words.front().chars()] = std::make_shared<const Node>(n); return set_status(0);
    }
}

void Interpreter::run_and_or(const Node& n) {
    const std::function<void(size_t)> from = [&](size_t i) {
        // `from(i)` runs what follows the part i, whose status is set.
        if (i + 1 >= n.parts.size() || !runs()) return;
        const bool wants = n.operators[i] == "&&";
        const Verdict v = succeeded();
        const auto next = [&] {
            i + 2 < n.parts.size() ? condition(*n.parts[i + 1]) : run(*n.parts[i + 1]);
            from(i + 1);
        };
        const auto without = [&] {
            set_status(wants ? 1 : 0);
            from(i + 1);
        };
        if (!v.holds) return either(fmt::format("`{}` on {}", n.operators[i], line_of(n.parts[i]->place)), v.why, next, without);
        if (*v.holds == wants) return next();
        from(i + 1);
    };
    condition(*n.parts.front());
    from(0);
}

void Interpreter::run_if(const Node& n, size_t part) {
    if (part >= n.parts.size()) return set_status(0);
    if (part + 1 == n.parts.size()) return run(*n.parts[part]);
    condition(*n.parts[part]);
    if (!runs()) return;
    const Verdict v = succeeded();
    if (v.holds) return *v.holds ? run(*n.parts[part + 1]) : run_if(n, part + 2);
    either(
        fmt::format("`if` on {}", line_of(n.place)), v.why, [&] { run(*n.parts[part + 1]); }, [&] { run_if(n, part + 2); });
}

void Interpreter::run_case(const Node& n, const Text& word, size_t part) {
    if (part == 0) set_status(0);
    const auto body = [&](size_t i) {
        for (;; ++i) {
            run(*n.parts[i]);
            const std::string& end = n.operators[i];
            if (end == ";;&") return run_case(n, word, i + 1);
            if (end != ";&" || i + 1 >= n.parts.size()) return;
        }
    };
    for (; part < n.parts.size(); ++part) {
        Text::Why why = word.why();
        bool holds = false;
        for (const Text& raw : n.patterns[part]) {
            if (raw.chars() == "*") {
                holds = true, why = nullptr;
                break;
            }
            Text::Why unknown;
            const Pattern pattern(pattern_of(raw, unknown));
            constexpr size_t kLongest = 4096;
            if (!unknown && (!pattern.is_known() || word.size() > kLongest))
                unknown = because(fmt::format("the pattern {} is not known to Lockstep", raw.chars()));
            if (!why) why = unknown;
            if (!why && pattern.matches(word.chars())) holds = true;
            if (holds) break;
        }
        if (why)
            return either(
                fmt::format("`case` on {}", line_of(n.place)), why, [&] { body(part); }, [&] { run_case(n, word, part + 1); });
        if (holds) return body(part);
    }
}

void Interpreter::run_simple(const Node& n) {
    size_t first = 0;
    while (first < n.words.size() && end_of_assigned(n.words[first])) ++first;
    if (first == n.words.size()) {
        has_substituted_ = false;
        for (const Text& raw : n.words) assign(raw, {});
        if (!has_substituted_) set_status(0);
        return;
    }
    const Words raw(n.words.begin() + static_cast<long>(first), n.words.end());
    Words words;
    for (const Text& r : raw) {
        // What follows a word that declares is expanded there.
        if (!words.empty() && words.size() == 1 && words[0].is_known()) {
            const std::string& name = words[0].chars();
            if (name == "export" || name == "declare" || name == "typeset" || name == "local" || name == "readonly") break;
        }
        const bool lists_files = !words.empty() && (words[0].chars() == "echo" || words[0].chars() == "set") && has_bare_star(r);
        for (Text& t : fields(r)) {
            if (lists_files && t.is_known())
                t = Text::unknown(t.chars(), t.place(),
                                  because(fmt::format("only a run knows which files {} stands for", t.chars())));
            words.push_back(std::move(t));
        }
    }
    if (!runs()) return;
    std::map<std::string, std::shared_ptr<const Variable>> before;
    for (size_t i = 0; i < first; ++i) {
        const std::string name = n.words[i].chars().substr(0, end_of_name(n.words[i].chars(), 0));
        const auto found = state_.variables.find(name);
        before.try_emplace(name, found == state_.variables.end() ? nullptr : found->second);
        Variable exported;
        exported.is_exported = !words.empty();
        assign(n.words[i], exported);
    }
    if (words.empty()) return set_status(0);
    run_command(words, raw);
    for (const auto& [name, variable] : before) {  // they were those of the command
        if (variable) state_.variables[name] = variable;
        else state_.variables.erase(name);
    }
}

void Interpreter::run_command(const Words& words, const Words& raw) {
    const std::string& name = words.front().chars();
    if (words.front().is_known()) {
        if (const auto function = state_.functions.find(name); function != state_.functions.end()) {
            if (function->second) return call(*std::shared_ptr<const Node>(function->second), words);
            forget_variables(fmt::format("the function {} on {}", name, line_of(words.front().place())));
            return set_status(std::nullopt, because(fmt::format("which function {} is meant is not known", name)));
        }
        if (builtin(name, words, raw) || program(name, words)) return;
        const bool strips =
            name == "command" || name == "builtin" || name == "exec" || name == "nohup" || name == "time" || name == "eval";
        if (strips && words.size() > 1 && !words[1].chars().starts_with("-")) {
            const Deeper deeper(depth_, file_of(words[0].place()), words[0].place().line);
            const Words rest(words.begin() + 1, words.end());
            run_command(rest, Words(raw.begin() + static_cast<long>(std::min<size_t>(1, raw.size())), raw.end()));
            if (name == "exec" && runs()) {
                state_.flow = Flow::Exits;
                out_.ended = fmt::format("{}, by `exec`", line_of(words[0].place()));
            }
            return;
        }
    }
    run_external(words);
}

// `bash [-ex] FILE words`, `bash -c TEXT words`, `bash -s words` behind programs that start another.
Interpreter::ShellCall Interpreter::shell_call(const Words& words) {
    ShellCall out;
    for (size_t i = 0; i < words.size() && out.shell == SIZE_MAX; ++i) {
        const std::string name = shell_base_name(words[i].chars());
        if (words[i].is_known() && (name == "bash" || name == "sh" || name == "bash-static")) out.shell = i;
        if (words[i].is_known() && name == "python" && i == 0) return out;
    }
    if (out.shell == SIZE_MAX) return out;
    bool is_text = false, reads_input = false;
    size_t i = out.shell + 1;
    for (; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        if (word == "--") {
            ++i;
            break;
        }
        if (word.size() < 2 || (word[0] != '-' && word[0] != '+') || !words[i].is_known()) break;
        if (word.starts_with("--")) {
            i += word == "--rcfile" || word == "--init-file";
            continue;
        }
        out.ends_at_failure |= word[0] == '-' && word.find('e') != std::string::npos;
        is_text |= word.find('c') != std::string::npos;
        reads_input |= word.find('s') != std::string::npos;
        if (word.back() == 'o' || word.back() == 'O') ++i;
    }
    if (is_text) out.text = i, out.arguments = i + 1;
    else if (reads_input || i >= words.size()) out.from_input = true, out.arguments = i;
    else out.file = i, out.arguments = i + 1;
    return out;
}

// A script that the command starts, as `bash FILE words`, in a process of its own.
bool Interpreter::run_script_file(const Words& words, const ShellCall& shell) {
    const std::string first = shell_base_name(words[0].chars());
    const auto is_script = [](const std::string& word) {
        return word.ends_with(".sh") || word.ends_with(".slurm") || word.ends_with(".sbatch");
    };
    size_t at = shell.file;
    for (size_t i = 0; i < words.size() && shell.shell == SIZE_MAX && at == SIZE_MAX; ++i) {
        static const std::set<std::string> starters = {"sbatch", "srun", "mpirun", "env", "timeout", "nice", "nohup", "stdbuf"};
        if (words[i].is_known() && is_script(words[i].chars()) && (i == 0 || starters.contains(first))) at = i;
    }
    if (at >= words.size()) return false;
    const std::string& word = words[at].chars();
    std::string reason;
    const std::optional<Text> text = file_text(words[at], &reason);
    constexpr size_t kMostFiles = 20;
    if (!text || (!text->empty() && text->why(0) && !words[at].is_known()) || files_.size() > kMostFiles) return false;
    files_.push_back(words[at].is_known() ? shell_base_name(word) : word);
    paths_.push_back(word.starts_with("/") ? word : (fs::path(folder()) / word).string());
    const Text numbered = text->is_known() ? Text::of_file(text->chars(), static_cast<int>(files_.size()) - 1) : *text;
    run_apart(true, [&] {
        state_.ends_at_failure = shell.ends_at_failure;
        state_.zero = Text(paths_.back(), words[at].place());
        take_arguments(Words(words.begin() + static_cast<long>(at) + 1, words.end()), words[0].place());
        frames_.push_back({false, {}, {}});
        run_text(numbered, files_.back());
    });
    out_.ended.clear();
    return true;
}

// `bash -s words <<END`, `sbatch --nodes 2 <<END`: a script that the command reads from its input.
bool Interpreter::run_script_input(const Words& words, const ShellCall& shell) {
    const std::string name = shell_base_name(words[0].chars());
    if (!input_ || (name != "sbatch" && !shell.from_input)) return false;
    Words arguments;
    if (shell.from_input && shell.arguments < words.size())
        arguments.assign(words.begin() + static_cast<long>(shell.arguments), words.end());
    const Text text = *input_;
    if (!text.empty() && text.why(0)) return false;
    input_.reset();
    run_apart(true, [&] {
        state_.ends_at_failure = shell.ends_at_failure;
        take_arguments(arguments, words[0].place());
        frames_.push_back({false, {}, {}});
        run_text(text, file_of(words[0].place()));
    });
    input_ = text;
    out_.ended.clear();
    return true;
}

// `env S=48 command`, `srun --export=ALL,S=48 command`: what the command has besides the variables of the script.
void Interpreter::export_words(const Words& words) {
    const std::string name = shell_base_name(words[0].chars());
    const auto take = [&](const Text& t) {
        const size_t equals = t.chars().find('=');
        if (equals == std::string::npos || equals == 0 || end_of_name(t.chars(), 0) != equals) return false;
        Variable v;
        v.items[0] = t.part(equals + 1, t.size());
        v.is_exported = true;
        set(t.chars().substr(0, equals), v, t.place());
        return true;
    };
    for (size_t i = 1; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        if (name == "env") {
            if (word == "-u" && i + 1 < words.size()) state_.variables.erase(words[++i].chars());
            else if (!take(words[i]) && !word.starts_with("-")) return;
            continue;
        }
        const bool joined_by = word.starts_with("--export=");
        if (!joined_by && word != "--export") continue;
        if (!joined_by && ++i >= words.size()) return;
        const Text& list = words[i];
        for (size_t at = joined_by ? 9 : 0; at <= list.size();) {
            const size_t comma = std::min(list.chars().find(',', at), list.size());
            take(list.part(at, comma));
            at = comma + 1;
        }
    }
}

void Interpreter::run_external(const Words& words) {
    const Deeper deeper(depth_, file_of(words[0].place()), words[0].place().line);
    const std::string name = shell_base_name(words.front().chars());
    if (name != "env" && name != "srun" && name != "sbatch") return run_started(words);
    const auto variables = state_.variables;
    export_words(words);
    run_started(words);
    state_.variables = variables;
}

void Interpreter::run_started(const Words& words) {
    const std::string name = shell_base_name(words.front().chars());
    const ShellCall shell = shell_call(words);
    if (run_script_file(words, shell) || run_script_input(words, shell)) return;
    const Text::Why output = because(fmt::format("the output of `{}` is known only to a run", name));
    // Programs that rewrite a file in place.
    const bool edits = name == "perl" || name == "ed" || name == "ex" || name == "patch" || name == "yq" || name == "awk" ||
                       name == "gawk" || name == "crudini" || name == "dos2unix" || name == "install" || name == "rsync";
    for (size_t i = 1; edits && i < words.size(); ++i) forget_file(words[i], because(fmt::format("`{}` changes it", name)));
    std::vector<Word> kept;
    for (size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i].chars();
        const bool is_script = i == shell.text;
        const bool looks_so = word.find("--") != std::string::npos && word.find(".py") != std::string::npos &&
                              std::any_of(word.begin(), word.end(), is_shell_space);
        if (!is_script && !looks_so) {
            kept.push_back(word_of(words[i]));
            continue;
        }
        try {
            run_apart(true, [&] {
                if (is_script) {
                    state_.ends_at_failure = shell.ends_at_failure;
                    const size_t behind = i + 1;
                    if (behind < words.size()) state_.zero = words[behind];
                    const auto first = words.begin() + static_cast<long>(std::min(behind + 1, words.size()));
                    take_arguments(Words(first, words.end()), words[0].place());
                }
                run_text(words[i], file_of(words[i].place()));
            });
            out_.ended.clear();
        } catch (const UserError&) {
            if (is_script) throw;
            kept.push_back(word_of(words[i]));
        }
    }
    if (!discards_) {
        constexpr size_t kMost = 10000;
        if (out_.commands.size() < kMost) {
            const Text::Why maybe = maybe_.empty() ? nullptr : maybe_.back();
            out_.commands.push_back({std::move(kept), maybe ? maybe->text : "", maybe ? maybe->asks : "", folder()});
        }
    }
    print_unknown(words[0].place(), output);
    set_status(std::nullopt, because(fmt::format("whether `{}` succeeds is known only to a run", name)));
}

void Interpreter::run_text(const Text& text, const std::string& origin) {
    const Deeper deeper(depth_, origin, text.line());
    require_steps(1 + text.size() / 8);
    const std::shared_ptr<const Node> parsed = parse_script(text, origin);
    run(*parsed);
}

}  // namespace lockstep::interop
