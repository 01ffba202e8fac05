// Where words, quotes and brackets of a script end.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "interop/shell_syntax.h"

namespace lockstep::interop {

bool is_shell_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_shell_space(char c) { return is_shell_blank(c) || c == '\n'; }
bool begins_shell_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_of_shell_name(char c) { return begins_shell_name(c) || std::isdigit(static_cast<unsigned char>(c)); }

bool is_special_parameter(char c) { return std::string("@*#?$!-0123456789_").find(c) != std::string::npos; }

std::string without_shell_blanks(const std::string& text) {
    std::string out;
    std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return !is_shell_space(c); });
    return out;
}

size_t end_of_name(const std::string& text, size_t begin) {
    if (begin >= text.size() || !begins_shell_name(text[begin])) return begin;
    while (begin < text.size() && is_of_shell_name(text[begin])) ++begin;
    return begin;
}

void refuse_script(const std::string& origin, int line, const std::string& what) {
    throw UserError("recipe.script", origin, fmt::format("{}:{}: {}", origin, line, what));
}

namespace {

class ShellScan {
public:
    ShellScan(const Text& text, const std::string& origin) : text_(text), s_(text.chars()), origin_(origin) {}

    size_t word(size_t at) {
        const Level level(*this, at);
        const size_t begin = at, name = end_of_name(s_, at);
        const size_t bracket = name + (s_.compare(name, 2, "+=") == 0 ? 2 : 1);
        const bool is_array = name > at && bracket < s_.size() && s_[bracket - 1] == '=' && s_[bracket] == '(';
        if (is_array) return array(bracket);
        while (at < s_.size() && (!text_.why(at) ? !is_shell_space(s_[at]) : true)) {
            if (text_.why(at)) ++at;
            else if (s_[at] == '<' && name > begin && at == name + 1 && s_[name] == '=' && end_of_place(at) > at)
                at = end_of_place(at);
            else if (s_[at] == '(' && at > 0 && is_extended(at)) at = bracketed(at);
            else if ((s_[at] == '<' || s_[at] == '>') && s_.compare(at + 1, 1, "(") == 0) at = bracketed(at + 1);
            else if (std::string(";&|<>()").find(s_[at]) != std::string::npos) break;
            else at = piece(at);
        }
        return at;
    }

    // Behind a character, or behind the quote or the bracket that it opens.
    size_t piece(size_t at) {
        const Level level(*this, at);
        if (text_.why(at)) return at + 1;
        switch (s_[at]) {
            case '\\': return std::min(at + 2, s_.size());
            case '\'': return single(at);
            case '"': return doubled(at);
            case '`': return back(at);
            case '$': break;
            default: return at + 1;
        }
        if (s_.compare(at + 1, 1, "'") == 0) return ansi(at);
        if (s_.compare(at + 1, 2, "((") == 0) return arithmetic(at);
        if (s_.compare(at + 1, 1, "(") == 0) return bracketed(at + 1);
        if (s_.compare(at + 1, 1, "{") == 0) return braces(at + 1);
        if (s_.compare(at + 1, 1, "[") == 0) return old_arithmetic(at);
        return at + 1;
    }

private:
    // Quotes and brackets are nested to this depth at most: each is a call of this program.
    struct Level {
        Level(ShellScan& scan, size_t at) : scan_(scan) {
            constexpr int kDeepest = 200;
            if (++scan_.depth_ > kDeepest)
                refuse_script(scan_.origin_, scan_.text_.line(at), "quotes and brackets are nested too deeply");
        }
        ~Level() { --scan_.depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        ShellScan& scan_;
    };

    [[noreturn]] void never_closed(const char* what, size_t since) const {
        refuse_script(origin_, text_.line(since),
                      fmt::format("{} is opened and never closed: close it, or give the arguments of the run as a plain text "
                                  "file",
                                  what));
    }
    // Behind "<path to the data>", which examples have for what is to be filled in; `at` where none is here.
    size_t end_of_place(size_t at) const {
        const size_t end = s_.find_first_of("<>\n;|&()$`", at + 1);
        const bool is_one =
            end != std::string::npos && s_[end] == '>' && end > at + 1 && std::isalpha(static_cast<unsigned char>(s_[at + 1]));
        return is_one ? end + 1 : at;
    }
    bool is_extended(size_t at) const { return std::string("?*+@!").find(s_[at - 1]) != std::string::npos; }

    size_t single(size_t at) {
        const size_t end = s_.find('\'', at + 1);
        if (end == std::string::npos) never_closed("the quote '", at);
        return end + 1;
    }
    size_t ansi(size_t at) {
        for (size_t i = at + 2; i < s_.size(); ++i) {
            if (s_[i] == '\'') return i + 1;
            if (s_[i] == '\\') ++i;
        }
        never_closed("the quote $'", at);
    }
    size_t doubled(size_t at) {
        size_t i = at + 1;
        while (i < s_.size() && (s_[i] != '"' || text_.why(i))) i = s_[i] == '\'' ? i + 1 : piece(i);
        if (i >= s_.size()) never_closed("the quote \"", at);
        return i + 1;
    }
    size_t back(size_t at) {
        for (size_t i = at + 1; i < s_.size(); ++i) {
            if (s_[i] == '`') return i + 1;
            if (s_[i] == '\\') ++i;
        }
        never_closed("the quote `", at);
    }
    size_t braces(size_t at) {
        size_t i = at + 1;
        while (i < s_.size() && s_[i] != '}') i = s_[i] == '{' ? braces(i) : piece(i);
        if (i >= s_.size()) never_closed("the bracket {", at);
        return i + 1;
    }
    // "$[...]"; one that nothing closes is no arithmetic.
    size_t old_arithmetic(size_t at) {
        int depth = 0;
        for (size_t i = at + 1; i < s_.size() && s_[i] != '\n'; i = piece(i)) {
            if (s_[i] == '[') ++depth;
            if (s_[i] == ']' && --depth == 0) return i + 1;
        }
        return at + 1;
    }
    // "$((...))", or "$( (...) )" without the blank.
    size_t arithmetic(size_t at) {
        int depth = 0;
        for (size_t i = at + 1; i < s_.size(); i = piece(i)) {
            if (s_[i] == '(') ++depth;
            if (s_[i] == ')' && --depth == 0) return i + 1;
        }
        never_closed("the bracket (", at);
    }
    // The commands between "(" and ")".
    size_t bracketed(size_t at) {
        const Level level(*this, at);
        int depth = 0;
        std::vector<int> cases;
        size_t document = 0;
        for (size_t i = at; i < s_.size();) {
            const bool begins_word = i == at || std::string(" \t\r\n;&|()").find(s_[i - 1]) != std::string::npos;
            if (begins_word && s_[i] == '#') {
                i = std::min(s_.find('\n', i), s_.size());
            } else if (s_[i] == '\n') {
                i = document ? document : i + 1;
                document = 0;
            } else if (s_.compare(i, 3, "<<<") == 0) {
                i += 3;
            } else if (s_.compare(i, 2, "<<") == 0) {
                document = end_of_document(text_, i, document);
                i += 2;
            } else if (begins_word && is_word(i, "case")) {
                cases.push_back(depth), i += 4;
            } else if (begins_word && is_word(i, "esac")) {
                if (!cases.empty()) cases.pop_back();
                i += 4;
            } else if (s_[i] == '(') {
                ++depth, ++i;
            } else if (s_[i] == ')') {
                ++i;
                if (!cases.empty() && cases.back() == depth) continue;
                if (--depth == 0) return i;
            } else {
                i = piece(i);
            }
        }
        never_closed("the bracket (", at);
    }
    bool is_word(size_t at, const char* word) const {
        const size_t end = at + std::char_traits<char>::length(word);
        return s_.compare(at, end - at, word) == 0 &&
               (end == s_.size() || std::string(" \t\r\n;)").find(s_[end]) != std::string::npos);
    }
    size_t array(size_t at) {
        size_t i = at + 1;
        while (i < s_.size() && s_[i] != ')') {
            if (is_shell_space(s_[i])) ++i;
            else if (s_[i] == '#' && is_shell_space(s_[i - 1])) i = std::min(s_.find('\n', i), s_.size());
            else i = piece(i);
        }
        if (i >= s_.size()) never_closed("the bracket (", at);
        return i + 1;
    }

    const Text& text_;
    const std::string& s_;
    const std::string& origin_;
    int depth_ = 0;
};

}  // namespace

size_t end_of_word(const Text& text, size_t begin, const std::string& origin) { return ShellScan(text, origin).word(begin); }
size_t end_of_quoted(const Text& text, size_t begin, const std::string& origin) { return ShellScan(text, origin).piece(begin); }

HereDocument here_document(const Text& text, size_t at, size_t after) {
    const std::string& s = text.chars();
    at += 2;
    HereDocument out;
    if (s.compare(at, 1, "-") == 0) out.strips_tabs = true, ++at;
    while (at < s.size() && (s[at] == ' ' || s[at] == '\t')) ++at;
    for (; at < s.size() && !is_shell_space(s[at]) && std::string(";&|<>()").find(s[at]) == std::string::npos; ++at) {
        if (s[at] == '\'' || s[at] == '"' || s[at] == '\\') out.is_quoted = true;
        else out.end_line += s[at];
    }
    out.behind_word = at;
    size_t line = after;
    if (line == 0) {
        line = s.find('\n', at);
        while (line != std::string::npos && line > 0 && s[line - 1] == '\\') line = s.find('\n', line + 1);
        line = line == std::string::npos ? s.size() : line + 1;
    }
    while (line < s.size()) {
        const size_t end = std::min(s.find('\n', line), s.size());
        size_t from = line, to = end;
        if (to > from && s[to - 1] == '\r') --to;
        while (out.strips_tabs && from < to && s[from] == '\t') ++from;
        const size_t next = std::min(end + 1, s.size());
        if (s.compare(from, to - from, out.end_line) == 0) {
            out.behind_body = next, out.is_closed = true;
            return out;
        }
        out.body.add(text, from, to);
        out.body.add('\n', text.place(from));
        line = next;
    }
    out.behind_body = s.size();
    return out;
}

size_t end_of_document(const Text& text, size_t at, size_t after) { return here_document(text, at, after).behind_body; }

}  // namespace lockstep::interop
