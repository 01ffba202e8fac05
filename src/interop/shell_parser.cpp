// Bash's grammar, by one function for each of its rules.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "interop/shell_syntax.h"

namespace lockstep::interop {
namespace {

using Kind = Node::Kind;
using Made = std::shared_ptr<Node>;

class ShellParser {
public:
    ShellParser(const Text& text, const std::string& origin) : text_(text), s_(text.chars()), origin_(origin) {}

    Made script() {
        const Made all = list();
        if (!at_end()) unexpected();
        return all;
    }

private:
    bool at_end() const { return at_ >= s_.size(); }
    int line() const { return text_.line(std::min(at_, s_.empty() ? 0 : s_.size() - 1)); }
    bool is_plain() const { return !at_end() && !text_.why(at_); }
    bool comes(const char* what) const { return is_plain() && s_.compare(at_, std::char_traits<char>::length(what), what) == 0; }
    bool skip(const char* what) {
        if (!comes(what)) return false;
        at_ += std::char_traits<char>::length(what);
        return true;
    }
    Made make(Kind kind) const {
        const Made n = std::make_shared<Node>();
        n->kind = kind, n->place = text_.place(std::min(at_, s_.size()));
        return n;
    }
    [[noreturn]] void unexpected() const {
        const size_t end = std::min(std::min(s_.find('\n', at_), s_.size()), at_ + 20);
        refuse_script(origin_, line(),
                      at_end() ? std::string("the script ends inside a command: close its blocks (fi, done, esac, }), or give "
                                             "the arguments of the run as a plain text file")
                               : fmt::format("bash's grammar has no {} here: give a script that bash runs, or the arguments of "
                                             "the run as a plain text file",
                                             end == at_ ? "end of a line" : "`" + s_.substr(at_, end - at_) + "`"));
    }
    void expect(const char* what) {
        blanks();
        if (!skip(what)) unexpected();
    }

    void blanks() {
        while (is_plain()) {
            if (is_shell_blank(s_[at_])) ++at_;
            else if (comes("\\\n")) at_ += 2;
            else if (comes("\\\r\n")) at_ += 3;
            else if (s_[at_] == '#' && (at_ == 0 || std::string(" \t\r\n;&|()").find(s_[at_ - 1]) != std::string::npos))
                at_ = std::min(s_.find('\n', at_), s_.size());
            else break;
        }
    }
    bool newline() {
        if (!comes("\n")) return false;
        at_ = document_ ? document_ : at_ + 1;
        document_ = 0;
        return true;
    }
    void newlines() {
        for (blanks(); newline(); blanks()) {
        }
    }

    // The word here if no character of it is quoted or expanded: a keyword is such a word.
    std::string bare_word() const {
        size_t end = at_;
        while (end < s_.size() && !text_.why(end) && !is_shell_space(s_[end]) &&
               std::string(";&|<>()$`\"'\\").find(s_[end]) == std::string::npos)
            ++end;
        const bool goes_on = end < s_.size() && (text_.why(end) || std::string("$`\"'\\").find(s_[end]) != std::string::npos);
        return goes_on ? "" : s_.substr(at_, end - at_);
    }
    bool keyword(const std::string& word) {
        if (bare_word() != word) return false;
        at_ += word.size();
        return true;
    }
    bool ends_list() const {
        if (at_end() || comes(")") || comes(";;") || comes(";&")) return true;
        static const std::set<std::string> words = {"then", "do", "done", "fi", "else", "elif", "esac", "}"};
        return words.contains(bare_word());
    }

    Made list() {
        constexpr int kDeepest = 40;
        if (++depth_ > kDeepest) refuse_script(origin_, line(), "blocks are nested too deeply");
        const Made n = make(Kind::List);
        for (newlines(); !ends_list(); newlines()) {
            const Made part = and_or();
            blanks();
            if (comes("&") && !comes("&&")) ++at_, part->in_background = true;
            else if (comes(";") && !comes(";;") && !comes(";&")) ++at_;
            else if (!comes("\n") && !ends_list()) unexpected();
            n->parts.push_back(part);
        }
        --depth_;
        return n;
    }

    // Of blocks, which hold one command at least.
    Made commands() {
        const Made n = list();
        if (n->parts.empty()) unexpected();
        return n;
    }

    Made and_or() {
        const Made n = make(Kind::AndOr);
        const Made first = pipeline();
        n->parts.push_back(first);
        for (blanks(); comes("&&") || comes("||"); blanks()) {
            n->operators.push_back(s_.substr(at_, 2));
            at_ += 2;
            newlines();
            n->parts.push_back(pipeline());
        }
        return n->parts.size() == 1 ? first : n;
    }

    Made pipeline() {
        const Made n = make(Kind::Pipeline);
        for (blanks(); keyword("!") || keyword("time"); blanks()) n->is_negated ^= s_[at_ - 1] == '!';
        const Made first = command();
        n->parts.push_back(first);
        for (blanks(); comes("|") && !comes("||"); blanks()) {
            ++at_;
            skip("&");
            newlines();
            n->parts.push_back(command());
        }
        return n->parts.size() == 1 && !n->is_negated ? first : n;
    }

    Made command() {
        blanks();
        Made n = compound();
        if (!n) return simple();
        for (blanks(); redirection(*n); blanks()) {
        }
        return n;
    }

    // Null: a simple command is here.
    Made compound() {
        if (comes("((")) {
            if (const Made n = arithmetic()) return n;
        }
        Made n = make(Kind::Subshell);
        if (skip("(")) {
            n->parts.push_back(list());
            expect(")");
            return n;
        }
        const std::string word = bare_word();
        if (word == "{") return group();
        if (word == "[[") return test();
        if (word == "if") return branches();
        if (word == "while" || word == "until") return loop(word);
        if (word == "for" || word == "select") return counted(word);
        if (word == "case") return cases();
        if (word == "function") {
            at_ += word.size();
            blanks();
            const Text name = take_word();
            blanks();
            if (skip("(")) expect(")");
            return function(name);
        }
        // name ( ) command
        size_t end = at_ + word.size();
        if (word.empty() || word.find('=') != std::string::npos) return nullptr;
        while (end < s_.size() && is_shell_blank(s_[end])) ++end;
        if (s_.compare(end, 1, "(") != 0) return nullptr;
        for (++end; end < s_.size() && is_shell_blank(s_[end]);) ++end;
        if (s_.compare(end, 1, ")") != 0) return nullptr;
        const Text name = text_.part(at_, at_ + word.size());
        at_ = end + 1;
        return function(name);
    }

    Made function(const Text& name) {
        const Made n = make(Kind::Function);
        n->words.push_back(name);
        newlines();
        const Made body = compound();
        if (!body) unexpected();
        for (blanks(); redirection(*body); blanks()) {
        }
        n->parts.push_back(body);
        return n;
    }

    Made group() {
        const Made n = make(Kind::Group);
        ++at_;
        n->parts.push_back(list());
        if (!keyword("}")) unexpected();
        return n;
    }

    // (( text )); null: it is a subshell in a subshell.
    Made arithmetic() {
        size_t end = at_ + 2;
        for (int depth = 2; end < s_.size() && depth > 0;) {
            if (s_[end] == '(') ++depth, ++end;
            else if (s_[end] == ')') --depth, ++end;
            else end = end_of_quoted(text_, end, origin_);
            if (depth == 1 && end < s_.size() && s_[end] != ')') return nullptr;
        }
        if (end >= s_.size() && !s_.ends_with("))")) return nullptr;
        const Made n = make(Kind::Arithmetic);
        n->words.push_back(text_.part(at_ + 2, end - 2));
        at_ = end;
        return n;
    }

    Made test() {
        const Made n = make(Kind::Test);
        at_ += 2;
        bool is_expression = false;  // of =~, in which brackets are no operators
        while (true) {
            newlines();
            if (at_end()) unexpected();
            if (keyword("]]")) return n;
            const size_t begin = at_;
            if (is_expression) {
                int depth = 0;
                while (!at_end() && !is_shell_space(s_[at_]) && (depth > 0 || s_[at_] != ')')) {
                    depth += s_[at_] == '(' ? 1 : s_[at_] == ')' ? -1 : 0;
                    at_ = end_of_quoted(text_, at_, origin_);
                }
            } else if (comes("&&") || comes("||")) {
                at_ += 2;
            } else if (comes("(") || comes(")") || comes("<") || comes(">")) {
                ++at_;
            } else {
                at_ = end_of_word(text_, at_, origin_);
            }
            if (at_ == begin) unexpected();
            n->words.push_back(text_.part(begin, at_));
            is_expression = n->words.back().chars() == "=~";
        }
    }

    Made branches() {
        const Made n = make(Kind::If);
        at_ += 2;
        while (true) {
            n->parts.push_back(commands());
            if (!keyword("then")) unexpected();
            n->parts.push_back(commands());
            if (keyword("elif")) continue;
            if (keyword("else")) n->parts.push_back(commands());
            if (!keyword("fi")) unexpected();
            return n;
        }
    }

    Made loop(const std::string& word) {
        const Made n = make(Kind::While);
        n->is_negated = word == "until";
        at_ += word.size();
        n->parts.push_back(commands());
        body(*n);
        return n;
    }
    void body(Node& n) {
        newlines();
        const bool braces = keyword("{");
        if (!braces && !keyword("do")) unexpected();
        n.parts.push_back(commands());
        if (!keyword(braces ? "}" : "done")) unexpected();
    }

    Made counted(const std::string& word) {
        const Made n = make(Kind::For);
        at_ += word.size();
        n->operators.push_back(word);
        blanks();
        if (comes("((")) {
            const Made head = arithmetic();
            if (!head) unexpected();
            n->kind = Kind::ForCount;
            const Text& all = head->words.front();
            size_t begin = 0;
            for (size_t i = 0; i <= all.size(); ++i) {
                if (i < all.size() && all[i] != ';') continue;
                n->words.push_back(all.part(begin, i));
                begin = i + 1;
            }
            if (n->words.size() != 3) unexpected();
            blanks();
            skip(";");
            body(*n);
            return n;
        }
        n->words.push_back(take_word());
        newlines();
        if (keyword("in")) {
            for (blanks(); !at_end() && !comes(";") && !comes("\n"); blanks()) n->words.push_back(take_word());
        } else {
            n->in_arguments = true;
        }
        blanks();
        skip(";");
        body(*n);
        return n;
    }

    Made cases() {
        const Made n = make(Kind::Case);
        at_ += 4;
        blanks();
        n->words.push_back(take_word());
        newlines();
        if (!keyword("in")) unexpected();
        for (newlines(); !keyword("esac"); newlines()) {
            if (at_end()) unexpected();
            skip("(");
            std::vector<Text> patterns;
            do {
                blanks();
                patterns.push_back(take_word());
                blanks();
            } while (skip("|"));
            if (!skip(")")) unexpected();
            n->patterns.push_back(std::move(patterns));
            n->parts.push_back(list());
            blanks();
            n->operators.emplace_back(skip(";;&") ? ";;&" : skip(";;") ? ";;" : skip(";&") ? ";&" : "");
        }
        return n;
    }

    Made simple() {
        const Made n = make(Kind::Simple);
        for (blanks(); !at_end(); blanks()) {
            if (redirection(*n)) continue;
            if (!text_.why(at_) && std::string(";&|()\n").find(s_[at_]) != std::string::npos) break;
            n->words.push_back(take_word());
        }
        if (n->words.empty() && n->redirections.empty()) unexpected();
        return n;
    }

    Text take_word() {
        const size_t end = end_of_word(text_, at_, origin_);
        if (end == at_) unexpected();
        Text word = text_.part(at_, end);
        at_ = end;
        return word;
    }

    // [n]<, >, >>, <<, <<<, &>, >&, ... and what follows.
    bool redirection(Node& n) {
        if (!is_plain()) return false;
        size_t at = at_;
        while (at < s_.size() && s_[at] >= '0' && s_[at] <= '9') ++at;
        const bool both = at == at_ && s_.compare(at, 2, "&>") == 0;
        if (!both && (at >= s_.size() || (s_[at] != '<' && s_[at] != '>'))) return false;
        if (at + 1 < s_.size() && s_[at + 1] == '(' && !both) return false;  // <(...) is a word
        Redirection r{"", -1, {}};
        if (at > at_) r.descriptor = at - at_ < 4 ? std::stoi(s_.substr(at_, at - at_)) : 3;
        for (const char* op : {"<<<", "<<", "<>", "<&", "<", "&>>", "&>", ">>", ">|", ">&", ">"}) {
            if (s_.compare(at, std::char_traits<char>::length(op), op) == 0) {
                r.op = op;
                break;
            }
        }
        at_ = at + r.op.size();
        if (r.op == "<<") {
            const HereDocument d = here_document(text_, at, document_);
            if (!d.is_closed)
                refuse_script(origin_, text_.line(at),
                              "the here-document is opened and never closed: close it, or give the arguments of the run as a "
                              "plain text file");
            document_ = d.behind_body, at_ = d.behind_word;
            r.target = d.body, r.expands = !d.is_quoted;
        } else {
            blanks();
            r.target = take_word();
        }
        n.redirections.push_back(std::move(r));
        return true;
    }

    const Text& text_;
    const std::string& s_;
    const std::string& origin_;
    size_t at_ = 0, document_ = 0;  // behind the here-documents of this line; 0: it has none
    int depth_ = 0;
};

}  // namespace

std::shared_ptr<const Node> parse_script(const Text& text, const std::string& origin) {
    return ShellParser(text, origin).script();
}

}  // namespace lockstep::interop
