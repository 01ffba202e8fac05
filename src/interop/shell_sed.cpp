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
    std::string by;
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
    for (size_t i = 0; i < by.size(); ++i) {
        const bool escaped = by[i] == '\\' && i + 1 < by.size();
        if (escaped) ++i;
        const bool is_group = escaped && std::isdigit(static_cast<unsigned char>(by[i]));
        if (is_group || (by[i] == '&' && !escaped)) {
            const auto k = static_cast<size_t>(is_group ? by[i] - '0' : 0);
            if (k < groups.size() && groups[k].first != std::string::npos)
                out += line.substr(groups[k].first, groups[k].second - groups[k].first);
        } else {
            out += escaped && by[i] == 't' ? '\t' : by[i];
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

}  // namespace

std::optional<ProgramOutput> run_sed(const ProgramInputs& in) {
    std::string script;
    std::vector<std::string> names;
    bool in_place = false, quiet = false, has_script = false;
    Regex::Kind kind = Regex::Kind::Basic;
    for (size_t i = 0; i < in.arguments.size(); ++i) {
        const std::string& word = in.arguments[i];
        if (word == "-e" || word == "--expression") {
            if (++i >= in.arguments.size()) return std::nullopt;
            script += in.arguments[i] + "\n", has_script = true;
        } else if (word == "-i" || word == "--in-place") {
            in_place = true;
        } else if (word == "-n" || word == "--quiet") {
            quiet = true;
        } else if (word == "-E" || word == "-r") {
            kind = Regex::Kind::Extended;
        } else if (word == "-ne" || word == "-ie") {
            return std::nullopt;
        } else if (word.size() > 1 && word[0] == '-') {
            return std::nullopt;
        } else if (!has_script) {
            script = word + "\n", has_script = true;
        } else {
            names.push_back(word);
        }
    }
    std::vector<SedCommand> commands;
    if (!has_script || names.size() > 1 || (in_place && names.empty()) || !SedScript(script, kind).parse(commands))
        return std::nullopt;
    const std::optional<std::string> text = names.empty() ? in.input : in.file(names[0]);
    constexpr size_t kMost = 1 << 17;
    if (!text || text->size() > kMost || commands.size() > 200) return std::nullopt;
    ProgramOutput out;
    const std::vector<std::string> lines = lines_of(*text);
    for (size_t i = 0; i < lines.size(); ++i) {
        std::string line = lines[i];
        bool deleted = false, quits = false;
        for (SedCommand& c : commands) {
            if (deleted || !sed_applies(c, line, static_cast<long>(i) + 1, i + 1 == lines.size())) continue;
            if (c.name == 'd') deleted = true;
            if (c.name == 'q') quits = true;
            if (c.name == 'p' || (c.name == 's' && sed_replace(c, line) && c.prints)) out.text += line + "\n";
            if (c.regex && c.regex->failed()) return std::nullopt;
            if (out.text.size() + line.size() > kMost) return std::nullopt;
        }
        const bool ends = i + 1 == lines.size() && !text->empty() && text->back() != '\n';
        if (!deleted && !quiet) out.text += line + (ends ? "" : "\n");
        if (quits) break;
    }
    if (in_place) out.file = names[0];
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
        return ProgramOutput{text + "\n", text.empty() || text == "0" ? 1 : 0, ""};
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
