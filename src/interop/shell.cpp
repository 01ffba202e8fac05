#include "interop/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "base/error.h"
#include "interop/arithmetic.h"
#include "interop/branches.h"

namespace lockstep::interop {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_space(char c) { return is_blank(c) || c == '\n'; }
bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_of_name(char c) { return begins_name(c) || std::isdigit(static_cast<unsigned char>(c)); }

// Characters, each with the line that it stands on.
struct Text {
    std::string chars;
    std::vector<int> lines;

    void add(char c, int line) { chars += c, lines.push_back(line); }
    void add(const Text& other) {
        chars += other.chars;
        lines.insert(lines.end(), other.lines.begin(), other.lines.end());
    }
    void add(const std::string& text, int line) {
        for (char c : text) add(c, line);
    }
    Word word() const { return {chars, lines.empty() ? 0 : lines.front()}; }
};

Text numbered(const std::string& text) {
    Text out;
    int line = 1;
    for (char c : text) {
        out.add(c, line);
        line += c == '\n';
    }
    return out;
}

// The words that a word of the script becomes: none or several where a variable stands outside of quotes.
class Fields {
public:
    void add(char c, int line) { current_.add(c, line), open_ = true; }
    void add(const Text& t) { current_.add(t), open_ = true; }
    void open() { open_ = true; }  // quotes without content are an empty word
    void split(const Text& t) {
        for (size_t i = 0; i < t.chars.size(); ++i) {
            if (is_space(t.chars[i])) end();
            else add(t.chars[i], t.lines[i]);
        }
    }
    void end() {
        if (open_) done_.push_back(std::move(current_));
        current_ = {}, open_ = false;
    }
    std::vector<Text> take() {
        end();
        return std::move(done_);
    }

private:
    std::vector<Text> done_;
    Text current_;
    bool open_ = false;
};

using Variables = std::map<std::string, std::vector<Text>>;  // a scalar is an array of one

// What a job's header tells of the variables that Slurm sets.
void take_directive(const std::string& line, int number, Variables& variables) {
    const std::pair<const char*, std::vector<const char*>> known[] = {
        {"--nodes", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}}, {"-N", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
        {"--ntasks", {"SLURM_NTASKS", "SLURM_NPROCS"}},       {"-n", {"SLURM_NTASKS", "SLURM_NPROCS"}},
        {"--ntasks-per-node", {"SLURM_NTASKS_PER_NODE"}},     {"--gpus-per-node", {"SLURM_GPUS_PER_NODE"}},
    };
    for (const auto& [flag, names] : known) {
        const size_t at = line.find(flag);
        const size_t value = at == std::string::npos ? at : at + std::string(flag).size();
        if (value == std::string::npos || value >= line.size() || (line[value] != '=' && !is_blank(line[value]))) continue;
        size_t begin = value + 1, end;
        while (begin < line.size() && is_blank(line[begin])) ++begin;
        for (end = begin; end < line.size() && std::isdigit(static_cast<unsigned char>(line[end]));) ++end;
        if (end == begin) continue;
        Text text;
        text.add(line.substr(begin, end - begin), number);
        for (const char* name : names) variables[name] = {text};
    }
}

class Reader {
public:
    Reader(Text text, const std::string& origin, Variables& variables, Script& out, int depth)
        : in_(std::move(text)), origin_(origin), variables_(variables), out_(out), nested_(depth) {}

    void run() {
        while (!at_end()) step();
        end_command();
    }

private:
    bool at_end() const { return at_ >= in_.chars.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < in_.chars.size() ? in_.chars[at_ + ahead] : '\0'; }
    int line() const { return in_.lines.empty() ? 1 : in_.lines[std::min(at_, in_.lines.size() - 1)]; }
    bool skip(const char* text) {
        if (in_.chars.compare(at_, std::char_traits<char>::length(text), text) != 0) return false;
        at_ += std::char_traits<char>::length(text);
        return true;
    }
    [[noreturn]] void never_closed(const char* what, int since) const {
        throw UserError("recipe.script", origin_,
                        fmt::format("{}:{}: {} is opened and never closed: close it, or give the arguments of the run as a plain "
                                    "text file",
                                    origin_, since, what));
    }

    void step() {
        const char c = peek();
        if (skip("\\\r\n") || skip("\\\n")) return;
        if (c == '#') return comment();
        if (c == '\n') {
            end_command(), ++at_;
            while (!documents_.empty()) take_document();
            return;
        }
        if (is_blank(c)) return void(++at_);
        if (c == '<' || c == '>' || (c == '&' && peek(1) == '>')) return redirection();
        if (std::string(";&|()").find(c) != std::string::npos) return end_command(), void(++at_);
        if (command_.empty() && keyword()) return;
        if (may_assign() && assignment()) return;
        if (std::isdigit(static_cast<unsigned char>(c)) && (peek(1) == '>' || peek(1) == '<')) return void(++at_);  // 2>&1
        for (Text& field : word()) command_.push_back(std::move(field));
    }

    // Do only words stand before that an assignment may follow?
    bool may_assign() const {
        static const std::set<std::string> leads = {"export", "local", "declare", "readonly"};
        return std::all_of(command_.begin(), command_.end(), [](const Text& t) { return leads.contains(t.chars); });
    }

    void comment() {
        const size_t end = std::min(in_.chars.find('\n', at_), in_.chars.size());
        const std::string text = in_.chars.substr(at_, end - at_);
        if (text.starts_with("#SBATCH")) take_directive(text, line(), variables_);
        at_ = end;
    }

    bool keyword() {
        size_t end = at_;
        while (end < in_.chars.size() && !is_space(in_.chars[end]) &&
               std::string(";&|<>()").find(in_.chars[end]) == std::string::npos)
            ++end;
        if (!branches_.takes(in_.chars.substr(at_, end - at_), line())) return false;
        at_ = end;
        return true;
    }

    void end_command() {
        if (command_.empty()) return;
        if (branches_.is_in_condition()) {
            std::vector<std::string> words;
            for (const Text& t : command_) words.push_back(t.chars);
            branches_.condition(evaluate_test(words));
        }
        if (branches_.state() != Branches::State::Skipped) keep_command();
        command_.clear();
    }

    void keep_command() {
        std::vector<Word> words;
        const bool prints = command_.front().chars == "echo" || command_.front().chars == "printf";
        for (const Text& t : command_) {
            const bool is_command_line = t.chars.find("--") != std::string::npos &&
                                         std::any_of(t.chars.begin(), t.chars.end(), is_space) &&
                                         (t.chars.find(".py") != std::string::npos);
            constexpr int kDeepest = 4;
            if (is_command_line && !prints && nested_ < kDeepest)
                Reader(t, origin_, variables_, out_, nested_ + 1).run();  // bash -c "..."
            else words.push_back(t.word());
        }
        out_.commands.push_back(std::move(words));
    }

    // NAME=value, NAME+=value, NAME=( words ). False: none stands here.
    bool assignment() {
        size_t end = at_;
        if (!begins_name(peek())) return false;
        while (end < in_.chars.size() && is_of_name(in_.chars[end])) ++end;
        const bool adds = in_.chars.compare(end, 2, "+=") == 0;
        if (!adds && (end >= in_.chars.size() || in_.chars[end] != '=')) return false;
        const std::string name = in_.chars.substr(at_, end - at_);
        const int where = line();
        at_ = end + (adds ? 2 : 1);
        const bool is_array = peek() == '(';
        std::vector<Text> value = is_array ? array() : std::vector<Text>{joined()};
        if (branches_.state() == Branches::State::Skipped) return true;
        if (branches_.state() == Branches::State::Unknown) {
            out_.unknown[name] = fmt::format("{} is set on line {} inside {}, and which way a run takes is not known", name,
                                             where, branches_.where());
            variables_.erase(name);
            return true;
        }
        require_size(name, value, where);
        out_.unknown.erase(name);
        std::vector<Text>& known = variables_[name];
        if (!adds) known = std::move(value);
        else if (is_array) known.insert(known.end(), value.begin(), value.end());
        else if (known.empty()) known = std::move(value);
        else known.front().add(value.front());
        return true;
    }

    // A variable of twice another, and so on, would be larger than memory.
    void require_size(const std::string& name, const std::vector<Text>& value, int where) const {
        constexpr size_t kMost = 1 << 20;
        size_t size = 0;
        for (const Text& t : value) size += t.chars.size() + 1;
        if (size > kMost)
            throw UserError(
                "recipe.script", origin_,
                fmt::format("{}:{}: {} has more than {} characters: no command line is as long", origin_, where, name, kMost));
    }

    std::vector<Text> array() {
        const int since = line();
        ++at_;
        std::vector<Text> items;
        while (peek() != ')') {
            if (at_end()) never_closed("the bracket (", since);
            if (skip("\\\r\n") || skip("\\\n")) continue;
            if (is_space(peek())) ++at_;
            else if (peek() == '#') comment();
            else if (std::string(";&|<>(").find(peek()) != std::string::npos) ++at_;
            else
                for (Text& field : word()) items.push_back(std::move(field));
        }
        ++at_;
        return items;
    }

    // A word that is not split, as in an assignment.
    Text joined() {
        Text out;
        for (const Text& field : word()) {
            if (!out.chars.empty()) out.add(' ', line());
            out.add(field);
        }
        return out;
    }

    // Up to a blank or an operator.
    std::vector<Text> word() {
        Fields out;
        while (!at_end() && !is_space(peek()) && std::string(";&|<>()").find(peek()) == std::string::npos) {
            const char c = peek();
            const int here = line();
            if (skip("\\\r\n") || skip("\\\n")) continue;
            if (c == '\\') {
                ++at_;
                if (!at_end()) out.add(peek(), line()), ++at_;
            } else if (c == '\'') {
                single_quoted(out);
            } else if (c == '"') {
                double_quoted(out);
            } else if (c == '$' || c == '`') {
                const Expansion e = expansion();
                if (!e.known) out.add(e.items.front());
                else
                    for (size_t i = 0; i < e.items.size(); ++i) {
                        if (i > 0) out.end();
                        out.split(e.items[i]);
                    }
            } else {
                out.add(c, here), ++at_;
            }
        }
        return out.take();
    }

    void single_quoted(Fields& out) {
        const int since = line();
        out.open();
        for (++at_; peek() != '\''; ++at_) {
            if (at_end()) never_closed("the quote '", since);
            out.add(peek(), line());
        }
        ++at_;
    }

    void double_quoted(Fields& out) {
        const int since = line();
        out.open();
        for (++at_; peek() != '"';) {
            if (at_end()) never_closed("the quote \"", since);
            if (skip("\\\r\n") || skip("\\\n")) continue;
            if (peek() == '\\' && std::string("$`\"\\").find(peek(1)) != std::string::npos && peek(1) != '\0') {
                out.add(peek(1), line()), at_ += 2;
            } else if (peek() == '$' || peek() == '`') {
                const Expansion e = expansion();
                for (size_t i = 0; i < e.items.size(); ++i) {
                    if (i > 0) e.apart ? out.end() : out.add(' ', line());
                    out.add(e.items[i]);
                }
            } else {
                out.add(peek(), line()), ++at_;
            }
        }
        ++at_;
    }

    struct Expansion {
        std::vector<Text> items;
        bool known = true, apart = false;  // `apart`: "${NAME[@]}"
    };
    Expansion as_written(size_t begin) const {
        Text text;
        const bool is_command =
            in_.chars[begin] == '`' || (in_.chars.compare(begin, 2, "$(") == 0 && in_.chars.compare(begin, 3, "$((") != 0);
        if (is_command) {
            text.add("$(...)", in_.lines[begin]);  // one word, whatever words it has
            return {{text}, false};
        }
        for (size_t i = begin; i < std::min(at_, in_.chars.size()); ++i) {
            if (!is_space(in_.chars[i])) text.add(in_.chars[i], in_.lines[i]);
        }
        return {{text}, false};
    }

    Expansion expansion() {
        const size_t begin = at_;
        const int since = line();
        if (peek() == '`') {
            at_ = in_.chars.find('`', at_ + 1);
            if (at_ == std::string::npos) at_ = in_.chars.size(), never_closed("the quote `", since);
            ++at_;
            return as_written(begin);
        }
        if (skip("$((")) return arithmetic(begin, since);
        if (skip("$(")) {
            skip_to_closing('(', ')', since);
            return as_written(begin);
        }
        if (skip("${")) return braces(begin, since);
        ++at_;
        size_t end = at_;
        if (end < in_.chars.size() && begins_name(in_.chars[end])) {
            while (end < in_.chars.size() && is_of_name(in_.chars[end])) ++end;
            const std::string name = in_.chars.substr(at_, end - at_);
            at_ = end;
            const auto known = variables_.find(name);
            if (known == variables_.end()) return as_written(begin);
            return {known->second.empty() ? std::vector<Text>{} : std::vector<Text>{known->second.front()}};
        }
        if (!at_end() && !is_space(peek()) && peek() != '"') ++at_;  // $1, $@, $?
        return as_written(begin);
    }

    // Just behind the bracket that closes the one before.
    void skip_to_closing(char open, char close, int since) {
        int depth = 1;
        for (; depth > 0; ++at_) {
            if (at_end()) never_closed(open == '(' ? "the bracket (" : "the bracket {", since);
            if (peek() == open) ++depth;
            if (peek() == close) --depth;
        }
    }

    Expansion arithmetic(size_t begin, int since) {
        const size_t inside = at_;
        skip_to_closing('(', ')', since);
        const std::string text = in_.chars.substr(inside, at_ - 1 - inside);
        if (peek() == ')') ++at_;
        const auto value_of = [&](const std::string& name) -> std::optional<std::string> {
            const auto known = variables_.find(name);
            if (known == variables_.end() || known->second.size() != 1) return std::nullopt;
            return known->second.front().chars;
        };
        const std::optional<int64_t> value = evaluate(text, value_of);
        if (!value) return as_written(begin);
        Text number;
        number.add(std::to_string(*value), since);
        return {{number}};
    }

    // ${NAME}, ${NAME[@]}, ${NAME:-otherwise}; whatever else may stand there is left as it is.
    Expansion braces(size_t begin, int since) {
        const size_t inside = at_;
        skip_to_closing('{', '}', since);
        const std::string text = in_.chars.substr(inside, at_ - 1 - inside);
        size_t end = 0;
        while (end < text.size() && is_of_name(text[end])) ++end;
        const auto known = variables_.find(text.substr(0, end));
        const std::string rest = text.substr(end);
        const bool is_known = known != variables_.end() && end > 0;
        if (rest == "[@]" || rest == "[*]") return is_known ? Expansion{known->second, true, rest == "[@]"} : as_written(begin);
        const bool has_otherwise = rest.starts_with(":-") || rest.starts_with(":=") || rest.starts_with("-");
        if (!rest.empty() && !has_otherwise) return as_written(begin);
        if (is_known) return {known->second.empty() ? std::vector<Text>{} : std::vector<Text>{known->second.front()}};
        if (!has_otherwise || out_.unknown.contains(text.substr(0, end))) return as_written(begin);
        Text otherwise;
        const size_t from = inside + end + (rest[0] == '-' ? 1 : 2);
        for (size_t i = from; i + 1 < at_; ++i) otherwise.add(in_.chars[i], in_.lines[i]);
        return {{otherwise}, otherwise.chars.find('$') == std::string::npos};
    }

    void redirection() {
        if (skip("<<<")) return void(plain_word());
        if (skip("<<-") || skip("<<")) {
            const bool quoted = [&] {
                while (is_blank(peek())) ++at_;
                return peek() == '\'' || peek() == '"' || peek() == '\\';
            }();
            documents_.push_back({plain_word(), target_, !quoted, line()});
            return;
        }
        while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '|') ++at_;
        target_ = plain_word();
        if (!documents_.empty() && documents_.back().target.empty()) documents_.back().target = target_;
    }

    std::string plain_word() {
        while (is_blank(peek())) ++at_;
        return joined().chars;
    }

    // The lines of a here-document, up to the one that ends it.
    void take_document() {
        const Document d = documents_.front();
        documents_.erase(documents_.begin());
        std::string body;
        for (bool ended = false; !ended;) {
            if (at_end()) never_closed("the here-document", d.line);
            const size_t end = std::min(in_.chars.find('\n', at_), in_.chars.size());
            std::string text = in_.chars.substr(at_, end - at_);
            if (!text.empty() && text.back() == '\r') text.pop_back();
            ended = text.substr(std::min(text.find_first_not_of('\t'), text.size())) == d.end;
            if (!ended) body += (d.expands ? expanded(end) : text) + "\n";
            at_ = std::min(end + 1, in_.chars.size());
        }
        if (!d.target.empty()) out_.files[d.target] = body;
        target_.clear();
    }

    // From here to `end`, with the values of variables.
    std::string expanded(size_t end) {
        std::string out;
        while (at_ < end) {
            if (peek() == '\\' && (peek(1) == '$' || peek(1) == '"')) {
                out += peek(1), at_ += 2;
            } else if (peek() == '$') {
                for (const Text& t : expansion().items) out += t.chars;
            } else {
                out += peek(), ++at_;
            }
        }
        return out;
    }

    struct Document {
        std::string end, target;
        bool expands;
        int line;
    };

    const Text in_;
    size_t at_ = 0;
    const std::string& origin_;
    Variables& variables_;
    Script& out_;
    const int nested_;
    std::vector<Text> command_;
    Branches branches_;
    std::vector<Document> documents_;
    std::string target_;
};

}  // namespace

Script read_script(const std::string& text, const std::string& origin) {
    Script out;
    Variables variables;
    Reader(numbered(text), origin, variables, out, 0).run();
    return out;
}

bool Script::is_unknown(const std::string& text) { return text.find_first_of("$`") != std::string::npos; }

std::string Script::why(const std::string& text) const {
    const size_t at = text.find_first_of("$`");
    size_t begin = at + 1;
    if (text.compare(at, 3, "$((") == 0) {
        while (begin < text.size() && !begins_name(text[begin])) ++begin;
    } else if (text[at] == '`' || text.compare(begin, 1, "(") == 0) {
        return "the output of a command is known to a run alone";
    }
    if (text.compare(begin, 1, "{") == 0) ++begin;
    size_t end = begin;
    while (end < text.size() && is_of_name(text[end])) ++end;
    const std::string name = text.substr(begin, end - begin);
    if (const auto known = unknown.find(name); known != unknown.end()) return known->second;
    if (name.empty() || !begins_name(name[0])) return fmt::format("{} is what the script is called with", text.substr(at));
    return fmt::format("{} is not set in the script", name);
}

}  // namespace lockstep::interop
