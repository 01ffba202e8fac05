// sed's s, d, p and q with addresses, and expr.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "interop/arithmetic.h"
#include "interop/shell_programs.h"
#include "interop/shell_regex.h"

namespace lockstep::interop {
namespace {

struct SedAddress {
    long line = 0;  // 0: by the expression; -1: the last
    std::optional<Regex> regex;
};

struct SedCommand {
    std::vector<SedAddress> addresses;  // none, one, or from and to
    bool is_negated = false, was_in_range = false;
    char name = 0;
    std::optional<Regex> regex;
    std::string from, by;  // of y: characters and those that they become
    bool everywhere = false, prints = false;
    long only = 0;  // the match that is replaced; 0: the first
};

class SedScript {
public:
    SedScript(const std::string& text, Regex::Kind kind) : text_(text), kind_(kind) {}

    // False: something in it is not known here.
    bool parse(std::vector<SedCommand>& out) {
        while (true) {
            while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) || text_[at_] == ';')) ++at_;
            if (at_ >= text_.size()) return true;
            SedCommand c;
            if (!addresses(c) || !command(c)) return false;
            out.push_back(std::move(c));
            while (at_ < text_.size() && text_[at_] == ' ') ++at_;
            if (at_ < text_.size() && text_[at_] != ';' && text_[at_] != '\n') return false;
        }
    }

private:
    bool addresses(SedCommand& c) {
        while (true) {
            SedAddress a;
            if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
                constexpr long kMost = 1000000;
                while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) && a.line < kMost)
                    a.line = 10 * a.line + (text_[at_++] - '0');
            } else if (text_.compare(at_, 1, "$") == 0) {
                a.line = -1, ++at_;
            } else if (text_.compare(at_, 1, "/") == 0) {
                const std::optional<std::string> pattern = until('/');
                a.regex = pattern ? Regex::compile(*pattern, kind_) : std::nullopt;
                if (!a.regex) return false;
            } else {
                if (!c.addresses.empty()) return false;
                break;
            }
            c.addresses.push_back(std::move(a));
            if (c.addresses.size() == 2 || text_.compare(at_, 1, ",") != 0) break;
            ++at_;
        }
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
        if (text_.compare(at_, 1, "!") == 0) c.is_negated = true, ++at_;
        return true;
    }
    bool command(SedCommand& c) {
        c.name = at_ < text_.size() ? text_[at_++] : 0;
        if (c.name == 'd' || c.name == 'p' || c.name == 'q') return true;
        if (c.name == 'a' || c.name == 'i' || c.name == 'c') {
            if (c.name == 'c' && c.addresses.size() == 2) return false;  // once for all of them
            while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
            if (text_.compare(at_, 1, "\\") == 0) ++at_;
            if (text_.compare(at_, 1, "\n") == 0) ++at_;
            const size_t end = std::min(text_.find('\n', at_), text_.size());
            c.by = text_.substr(at_, end - at_);
            at_ = end;
            return c.by.find('\\') == std::string::npos;
        }
        if (c.name == 'y' && at_ < text_.size()) {
            const char separator = text_[at_];
            const std::optional<std::string> from = until(separator);
            --at_;
            const std::optional<std::string> by = from ? until(separator) : std::nullopt;
            if (!by || by->size() != from->size() || (*from + *by).find('\\') != std::string::npos) return false;
            c.from = *from, c.by = *by;
            return true;
        }
        if (c.name != 's' || at_ >= text_.size()) return false;
        const char separator = text_[at_];
        const std::optional<std::string> pattern = until(separator);
        if (!pattern) return false;
        --at_;
        const std::optional<std::string> by = until(separator);
        if (!by) return false;
        c.by = *by;
        bool ignores_case = false;
        for (; at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_]))); ++at_) {
            if (text_[at_] == 'g') c.everywhere = true;
            else if (text_[at_] == 'p') c.prints = true;
            else if (text_[at_] == 'i' || text_[at_] == 'I') ignores_case = true;
            else if (std::isdigit(static_cast<unsigned char>(text_[at_])) && c.only < 1000)
                c.only = 10 * c.only + (text_[at_] - '0');
            else return false;
        }
        c.regex = Regex::compile(*pattern, kind_, ignores_case);
        return c.regex.has_value();
    }
    // From the separator here to the next one, which is left behind.
    std::optional<std::string> until(char separator) {
        std::string out;
        for (++at_; at_ < text_.size(); ++at_) {
            if (text_[at_] == separator) {
                ++at_;
                return out;
            }
            if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
                ++at_;
                if (text_[at_] == 'n' && separator != 'n') out += '\n';
                else if (text_[at_] == separator && separator != '\\') out += separator;
                else out += '\\', out += text_[at_];
            } else {
                out += text_[at_];
            }
        }
        return std::nullopt;
    }

    const std::string& text_;
    Regex::Kind kind_;
    size_t at_ = 0;
};

// What "\1" and "&" of a replacement stand for.
std::string sed_replacement(const std::string& by, const std::string& line, const Regex::Groups& groups) {
    std::string out;
    char letters = 'E', next = 'E';  // \U \L \E of all that follows, \u \l of one character
    const auto add = [&](const std::string& text) {
        for (const char k : text) {
            const char how = next != 'E' ? next : letters;
            const auto c = static_cast<unsigned char>(k);
            out += how == 'U' || how == 'u'   ? static_cast<char>(std::toupper(c))
                   : how == 'L' || how == 'l' ? static_cast<char>(std::tolower(c))
                                              : k;
            next = 'E';
        }
    };
    for (size_t i = 0; i < by.size(); ++i) {
        const bool escaped = by[i] == '\\' && i + 1 < by.size();
        if (escaped) ++i;
        if (escaped && std::string("ULE").find(by[i]) != std::string::npos) {
            letters = by[i];
            continue;
        }
        if (escaped && (by[i] == 'u' || by[i] == 'l')) {
            next = by[i];
            continue;
        }
        const bool is_group = escaped && std::isdigit(static_cast<unsigned char>(by[i]));
        if (is_group || (by[i] == '&' && !escaped)) {
            const auto k = static_cast<size_t>(is_group ? by[i] - '0' : 0);
            if (k < groups.size() && groups[k].first != std::string::npos)
                add(line.substr(groups[k].first, groups[k].second - groups[k].first));
        } else {
            add(std::string(1, escaped && by[i] == 't' ? '\t' : by[i]));
        }
    }
    return out;
}

bool sed_replace(const SedCommand& c, std::string& line) {
    std::string out;
    size_t at = 0;
    long n = 0;
    bool changed = false;
    while (at <= line.size()) {
        const auto found = c.regex->find(line, at);
        if (!found) break;
        const auto [begin, end] = found->front();
        ++n;
        out += line.substr(at, begin - at);
        const bool replaced = c.only == 0 ? (c.everywhere || n == 1) : (n == c.only || (c.everywhere && n > c.only));
        if (replaced) out += sed_replacement(c.by, line, *found), changed = true;
        else out += line.substr(begin, end - begin);
        if (end == begin) {
            if (begin < line.size()) out += line[begin];
            at = end + 1;
        } else {
            at = end;
        }
        constexpr size_t kMost = 1 << 17;
        if (out.size() > kMost || (changed && !c.everywhere)) break;
    }
    if (at <= line.size()) out += line.substr(std::min(at, line.size()));
    line = out;
    return changed;
}

bool sed_applies(SedCommand& c, const std::string& line, long number, bool is_last) {
    const auto is_at = [&](const SedAddress& a) {
        return a.regex ? a.regex->find(line, 0).has_value() : a.line == number || (a.line == -1 && is_last);
    };
    bool holds = true;
    if (c.addresses.size() == 1) holds = is_at(c.addresses[0]);
    if (c.addresses.size() == 2) {
        holds = c.was_in_range || is_at(c.addresses[0]);
        const bool ends = c.was_in_range ? is_at(c.addresses[1]) : c.addresses[1].line > 0 && c.addresses[1].line <= number;
        c.was_in_range = holds && !ends;
    }
    return holds != c.is_negated;
}

constexpr size_t kMostSedText = 1 << 17;

// Nothing: it is too long, or an expression takes too long.
std::optional<std::string> sed_output(std::vector<SedCommand>& commands, const std::string& text, bool quiet) {
    if (text.size() > kMostSedText) return std::nullopt;
    std::string out;
    const std::vector<std::string> lines = lines_of(text);
    for (size_t i = 0; i < lines.size(); ++i) {
        std::string line = lines[i], behind;
        bool deleted = false, quits = false;
        for (SedCommand& c : commands) {
            if (deleted || quits || !sed_applies(c, line, static_cast<long>(i) + 1, i + 1 == lines.size())) continue;
            if (c.name == 'd') deleted = true;
            if (c.name == 'q') quits = true;
            if (c.name == 'i') out += c.by + "\n";
            if (c.name == 'a') behind += c.by + "\n";
            if (c.name == 'c') deleted = true, out += c.by + "\n";
            if (c.name == 'y') {
                for (char& k : line) {
                    if (const size_t at = c.from.find(k); at != std::string::npos) k = c.by[at];
                }
            }
            if (c.name == 'p' || (c.name == 's' && sed_replace(c, line) && c.prints)) out += line + "\n";
            if (c.regex && c.regex->failed()) return std::nullopt;
            if (out.size() + line.size() > kMostSedText) return std::nullopt;
        }
        const bool ends = i + 1 == lines.size() && !text.empty() && text.back() != '\n' && behind.empty();
        if (!deleted && !quiet) out += line + (ends ? "" : "\n");
        out += behind;
        if (quits) break;
    }
    return out;
}

}  // namespace

std::optional<ProgramOutput> run_sed(const ProgramInputs& in) {
    std::string script, suffix;
    std::vector<std::string> names;
    bool in_place = false, quiet = false, has_script = false;
    Regex::Kind kind = Regex::Kind::Basic;
    for (size_t i = 0; i < in.arguments.size(); ++i) {
        const std::string& word = in.arguments[i];
        if (word == "-e" || word == "--expression") {
            if (++i >= in.arguments.size()) return std::nullopt;
            script += in.arguments[i] + "\n", has_script = true;
        } else if (word.starts_with("-i") || word.starts_with("--in-place")) {
            in_place = true;
            const size_t equals = word.find('=');
            suffix = word.starts_with("-i") ? word.substr(2) : equals == std::string::npos ? "" : word.substr(equals + 1);
            if (suffix.find_first_of("*/") != std::string::npos) return std::nullopt;
        } else if (word == "-n" || word == "--quiet") {
            quiet = true;
        } else if (word == "-E" || word == "-r") {
            kind = Regex::Kind::Extended;
        } else if (word.size() > 1 && word[0] == '-') {
            return std::nullopt;
        } else if (!has_script) {
            script = word + "\n", has_script = true;
        } else {
            names.push_back(word);
        }
    }
    std::vector<SedCommand> commands;
    if (!has_script || (in_place && names.empty()) || !SedScript(script, kind).parse(commands)) return std::nullopt;
    if (commands.size() > 200) return std::nullopt;
    ProgramOutput out;
    if (!in_place) {
        std::optional<std::string> text = names.empty() ? in.input : std::optional<std::string>("");
        for (const std::string& name : names) {
            const std::optional<std::string> more = in.file(name);
            if (!more || text->size() + more->size() > kMostSedText) return std::nullopt;
            *text += *more;
        }
        const std::optional<std::string> made = text ? sed_output(commands, *text, quiet) : std::nullopt;
        if (!made) return std::nullopt;
        out.text = *made;
        return out;
    }
    for (const std::string& name : names) {
        const std::optional<std::string> text = in.file(name);
        std::vector<SedCommand> fresh = commands;
        const std::optional<std::string> made = text ? sed_output(fresh, *text, quiet) : std::nullopt;
        if (!made) return std::nullopt;
        out.files[name] = *made;
        if (!suffix.empty()) out.files[name + suffix] = *text;
    }
    return out;
}
std::optional<ProgramOutput> run_expr(const ProgramInputs& in) {
    const std::vector<std::string>& a = in.arguments;
    const auto whole = [](const std::string& text) {
        const std::string digits = text.starts_with("-") ? text.substr(1) : text;
        constexpr size_t kDigits = 18;
        return !digits.empty() && digits.size() <= kDigits && digits.find_first_not_of("0123456789") == std::string::npos;
    };
    const auto result = [](const std::string& text) {
        return ProgramOutput{text + "\n", text.empty() || text == "0" ? 1 : 0, {}};
    };
    if (a.size() == 2 && a[0] == "length") return result(std::to_string(a[1].size()));
    if (a.size() == 3 && a[1] == ":") {
        const auto regex = Regex::compile(a[2], Regex::Kind::Basic);
        if (!regex) return std::nullopt;
        const auto found = regex->find(a[0], 0);
        const bool matches = found && found->front().first == 0;
        if (found && !matches) return std::nullopt;  // another match may begin at 0
        if (found && found->size() > 1) {
            const auto [begin, end] = (*found)[1];
            return result(begin == std::string::npos ? "" : a[0].substr(begin, end - begin));
        }
        return result(std::to_string(matches ? found->front().second : 0));
    }
    std::string text;
    for (const std::string& word : a) {
        const bool is_operator = word == "+" || word == "-" || word == "*" || word == "/" || word == "%" || word == "(" ||
                                 word == ")" || word == "<" || word == "<=" || word == ">" || word == ">=" || word == "=" ||
                                 word == "==" || word == "!=";
        if (!is_operator && !whole(word)) return std::nullopt;
        const bool is_octal = whole(word) && word.size() > 1 && word[0] == '0';
        text += (word == "=" ? "==" : is_octal ? "10#" + word : word) + " ";
    }
    Names names;
    names.value = [](const std::string&) { return std::optional<std::string>(); };
    const std::optional<int64_t> value = evaluate(text, names);
    return value ? std::optional(result(std::to_string(*value))) : std::nullopt;
}

}  // namespace lockstep::interop
