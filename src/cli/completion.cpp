// `lockstep completion SHELL` and `lockstep man`: made from the same table of commands and flags that --help prints.
#include "cli/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "base/build_info.h"
#include "base/shipped.h"
#include "compile/recipe.h"

namespace lockstep::cli {
namespace {

using Words = std::vector<std::string>;

// A command as one types it, "lockstep data prepare", with its flags.
struct CommandWords {
    std::string name;
    const CLI::App* app;
    Words subcommands, flags;  // flags: "--json"
};

Words flags_of(const CLI::App& app) {
    Words out;
    for (const CLI::Option* o : app.get_options()) {
        for (const std::string& name : o->get_lnames()) out.push_back("--" + name);
    }
    return out;
}

void add_words(const CLI::App& app, const std::string& name, std::vector<CommandWords>& out) {
    CommandWords entry{name, &app, {}, flags_of(app)};
    for (const CLI::App* sub : app.get_subcommands({})) entry.subcommands.push_back(sub->get_name());
    out.push_back(entry);
    for (const CLI::App* sub : app.get_subcommands({})) add_words(*sub, name + " " + sub->get_name(), out);
}

std::vector<CommandWords> words_of(const CLI::App& root) {
    std::vector<CommandWords> out;
    add_words(root, "lockstep", out);
    return out;
}

// "--section.key" of every key that acts.
Words recipe_flags() {
    Words out;
    for (const compile::RecipeKey& k : compile::recipe_keys()) {
        if (k.status == compile::KeyStatus::Acts) out.push_back("--" + k.name);
    }
    return out;
}

// What the value of a flag may be; files too where it may be one.
struct Values {
    Words words;
    bool and_files = true;
};

Values values_of(const std::string& flag, const Allowed& allowed, bool is_switch) {
    if (flag == "cluster" || flag == "cluster.file" || flag == "machine") return {shipped_names(Shipped::Clusters)};
    if (flag == "cluster.stack") return {shipped_names(Shipped::Stacks)};
    if (flag == "against") return {shipped_names(Shipped::Recipes)};
    if (is_switch) return {{"true", "false"}, false};
    if (allowed.restricts_text()) return {allowed.words(), false};
    return {};
}

Values values_of(const compile::RecipeKey& k) {
    return values_of(k.name, k.allowed, std::holds_alternative<bool>(k.default_value));
}

// A flag whose words CLI11 knows says so in its type: "TEXT:{text,json}".
Values values_of(const CLI::Option& option, const std::string& flag) {
    const std::string type = option.get_type_name();
    const size_t open = type.find('{'), close = type.find('}');
    if (open == type.npos || close == type.npos) return values_of(flag, Allowed{}, false);
    return {CLI::detail::split(type.substr(open + 1, close - open - 1), ','), false};
}

// Does its first word name a recipe?
bool takes_recipe(const CommandWords& e) { return e.app->get_option_no_throw("recipe") != nullptr; }

// The values of every flag and key that have some, by "--flag": one list for all commands.
std::map<std::string, Values> all_values(const std::vector<CommandWords>& entries) {
    std::map<std::string, Values> out;
    for (const CommandWords& e : entries) {
        for (const CLI::Option* o : e.app->get_options()) {
            for (const std::string& flag : o->get_lnames()) {
                if (Values v = values_of(*o, flag); !v.words.empty()) out["--" + flag] = std::move(v);
            }
        }
    }
    for (const compile::RecipeKey& k : compile::recipe_keys()) {
        if (k.status != compile::KeyStatus::Acts) continue;
        if (Values v = values_of(k); !v.words.empty()) out["--" + k.name] = std::move(v);
    }
    return out;
}

// What may follow the words of `e`: its subcommands, else its flags, and recipe keys where the command takes them.
Words candidates(const CommandWords& e, const Words& keys) {
    if (!e.subcommands.empty()) {
        Words out = e.subcommands;
        out.insert(out.end(), e.flags.begin(), e.flags.end());
        return out;
    }
    Words out = e.flags;
    if (e.app->get_allow_extras()) out.insert(out.end(), keys.begin(), keys.end());
    return out;
}

std::string bash(const std::vector<CommandWords>& entries) {
    std::string cases, values;
    for (const CommandWords& e : entries)
        cases += fmt::format("        '{}') words='{}'{} ;;\n", e.name, fmt::join(candidates(e, recipe_flags()), " "),
                             takes_recipe(e) ? " names=$recipes" : "");
    for (const auto& [flag, v] : all_values(entries))
        values += fmt::format("        {}) values='{}' files={} ;;\n", flag, fmt::join(v.words, " "), v.and_files ? "1" : "");
    return fmt::format(
        R"(# bash completion of lockstep. Install: lockstep completion bash > /usr/share/bash-completion/completions/lockstep
_lockstep() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} command=lockstep words= names= values= files=1 i
    local recipes='{}'
    local flag=${{COMP_WORDS[COMP_CWORD - 1]}}
    if [[ $current == = ]]; then current=; elif [[ $flag == = ]]; then flag=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
    for ((i = 1; i < COMP_CWORD; ++i)); do
        case "$command ${{COMP_WORDS[i]}}" in
        {}) command="$command ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case $command in
{}    esac
    case $flag in
{}    esac
    COMPREPLY=()
    if [[ -n $values && $current != -* ]]; then
        names=$values
    elif [[ $current == -* || $command == lockstep || $command == 'lockstep data' ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    fi
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current"; [[ -z $files ]] || compgen -f -- "$current")
}}
complete -o filenames -F _lockstep lockstep
)",
        fmt::join(shipped_names(Shipped::Recipes), " "),
        [&] {
            Words names;
            for (const CommandWords& e : entries) {
                if (e.name != "lockstep") names.push_back("'" + e.name + "'");
            }
            return fmt::format("{}", fmt::join(names, " | "));
        }(),
        cases, values);
}

// A description inside single quotes of a shell, on one line.
std::string quoted(std::string text) {
    std::string out;
    for (char c : text) {
        if (c == '\'') out += "'\\''";
        else if (c == '\n') out += ' ';
        else out += c;
    }
    return out;
}

// The same for zsh's _arguments, whose specifications end at brackets and colons.
std::string zsh_text(const std::string& text) {
    std::string out;
    for (char c : quoted(text)) {
        if (c == '[' || c == ']' || c == ':') out += '\\';
        out += c;
    }
    return out;
}

std::string zsh_values(const Values& v) {
    if (v.words.empty()) return ":value:_files";
    const std::string words = fmt::format("({})", fmt::join(v.words, " "));
    return v.and_files ? fmt::format(":value:{{_alternative \"names\\:name\\:{}\" \"files\\:file\\:_files\"}}", words)
                       : ":value:" + words;
}

std::string zsh(const std::vector<CommandWords>& entries) {
    std::string functions;
    const std::string recipes = zsh_values({shipped_names(Shipped::Recipes)});
    for (const CommandWords& e : entries) {
        std::string name = e.name;
        std::replace(name.begin(), name.end(), ' ', '_');
        functions += fmt::format("_{}() {{\n", name);
        if (!e.subcommands.empty()) {
            functions += "    local -a commands=(\n";
            for (const CLI::App* sub : e.app->get_subcommands({}))
                functions += fmt::format("        '{}:{}'\n", sub->get_name(), zsh_text(sub->get_description()));
            functions += fmt::format(
                "    )\n    if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                "    shift words; (( CURRENT-- ))\n    (( $+functions[_{0}_$words[1]] )) && _{0}_$words[1]\n}}\n",
                name);
            continue;
        }
        functions += "    _arguments -S \\\n";
        for (const CLI::Option* o : e.app->get_options()) {
            const bool takes_value = o->get_expected_max() > 0;
            for (const std::string& flag : o->get_lnames())
                functions += fmt::format("        '*--{}[{}]{}' \\\n", flag, zsh_text(o->get_description()),
                                         takes_value ? zsh_values(values_of(*o, flag)) : "");
        }
        if (e.app->get_allow_extras()) {
            for (const compile::RecipeKey& k : compile::recipe_keys()) {
                if (k.status == compile::KeyStatus::Acts)
                    functions += fmt::format("        '--{}[{}]{}' \\\n", k.name, zsh_text(k.help),
                                             values_of(k).words.empty() ? ":value:" : zsh_values(values_of(k)));
            }
        }
        functions += fmt::format("        '*{}'\n}}\n", takes_recipe(e) ? recipes : ":file:_files");
    }
    return "#compdef lockstep\n# zsh completion of lockstep. Install: lockstep completion zsh > "
           "/usr/share/zsh/vendor-completions/_lockstep\n" +
           functions + "_lockstep \"$@\"\n";
}

std::string fish_values(const Values& v) {
    if (v.words.empty()) return " -r";
    return fmt::format(" -r{} -a '{}'", v.and_files ? "" : " -f", fmt::join(v.words, " "));
}

std::string fish(const std::vector<CommandWords>& entries) {
    std::string out =
        "# fish completion of lockstep. Install: lockstep completion fish > /usr/share/fish/vendor_completions.d/lockstep.fish\n";
    for (const CommandWords& e : entries) {
        // "lockstep data prepare": seen data and prepare. The root: no command seen yet.
        const std::string path = e.name.size() > 9 ? e.name.substr(9) : "";
        std::string condition = "__fish_use_subcommand";
        if (!path.empty()) {
            Words seen;
            for (size_t at = 0; at < path.size();) {
                const size_t space = std::min(path.find(' ', at), path.size());
                seen.push_back("__fish_seen_subcommand_from " + path.substr(at, space - at));
                at = space + 1;
            }
            condition = fmt::format("{}", fmt::join(seen, "; and "));
        }
        for (const CLI::App* sub : e.app->get_subcommands({}))
            out += fmt::format("complete -c lockstep -f -n '{}' -a {} -d '{}'\n", condition, sub->get_name(),
                               quoted(sub->get_description()));
        if (takes_recipe(e))
            out +=
                fmt::format("complete -c lockstep -n '{}' -a '{}'\n", condition, fmt::join(shipped_names(Shipped::Recipes), " "));
        for (const CLI::Option* o : e.app->get_options()) {
            for (const std::string& flag : o->get_lnames())
                out +=
                    fmt::format("complete -c lockstep -n '{}' -l {}{} -d '{}'\n", condition, flag,
                                o->get_expected_max() > 0 ? fish_values(values_of(*o, flag)) : "", quoted(o->get_description()));
        }
        if (e.app->get_allow_extras()) {
            for (const compile::RecipeKey& k : compile::recipe_keys()) {
                if (k.status == compile::KeyStatus::Acts)
                    out += fmt::format("complete -c lockstep -n '{}' -l {}{} -d '{}'\n", condition, k.name,
                                       fish_values(values_of(k)), quoted(k.help));
            }
        }
    }
    return out;
}

// For troff: backslashes and hyphens escaped, no line begins with a control character.
std::string roff(const std::string& text) {
    std::string out;
    for (char c : text) {
        if (c == '\\') out += "\\e";
        else if (c == '-') out += "\\-";
        else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += fmt::format("\\&{}", c);
        else out += c;
    }
    return out;
}

std::string man_page(const CLI::App& root, const std::vector<CommandWords>& entries) {
    std::string out = fmt::format(
        ".TH LOCKSTEP 1 \"\" \"lockstep {0}\" \"User Commands\"\n.SH NAME\nlockstep \\- {1}\n.SH SYNOPSIS\n.B lockstep\n"
        "\\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n.SH DESCRIPTION\n{1}\n",
        build_info().version, roff(root.get_description()));
    out += ".SH COMMANDS\n";
    for (const CommandWords& e : entries) {
        if (!e.subcommands.empty()) continue;
        std::string usage = e.name;
        for (const CLI::Option* o : e.app->get_options()) {
            if (o->get_positional())
                usage += o->get_required() ? " " + o->get_name(true, false) : fmt::format(" [{}]", o->get_name(true, false));
        }
        out += fmt::format(".SS {}\n{}.\n", roff(usage), roff(e.app->get_description()));
        for (const CLI::Option* o : e.app->get_options()) {
            if (o->get_lnames().empty()) continue;
            out += fmt::format(".TP\n.B {}\n{}\n", roff("--" + fmt::format("{}", fmt::join(o->get_lnames(), ", --"))),
                               roff(o->get_description()));
        }
        if (e.app->get_allow_extras())
            out += ".TP\n.B \\-\\-section.key VALUE\nAny key of the recipe. `lockstep recipe` lists them.\n";
        if (!e.app->get_footer().empty()) out += fmt::format(".PP\n{}\n", roff(e.app->get_footer()));
    }
    out +=
        ".SH EXIT STATUS\n0: done. 1: refused; the message says what to change. 2: wrong usage. 3: failed while running. 4: "
        "stopped on request, "
        "with a checkpoint.\n.SH SEE ALSO\nThe documents in /usr/share/doc/lockstep.\n";
    return out;
}

}  // namespace

Command add_completion(CLI::App& app) {
    const auto shell = std::make_shared<std::string>();
    CLI::App* command = app.add_subcommand("completion", "print a completion script for commands, flags and recipe keys");
    command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
    command->footer("Example: lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep");
    return {.app = command, .run = [&app, shell](comm::ProcessGroup&) {
                const std::vector<CommandWords> entries = words_of(app);
                fmt::print("{}", *shell == "bash" ? bash(entries) : *shell == "zsh" ? zsh(entries) : fish(entries));
                return static_cast<int>(kDone);
            }};
}

Command add_man(CLI::App& app) {
    CLI::App* command = app.add_subcommand("man", "print the manual page of all commands");
    command->footer("Example: lockstep man | man -l -");
    return {.app = command, .run = [&app](comm::ProcessGroup&) {
                fmt::print("{}", man_page(app, words_of(app)));
                return static_cast<int>(kDone);
            }};
}

}  // namespace lockstep::cli
