#include "interop/shell_programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "interop/shell_regex.h"

namespace lockstep::interop {
namespace {

using Output = std::optional<ProgramOutput>;
using Strings = std::vector<std::string>;

constexpr size_t kMostText = 1 << 16;

// Options of one letter, "-d, -f1" or "-d ',' -f 1", and what is left.
struct ShellOptions {
    std::map<char, std::string> given;
    Strings rest;
    bool has(char c) const { return given.contains(c); }
    std::string of(char c, const std::string& otherwise = "") const { return has(c) ? given.at(c) : otherwise; }
};

// `letters`: those that are known; one that takes a value is followed by ':'.
std::optional<ShellOptions> shell_options(const Strings& arguments, const std::string& letters) {
    ShellOptions out;
    bool ended = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& word = arguments[i];
        if (ended || word.size() < 2 || word[0] != '-') {
            out.rest.push_back(word);
            continue;
        }
        if (word == "--") {
            ended = true;
            continue;
        }
        for (size_t k = 1; k < word.size(); ++k) {
            const size_t known = letters.find(word[k]);
            if (known == std::string::npos || word[k] == ':') return std::nullopt;
            if (letters.compare(known + 1, 1, ":") != 0) {
                out.given[word[k]] = "";
                continue;
            }
            if (k + 1 < word.size()) out.given[word[k]] = word.substr(k + 1);
            else if (i + 1 < arguments.size()) out.given[word[k]] = arguments[++i];
            else return std::nullopt;
            break;
        }
    }
    return out;
}

// The files that are named, or the input where none is.
std::optional<std::string> shell_text(const ProgramInputs& in, const Strings& names) {
    if (names.empty()) return in.input;
    std::string out;
    for (const std::string& name : names) {
        const std::optional<std::string> text = name == "-" ? in.input : in.file(name);
        if (!text || out.size() + text->size() > 16 * kMostText) return std::nullopt;
        out += *text;
    }
    return out;
}

std::optional<long> shell_count(const std::string& text) {
    constexpr size_t kDigits = 9;
    const std::string digits = text.starts_with("-") ? text.substr(1) : text;
    if (digits.empty() || digits.size() > kDigits || digits.find_first_not_of("0123456789") != std::string::npos)
        return std::nullopt;
    return std::stol(text);
}

std::string shell_joined_lines(const Strings& lines) {
    std::string out;
    for (const std::string& line : lines) out += line + "\n";
    return out;
}

// "1,3-5,7-": is the field n, from 1, among them?
std::optional<bool> is_selected(const std::string& list, size_t n) {
    for (size_t at = 0; at <= list.size();) {
        const size_t next = std::min(list.find(',', at), list.size());
        const std::string part = list.substr(at, next - at);
        const size_t dash = part.find('-');
        const auto from = part.starts_with("-") ? std::optional<long>(1) : shell_count(part.substr(0, dash));
        const auto to = dash == std::string::npos ? from
                        : dash + 1 == part.size() ? std::optional<long>(1L << 30)
                                                  : shell_count(part.substr(dash + 1));
        if (!from || !to) return std::nullopt;
        if (static_cast<long>(n) >= *from && static_cast<long>(n) <= *to) return true;
        at = next + 1;
    }
    return false;
}

Output run_cut(const ProgramInputs& in) {
    const auto o = shell_options(in.arguments, "d:f:c:b:s");
    if (!o) return std::nullopt;
    const auto text = shell_text(in, o->rest);
    const std::string separator = o->of('d', "\t");
    if (!text || separator.size() != 1 || (!o->has('f') && !o->has('c') && !o->has('b'))) return std::nullopt;
    Strings out;
    for (const std::string& line : lines_of(*text)) {
        std::string kept;
        if (o->has('f')) {
            if (line.find(separator) == std::string::npos) {
                if (!o->has('s')) out.push_back(line);
                continue;
            }
            bool first = true;
            size_t n = 1;
            for (size_t at = 0; at <= line.size(); ++n) {
                const size_t next = std::min(line.find(separator, at), line.size());
                const auto selected = is_selected(o->of('f'), n);
                if (!selected) return std::nullopt;
                if (*selected) kept += (first ? "" : separator) + line.substr(at, next - at), first = false;
                at = next + 1;
            }
        } else {
            for (size_t i = 0; i < line.size(); ++i) {
                const auto selected = is_selected(o->has('c') ? o->of('c') : o->of('b'), i + 1);
                if (!selected) return std::nullopt;
                if (*selected) kept += line[i];
            }
        }
        out.push_back(kept);
    }
    return ProgramOutput{shell_joined_lines(out)};
}

// "a-z", "[:upper:]", "\n" as the characters that they stand for.
std::optional<std::string> shell_set(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text.compare(i, 2, "[:") == 0) {
            const size_t end = text.find(":]", i);
            if (end == std::string::npos) return std::nullopt;
            const std::string name = text.substr(i + 2, end - i - 2);
            for (int c = 0; c < 128; ++c) {
                const bool holds = name == "upper"   ? std::isupper(c)
                                   : name == "lower" ? std::islower(c)
                                   : name == "digit" ? std::isdigit(c)
                                   : name == "space" ? std::isspace(c)
                                   : name == "alpha" ? std::isalpha(c)
                                   : name == "alnum" ? std::isalnum(c)
                                   : name == "punct" ? std::ispunct(c)
                                                     : 0;
                if (holds) out += static_cast<char>(c);
            }
            i = end + 1;
            continue;
        }
        char c = text[i];
        if (c == '\\' && i + 1 < text.size()) {
            c = text[++i];
            if (std::isdigit(static_cast<unsigned char>(c))) return std::nullopt;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        if (i + 2 < text.size() && text[i + 1] == '-' &&
            static_cast<unsigned char>(text[i + 2]) >= static_cast<unsigned char>(c)) {
            for (int k = static_cast<unsigned char>(c); k <= static_cast<unsigned char>(text[i + 2]); ++k)
                out += static_cast<char>(k);
            i += 2;
        } else {
            out += c;
        }
    }
    return out;
}

Output run_tr(const ProgramInputs& in) {
    const auto o = shell_options(in.arguments, "dscC");
    if (!o || !in.input || o->rest.empty() || o->rest.size() > 2) return std::nullopt;
    auto from = shell_set(o->rest[0]), to = o->rest.size() > 1 ? shell_set(o->rest[1]) : std::optional<std::string>("");
    if (!from || !to || (to->empty() && !o->has('d') && !o->has('s'))) return std::nullopt;
    if (o->has('c') || o->has('C')) {
        std::string others;
        for (int c = 0; c < 256; ++c) {
            if (from->find(static_cast<char>(c)) == std::string::npos) others += static_cast<char>(c);
        }
        from = others;
    }
    std::string out;
    const std::string& squeezed = o->has('s') ? (to->empty() ? *from : *to) : std::string();
    for (const char c : *in.input) {
        const size_t at = from->find(c);
        char made = c;
        if (at != std::string::npos && o->has('d')) continue;
        if (at != std::string::npos && !to->empty()) made = (*to)[std::min(at, to->size() - 1)];
        if (o->has('s') && !out.empty() && out.back() == made && squeezed.find(made) != std::string::npos) continue;
        out += made;
    }
    return ProgramOutput{out};
}

Output run_seq(const ProgramInputs& in) {
    // A negative number is no option.
    Strings numbers;
    std::string separator = "\n";
    for (size_t i = 0; i < in.arguments.size(); ++i) {
        const std::string& word = in.arguments[i];
        if (word == "-s" && i + 1 < in.arguments.size()) separator = in.arguments[++i];
        else if (word.starts_with("-s")) separator = word.substr(2);
        else numbers.push_back(word);
    }
    std::vector<long> n;
    for (const std::string& word : numbers) {
        const auto value = shell_count(word);
        if (!value) return std::nullopt;
        n.push_back(*value);
    }
    if (n.empty() || n.size() > 3) return std::nullopt;
    const long first = n.size() > 1 ? n.front() : 1, last = n.back(), step = n.size() == 3 ? n[1] : 1;
    constexpr long kMost = 10000;
    if (step == 0 || (last - first) / step > kMost) return std::nullopt;
    Strings out;
    for (long i = first; step > 0 ? i <= last : i >= last; i += step) out.push_back(std::to_string(i));
    return ProgramOutput{out.empty() ? "" : fmt::format("{}\n", fmt::join(out, separator))};
}

Output run_wc(const ProgramInputs& in) {
    const auto o = shell_options(in.arguments, "lwcm");
    if (!o || o->given.size() != 1) return std::nullopt;
    const auto text = shell_text(in, o->rest);
    if (!text || o->rest.size() > 1) return std::nullopt;
    long n = static_cast<long>(text->size());
    if (o->has('l')) n = std::count(text->begin(), text->end(), '\n');
    if (o->has('w')) {
        n = 0;
        for (size_t i = 0; i < text->size(); ++i)
            n += !std::isspace(static_cast<unsigned char>((*text)[i])) &&
                 (i == 0 || std::isspace(static_cast<unsigned char>((*text)[i - 1])));
    }
    if (o->has('m') && std::any_of(text->begin(), text->end(), [](char c) { return c < 0; })) return std::nullopt;
    return ProgramOutput{o->rest.empty() ? fmt::format("{}\n", n) : fmt::format("{} {}\n", n, o->rest[0])};
}

// head and tail: -n N, -N; of tail +N.
Output run_ends(const ProgramInputs& in, bool is_head) {
    std::string count = "10";
    Strings names;
    for (size_t i = 0; i < in.arguments.size(); ++i) {
        const std::string& word = in.arguments[i];
        if (word == "-n" && i + 1 < in.arguments.size()) count = in.arguments[++i];
        else if (word.starts_with("-n")) count = word.substr(2);
        else if (word.size() > 1 && word[0] == '-') count = word.substr(1);
        else names.push_back(word);
    }
    const bool from = !is_head && count.starts_with("+");
    const auto n = shell_count(from ? count.substr(1) : count);
    const auto text = shell_text(in, names);
    if (!n || *n < 0 || !text || names.size() > 1) return std::nullopt;
    const Strings lines = lines_of(*text);
    const size_t size = lines.size(), k = std::min(static_cast<size_t>(*n), size);
    const size_t begin = is_head ? 0
                         : from  ? static_cast<size_t>(std::clamp<long>(*n - 1, 0, static_cast<long>(size)))
                                 : size - k;
    return ProgramOutput{shell_joined_lines(
        Strings(lines.begin() + static_cast<long>(begin), is_head ? lines.begin() + static_cast<long>(k) : lines.end()))};
}

Output run_sort(const ProgramInputs& in) {
    const auto o = shell_options(in.arguments, "nru");
    if (!o) return std::nullopt;
    const auto text = shell_text(in, o->rest);
    if (!text) return std::nullopt;
    Strings lines = lines_of(*text);
    if (o->has('n')) {
        if (!std::all_of(lines.begin(), lines.end(), [](const std::string& l) { return shell_count(l).has_value(); }))
            return std::nullopt;
        std::sort(lines.begin(), lines.end(),
                  [](const std::string& a, const std::string& b) { return *shell_count(a) < *shell_count(b); });
    } else {
        // The order of other characters is that of the locale.
        const auto is_plain = [](const std::string& l) {
            return std::all_of(l.begin(), l.end(), [](char c) {
                return std::islower(static_cast<unsigned char>(c)) || std::isdigit(static_cast<unsigned char>(c));
            });
        };
        if (!std::all_of(lines.begin(), lines.end(), is_plain)) return std::nullopt;
        std::sort(lines.begin(), lines.end());
    }
    if (o->has('u')) lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
    if (o->has('r')) std::reverse(lines.begin(), lines.end());
    return ProgramOutput{shell_joined_lines(lines)};
}

Output run_grep(const ProgramInputs& in) {
    const auto o = shell_options(in.arguments, "ciqvoEFPwxhse:m:");
    if (!o || o->has('F') || o->has('x')) return std::nullopt;
    Strings names = o->rest, patterns;
    for (size_t i = 0; i + 1 < in.arguments.size(); ++i) {
        const std::string& word = in.arguments[i];
        if (word.starts_with("-") && !word.starts_with("--") && word.ends_with("e")) patterns.push_back(in.arguments[i + 1]);
    }
    if (o->has('e') && patterns.empty()) patterns.push_back(o->of('e'));
    if (!o->has('e')) {
        if (names.empty()) return std::nullopt;
        patterns = {names.front()};
        names.erase(names.begin());
    }
    const auto text = shell_text(in, names);
    const auto most = shell_count(o->of('m', "999999999"));
    if (!text || !most || names.size() > 1 || (o->has('o') && (patterns.size() > 1 || o->has('w')))) return std::nullopt;
    const Regex::Kind kind = o->has('P') ? Regex::Kind::Perl : o->has('E') ? Regex::Kind::Extended : Regex::Kind::Basic;
    std::vector<Regex> others;
    for (const std::string& pattern : patterns) {
        constexpr const char* kSpecial = ".[]{}()*+?|^$\\";
        if (o->has('w') && pattern.find_first_of(kSpecial) != std::string::npos) return std::nullopt;
        const auto one = Regex::compile(o->has('w') ? "(?<!\\w)" + pattern + "(?!\\w)" : pattern,
                                        o->has('w') ? Regex::Kind::Perl : kind, o->has('i'));
        if (!one) return std::nullopt;
        others.push_back(*one);
    }
    const Regex first = others.front(), *const regex = &first;
    others.erase(others.begin());
    Strings out;
    for (const std::string& line : lines_of(*text)) {
        if (static_cast<long>(out.size()) >= *most && !o->has('o')) break;
        if (o->has('m') && o->has('o') && !out.empty()) return std::nullopt;
        auto found = regex->find(line, 0);
        for (const Regex& other : others) {
            if (!found) found = other.find(line, 0);
            if (other.failed()) return std::nullopt;
        }
        if (regex->failed()) return std::nullopt;
        if (found.has_value() == o->has('v')) continue;
        if (!o->has('o')) out.push_back(line);
        while (o->has('o') && found) {
            const auto [begin, end] = found->front();
            if (end > begin) out.push_back(line.substr(begin, end - begin));
            found = end < line.size() ? regex->find(line, end > begin ? end : end + 1) : std::nullopt;
        }
    }
    ProgramOutput result{o->has('q') ? "" : o->has('c') ? fmt::format("{}\n", out.size()) : shell_joined_lines(out)};
    result.status = out.empty() ? 1 : 0;
    return result;
}

Output run_basename(const ProgramInputs& in) {
    if (in.arguments.empty() || in.arguments.size() > 2 || in.arguments[0].starts_with("-")) return std::nullopt;
    std::string path = in.arguments[0];
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::string name = path == "/" ? path : path.substr(path.rfind('/') + 1);
    const std::string suffix = in.arguments.size() > 1 ? in.arguments[1] : "";
    if (name.size() > suffix.size() && name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    return ProgramOutput{name + "\n"};
}

Output run_dirname(const ProgramInputs& in) {
    if (in.arguments.size() != 1 || in.arguments[0].starts_with("-")) return std::nullopt;
    std::string path = in.arguments[0];
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ProgramOutput{".\n"};
    path.resize(slash);
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return ProgramOutput{(path.empty() ? "/" : path) + "\n"};
}

Output run_cat(const ProgramInputs& in) {
    for (const std::string& name : in.arguments) {
        if (name.size() > 1 && name[0] == '-') return std::nullopt;
    }
    const auto text = shell_text(in, in.arguments);
    return text ? Output(ProgramOutput{*text}) : std::nullopt;
}

// The words of the input on one line, behind those of the command.
Output run_xargs(const ProgramInputs& in) {
    Strings words = in.arguments;
    bool ends_line = true;
    if (!words.empty() && words.front() == "echo") words.erase(words.begin());
    else if (!words.empty()) return std::nullopt;
    if (!words.empty() && words.front() == "-n") words.erase(words.begin()), ends_line = false;
    if (!words.empty() && words.front().starts_with("-")) return std::nullopt;
    if (!in.input || in.input->find_first_of("'\"\\") != std::string::npos) return std::nullopt;
    std::string word;
    for (const char c : *in.input + "\n") {
        if (!std::isspace(static_cast<unsigned char>(c))) word += c;
        else if (!word.empty()) words.push_back(std::move(word)), word.clear();
    }
    return ProgramOutput{fmt::format("{}{}", fmt::join(words, " "), ends_line ? "\n" : "")};
}

Output run_uniq(const ProgramInputs& in) {
    if (!in.arguments.empty() || !in.input) return std::nullopt;
    Strings lines = lines_of(*in.input);
    lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
    return ProgramOutput{shell_joined_lines(lines)};
}

Output run_rev(const ProgramInputs& in) {
    if (!in.arguments.empty() || !in.input) return std::nullopt;
    Strings lines = lines_of(*in.input);
    for (std::string& line : lines) {
        if (std::any_of(line.begin(), line.end(), [](char c) { return c < 0; })) return std::nullopt;
        std::reverse(line.begin(), line.end());
    }
    return ProgramOutput{shell_joined_lines(lines)};
}

// Without looking at links.
Output run_realpath(const ProgramInputs& in) {
    const Strings& a = in.arguments;
    const std::string path = a.empty() ? "" : a.back();
    const bool plain = a.size() == 1 || (a.size() == 2 && (a[0] == "-f" || a[0] == "-m" || a[0] == "-s" || a[0] == "-e"));
    if (!plain || !path.starts_with("/")) return std::nullopt;
    std::string out = std::filesystem::path(path).lexically_normal().string();
    if (out.size() > 1 && out.back() == '/') out.pop_back();
    return ProgramOutput{out + "\n"};
}

using Run = Output (*)(const ProgramInputs&);
const std::map<std::string, Run>& shell_programs() {
    static const std::map<std::string, Run> all = {{"basename", run_basename},
                                                   {"cat", run_cat},
                                                   {"cut", run_cut},
                                                   {"dirname", run_dirname},
                                                   {"egrep",
                                                    [](const ProgramInputs& in) {
                                                        ProgramInputs extended = in;
                                                        extended.arguments.insert(extended.arguments.begin(), "-E");
                                                        return run_grep(extended);
                                                    }},
                                                   {"expr", run_expr},
                                                   {"grep", run_grep},
                                                   {"head", [](const ProgramInputs& in) { return run_ends(in, true); }},
                                                   {"readlink", run_realpath},
                                                   {"realpath", run_realpath},
                                                   {"rev", run_rev},
                                                   {"sed", run_sed},
                                                   {"seq", run_seq},
                                                   {"sort", run_sort},
                                                   {"tail", [](const ProgramInputs& in) { return run_ends(in, false); }},
                                                   {"tr", run_tr},
                                                   {"uniq", run_uniq},
                                                   {"wc", run_wc},
                                                   {"xargs", run_xargs}};
    return all;
}

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
    Strings out;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        out.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

bool is_shell_program(const std::string& name) { return shell_programs().contains(name); }

bool keeps_unknown(const std::string& name) {
    static const std::set<std::string> all = {"basename", "cat", "dirname", "head", "sed", "tail", "xargs"};
    return all.contains(name);
}

std::optional<ProgramOutput> run_program(const std::string& name, const ProgramInputs& in) {
    size_t size = in.input ? in.input->size() : 0;
    for (const std::string& word : in.arguments) size += word.size();
    return size > kMostText ? std::nullopt : shell_programs().at(name)(in);
}

}  // namespace lockstep::interop
