// Files that a script reads and writes, and programs that are computed here.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text_file.h"
#include "interop/shell_interpreter.h"
#include "interop/shell_pattern.h"
#include "interop/shell_programs.h"

namespace lockstep::interop {

namespace fs = std::filesystem;

namespace {

// What sets up an environment (compilers, Python, modules), not the variables of a run.
bool is_environment_file(const std::string& name) {
    constexpr const char* parts[] = {"bashrc",  "bash_profile", "profile", "activate", "conda.sh", "setvars.sh",
                                     "modules", "nvm.sh",       "/etc/",   "mamba.sh", "cargo/env"};
    return std::any_of(std::begin(parts), std::end(parts), [&](const char* p) { return name.find(p) != std::string::npos; });
}

}  // namespace

std::string Interpreter::resolved(const Text& name) const {
    if (name.chars().starts_with("/")) return fs::path(name.chars()).lexically_normal().string();
    return fs::absolute(name.chars()).lexically_normal().string();
}

std::string Interpreter::path_of(const Text& name) const {
    return name.is_known() ? (folder() / fs::path(name.chars())).lexically_normal().string() : name.chars() + id_of(name);
}

bool Interpreter::is_removed(const Text& name) const {
    const auto found = state_.files.find(path_of(name));
    return found != state_.files.end() && !found->second;
}

// What it holds is not known from here on. Nothing where there is no such file.
void Interpreter::forget_file(const Text& name, const Text::Why& why) {
    if (name.empty() || !file_text(name)) return;
    state_.files[path_of(name)] = std::make_shared<const Text>(Text::unknown("?", name.place(), why));
}

// cp, mv, ln and rm, whose options do not matter here.
void Interpreter::change_files(const std::string& name, const Words& words) {
    Words names;
    for (size_t i = 1; i < words.size(); ++i) {
        if (!words[i].chars().starts_with("-") || words[i].size() < 2) names.push_back(words[i]);
    }
    set_status(0);
    const auto remove = [&](const Text& file) {
        const std::string path = path_of(file);
        for (auto& [written, text] : state_.files) {
            if (written.starts_with(path + "/")) text = nullptr;
        }
        state_.files[path] = nullptr;
    };
    if (name == "rm") {
        for (const Text& file : names) {
            if (file.is_known() && file.chars().find_first_of("*?[") != std::string::npos) {
                const Pattern pattern(path_of(file));
                for (auto& [written, text] : state_.files) {
                    if (pattern.is_known() && pattern.matches(written)) text = nullptr;
                }
            } else {
                remove(file);
            }
        }
        return;
    }
    if (names.size() < 2) return;
    const Text to = names.back();
    names.pop_back();
    std::error_code ignored;
    const bool is_folder = names.size() > 1 || to.chars().ends_with("/") || to.chars() == "." || to.chars() == ".." ||
                           (to.is_known() && fs::is_directory(path_of(to), ignored));
    for (const Text& from : names) {
        Text target = to;
        if (is_folder) {
            target.add('/', to.place());
            target.add(from, from.chars().rfind('/') + 1, from.size());
        }
        Text source = from;
        if (name == "ln" && !from.chars().starts_with("/") && target.chars().find('/') != std::string::npos) {
            source = target.part(0, target.chars().rfind('/') + 1);
            source.add(from);
        }
        if (const std::optional<Text> text = file_text(source)) write_file(target, *text, false);
        else
            forget_file(target,
                        because(fmt::format("`{}` on {} replaces it by {}", name, line_of(words[0].place()), from.chars())));
        if (name == "mv") remove(from);
    }
}

// A file that the script has written, or one next to it.
std::optional<Text> Interpreter::file_text(const Text& name, std::string* reason) const {
    if (!name.is_known()) {
        const auto written = state_.files.find(name.chars() + id_of(name));
        return written == state_.files.end() || !written->second ? std::nullopt : std::optional(*written->second);
    }
    if (name.chars() == "/dev/stdin" || name.chars() == "/dev/fd/0") {
        if (!input_ && reason) *reason = "the input of the script is known only to a run";
        return input_;
    }
    const fs::path given(name.chars());
    const fs::path here = fs::absolute(path_).lexically_normal().parent_path(), working = fs::current_path();
    std::vector<fs::path> places;
    if (given.is_absolute()) {
        places = {given.lexically_normal()};
    } else {
        if (state_.folder.is_known()) places.push_back((state_.folder.chars() / given).lexically_normal());
        places.push_back((here / given).lexically_normal());
        places.push_back((working / given).lexically_normal());
    }
    for (const fs::path& p : places) {
        const auto written = state_.files.find(p.string());
        if (written == state_.files.end()) continue;
        if (reason) *reason = written->second ? p.string() : "the script removes it";
        return written->second ? std::optional(*written->second) : std::nullopt;
    }
    for (const fs::path& p : places) {
        // Only what belongs to the script is read: below its folder's parent, or below the working folder.
        const auto is_below = [&](const fs::path& top) {
            return top != top.root_path() && p.string().starts_with(top.string() + "/");
        };
        if (!is_below(here) && !is_below(here.parent_path()) && !is_below(working)) continue;
        std::error_code ignored;
        constexpr uintmax_t kMost = 1 << 18;
        if (!fs::is_regular_file(p, ignored) || fs::file_size(p, ignored) > kMost) continue;
        const TextFile text = read_text_file(p);
        if (!text.is_readable()) continue;
        if (reason) *reason = p.string();
        return Text::of_file(text.text, 0);
    }
    if (reason) *reason = "there is no such file next to the script";
    return std::nullopt;
}

void Interpreter::write_file(const Text& name, const Text& text, bool appends) {
    if (name.chars().starts_with("/dev/") || name.empty()) return;
    const std::string path = path_of(name);
    Text whole;
    if (const auto before = state_.files.find(path); appends && before != state_.files.end()) {
        if (before->second) whole = *before->second;
    } else if (appends && name.is_known()) {
        if (const std::optional<Text> there = file_text(name)) whole = *there;
    }
    whole.add(text);
    require_steps(1 + whole.size() / 16);
    characters_ += whole.size();
    state_.files[path] = std::make_shared<const Text>(whole);
}

void Interpreter::source(const Words& words) {
    if (words.size() < 2) return set_status(1);
    std::string reason;
    std::optional<Text> text = file_text(words[1], &reason);
    const std::string shown = words[1].chars();
    Text::Why why = words[1].why();
    if (text && !text->empty() && text->why(0)) why = text->why(0), text.reset(), may_set_all_ = true;
    if (!text) {
        set_status(0);
        out_.unread.push_back(
            {fmt::format("source {}", shown), where_of(words[0].place()), why ? why->text : reason, "", why ? why->asks : ""});
        if (is_environment_file(shown) || shown == "/dev/null") return;
        return forget_variables(fmt::format("`source {}` on {}", shown, line_of(words[0].place())));
    }
    const size_t slash = shown.rfind('/');
    files_.push_back(slash == std::string::npos ? shown : shown.substr(slash + 1));
    paths_.push_back(words[1].is_known() && reason.starts_with("/") ? reason : shown);
    const Text numbered = Text::of_file(text->chars(), static_cast<int>(files_.size()) - 1);
    const Words arguments = state_.arguments;
    const bool had_arguments = state_.has_arguments;
    const Text::Why arguments_why = state_.arguments_why;
    if (words.size() > 2) take_arguments(Words(words.begin() + 2, words.end()), words[0].place());
    frames_.push_back({false, {}, {}});
    run_text(text->is_known() ? numbered : *text, files_.back());
    end_frame(fmt::format("{}", shown));
    if (words.size() > 2)
        state_.arguments = arguments, state_.has_arguments = had_arguments, state_.arguments_why = arguments_why;
}

// False: the command is no program that is computed here.
bool Interpreter::program(const std::string& name, const Words& words) {
    const Place place = words[0].place();
    if (name == "tee") {
        const bool appends = words.size() > 1 && words[1].chars() == "-a";
        for (size_t i = appends ? 2 : 1; i < words.size() && input_; ++i) write_file(words[i], *input_, appends);
        if (input_) print(*input_);
        set_status(0);
        return true;
    }
    if (name == "cp" || name == "mv" || name == "ln" || name == "rm") return change_files(name, words), true;
    if (name == "envsubst") {
        if (words.size() != 1 || !input_) return false;
        print(document(*input_)), set_status(0);
        return true;
    }
    if (!is_shell_program(name)) return false;
    // Values that are not known pass through some programs as they are, each as three characters that no text has.
    std::vector<Text> unknown;
    Text::Why why;
    const auto encoded = [&](const Text& t) {
        std::string out;
        for (size_t i = 0; i < t.size(); ++i) {
            if (!t.why(i)) {
                out += t[i];
                continue;
            }
            if (!why) why = t.why(i);
            size_t end = i;
            while (end < t.size() && t.why(end) == t.why(i)) ++end;
            constexpr size_t kMost = 100;
            if (unknown.size() < kMost) unknown.push_back(t.part(i, end));
            out += '\x01', out += static_cast<char>('\x80' + static_cast<char>(unknown.size() - 1)), out += '\x02';
            i = end - 1;
        }
        return out;
    };
    ProgramInputs in;
    for (size_t i = 1; i < words.size(); ++i) in.arguments.push_back(encoded(words[i]));
    if (input_) in.input = encoded(*input_);
    in.file = [&](const std::string& file) {
        const std::optional<Text> text = file_text(Text(file, place));
        return text ? std::optional(encoded(*text)) : std::nullopt;
    };
    const bool in_place =
        name == "sed" && std::any_of(words.begin(), words.end(), [](const Text& t) {
            return t.chars().starts_with("--in-place") ||
                   (t.chars().starts_with("-") && !t.chars().starts_with("--") && t.chars().find('i') != std::string::npos);
        });
    const auto not_known = [&](const Text::Why& because_of) {
        if (in_place) {
            for (size_t i = 1; i < words.size(); ++i) forget_file(words[i], because("`sed -i` changes it: " + because_of->text));
            return set_status(0);
        }
        print_unknown(place, of_value(because_of));
        set_status(std::nullopt, because_of);
    };
    require_steps(10);
    const bool splits = name == "basename" || name == "dirname";  // a value that is not known may hold a /
    const bool has_paths = splits || name == "realpath" || name == "readlink";
    if (const auto end = std::find(in.arguments.begin(), in.arguments.end(), "--"); has_paths && end != in.arguments.end())
        in.arguments.erase(end);
    const size_t slash = in.arguments.empty() ? std::string::npos : in.arguments[0].rfind('/');
    const bool may_split =
        splits && why && (slash == std::string::npos || in.arguments[0].find('\x01', slash) != std::string::npos);
    const std::optional<ProgramOutput> made = run_program(name, in);
    if (why && (!keeps_unknown(name) || may_split)) return not_known(why), true;
    if (!made) return not_known(why ? why : because(fmt::format("the output of `{}` is known only to a run", name))), true;
    const auto decoded = [&](const std::string& text) -> std::optional<Text> {
        Text out;
        for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\x01') {
                out.add(text[i], place);
                continue;
            }
            const size_t k = i + 2 < text.size() ? static_cast<size_t>(static_cast<unsigned char>(text[i + 1]) - 0x80) : SIZE_MAX;
            if (k >= unknown.size() || text[i + 2] != '\x02') return std::nullopt;
            out.add(unknown[k]);
            i += 2;
        }
        return out;
    };
    const std::optional<Text> out = decoded(made->text);
    if (!out) return not_known(why ? why : because("it holds other bytes than text")), true;
    for (const auto& [file, text] : made->files) {
        const std::optional<Text> whole = decoded(text);
        if (!whole) return not_known(why ? why : because("it holds other bytes than text")), true;
        write_file(Text(file, place), *whole, false);
    }
    set_status(made->status);
    print(*out);
    return true;
}

}  // namespace lockstep::interop
