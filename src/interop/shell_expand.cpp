// What becomes of a word: expansions of parameters, commands and arithmetic, quotes, and splitting at blanks.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "interop/arithmetic.h"
#include "interop/shell_interpreter.h"
#include "interop/shell_pattern.h"

namespace lockstep::interop {

// The words that a word of the script becomes: none or several where a variable is outside of quotes.
class Interpreter::Fields {
public:
    // Several items of one word are joined by the first of the separators.
    Fields(bool splits, std::string separators) : splits_(splits), separators_(std::move(separators)) {}

    void add(char c, Place place) { current_.add(c, place), open_ = true; }
    void add(const Text& t) {
        if (!t.empty()) current_.add(t), open_ = true;
    }
    void open() { open_ = true; }  // quotes without content are an empty word
    void split(const Text& t) {
        if (!splits_) return add(t);
        size_t begin = 0;
        bool ended_by_blank = false;  // a separator behind blanks belongs to them
        for (size_t i = 0; i < t.size(); ++i) {
            if (t.why(i) || separators_.find(t[i]) == std::string::npos) continue;
            const bool is_blank = is_shell_space(t[i]);
            add(t.part(begin, i));
            if (begin < i) ended_by_blank = false;
            begin = i + 1;
            if (is_blank) {
                ended_by_blank |= open_;
            } else if (ended_by_blank && !open_) {
                ended_by_blank = false;
                continue;
            } else {
                open_ = true, ended_by_blank = false;
            }
            end();
        }
        add(t.part(begin, t.size()));
    }
    void end() {
        if (!splits_) return;
        if (open_) done_.push_back(std::move(current_));
        current_ = {}, open_ = false;
    }
    // Between two items of an array.
    void next(bool as_words, bool apart, Place place) {
        if (splits_ && as_words) end();
        else if (apart) add(' ', place);
        else if (!separators_.empty()) add(separators_[0], place);
    }
    std::vector<Text> take() {
        if (open_ || !splits_) done_.push_back(std::move(current_));
        return std::move(done_);
    }

private:
    bool splits_, open_ = false;
    std::string separators_;
    std::vector<Text> done_;
    Text current_;
};

namespace {

char shell_escape(char c) {
    switch (c) {
        case 'n': return '\n';
        case 't': return '\t';
        case 'r': return '\r';
        case 'a': return '\a';
        case 'e': return '\x1b';
        default: return c;
    }
}

// "{a,b}" and "{1..4}" outside of quotes: where it begins and ends, and what it lists.
struct Braced {
    size_t begin = 0, end = 0;
    std::vector<Text> items;
};

std::optional<Braced> numbers_between(const Text& raw, size_t begin, size_t end) {
    const std::string inside = raw.chars().substr(begin + 1, end - begin - 2);
    const size_t dots = inside.find("..");
    if (dots == std::string::npos) return std::nullopt;
    std::vector<long> n;
    const bool are_letters = dots == 1 && inside.size() >= 4 && std::isalpha(static_cast<unsigned char>(inside[0])) &&
                             std::isalpha(static_cast<unsigned char>(inside[3]));
    size_t width = 0;  // of numbers with a 0 in front
    for (size_t at = 0; at <= inside.size();) {
        const size_t next = std::min(inside.find("..", at), inside.size());
        const std::string word = inside.substr(at, next - at);
        const std::string digits = word.starts_with("-") ? word.substr(1) : word;
        constexpr size_t kDigits = 6;
        at = next + 2;
        if (are_letters && n.size() < 2) {
            if (word.size() != 1) return std::nullopt;
            n.push_back(word[0]);
            continue;
        }
        if (digits.empty() || digits.size() > kDigits || digits.find_first_not_of("0123456789") != std::string::npos)
            return std::nullopt;
        if (n.size() < 2) width = std::max(digits.size() > 1 && digits[0] == '0' ? word.size() : 0, width);
        n.push_back(std::stol(word));
        if (n.size() == 2 && width > 0) width = std::max(width, std::max(dots, word.size()));
    }
    if (n.size() < 2 || n.size() > 3) return std::nullopt;
    const long step = std::max(n.size() == 3 ? std::abs(n[2]) : 1L, 1L);
    Braced out{begin, end, {}};
    constexpr size_t kMost = 10000;
    for (long i = n[0]; n[0] <= n[1] ? i <= n[1] : i >= n[1]; i += n[0] <= n[1] ? step : -step) {
        if (out.items.size() > kMost) return std::nullopt;
        out.items.emplace_back(are_letters ? std::string(1, static_cast<char>(i)) : fmt::format("{:0{}}", i, width),
                               raw.place(begin));
    }
    return out;
}

}  // namespace

// The words that a word with braces stands for; itself if it has none.
std::vector<Text> Interpreter::braced(const Text& raw) {
    const std::string& s = raw.chars();
    for (size_t i = 0; i < raw.size();) {
        if (raw.why(i) || s[i] != '{') {
            i = end_of_quoted(raw, i, path_);
            continue;
        }
        std::vector<size_t> commas;
        size_t end = i + 1;
        for (int depth = 1; end < raw.size() && depth > 0;) {
            if (s[end] == '{') ++depth, ++end;
            else if (s[end] == '}') --depth, ++end;
            else if (s[end] == ',' && depth == 1) commas.push_back(end++);
            else end = end_of_quoted(raw, end, path_);
            if (depth == 0) break;
            if (end >= raw.size()) return {raw};
        }
        std::optional<Braced> found = numbers_between(raw, i, end);
        if (!found && !commas.empty()) {
            found = Braced{i, end, {}};
            size_t begin = i + 1;
            commas.push_back(end - 1);
            for (const size_t comma : commas) found->items.push_back(raw.part(begin, comma)), begin = comma + 1;
        }
        if (!found) {
            ++i;
            continue;
        }
        std::vector<Text> out;
        for (const Text& item : found->items) {
            Text whole = raw.part(0, i);
            whole.add(item);
            whole.add(raw, end, raw.size());
            require_steps(1 + whole.size() / 16);
            for (Text& t : braced(whole)) out.push_back(std::move(t));
        }
        return out;
    }
    return {raw};
}

Interpreter::Words Interpreter::fields(const Text& raw) {
    Words out;
    for (const Text& word : braced(raw)) {
        Fields f(true, separators());
        expand(word, f);
        for (Text& t : f.take()) out.push_back(std::move(t));
    }
    return out;
}

std::string Interpreter::separators() const {
    const std::string usual = " \t\n";
    const Variable* ifs = state_.find("IFS");
    const std::string out = ifs && !ifs->items.empty() ? ifs->items.begin()->second.chars() : usual;
    return out == usual ? usual + "\r" : out;  // files of other systems have \r at the ends of lines
}

// A word that is not split, as in an assignment.
Text Interpreter::joined(const Text& raw) {
    Fields f(false, separators());
    expand(raw, f);
    return f.take().front();
}

void Interpreter::expand(const Text& raw, Fields& out, bool splits_blanks) {
    require_steps(1 + raw.size() / 16);
    const std::string& s = raw.chars();
    for (size_t i = 0; i < raw.size();) {
        if (raw.why(i)) {
            out.add(raw.part(i, i + 1)), ++i;
            continue;
        }
        const size_t end = end_of_quoted(raw, i, path_);
        if (s[i] == '\\') {
            if (end == i + 2 && s[i + 1] != '\n') out.add(s[i + 1], raw.place(i + 1));
            i = end + (end == i + 2 && s[i + 1] == '\r' && s.compare(end, 1, "\n") == 0);
        } else if (s[i] == '\'') {
            out.open();
            out.add(raw.part(i + 1, end - 1));
            i = end;
        } else if (s[i] == '"') {
            if (expand_quoted(raw, i + 1, end - 1, out, Quoted::Word)) out.open();
            i = end;
        } else if (s[i] == '$' && s.compare(i + 1, 1, "'") == 0) {
            out.open();
            for (size_t k = i + 2; k + 1 < end; ++k) {
                const bool escaped = s[k] == '\\' && k + 2 < end;
                if (escaped) ++k;
                out.add(escaped ? shell_escape(s[k]) : s[k], raw.place(k));
            }
            i = end;
        } else if (s[i] == '$' && s.compare(i + 1, 1, "\"") == 0) {
            ++i;
        } else if (s[i] == '$' || s[i] == '`') {
            size_t behind = end;
            if (end == i + 1 && i + 1 < raw.size()) {
                const size_t name = end_of_name(s, i + 1);
                behind = name > i + 1 ? name : is_special_parameter(s[i + 1]) ? i + 2 : i + 1;
            }
            if (behind == i + 1) {
                out.add('$', raw.place(i));
            } else {
                const Value v = expansion(raw, i, behind);
                if (v.raw) expand(*v.raw, out, true);
                for (size_t k = 0; k < v.items.size(); ++k) {
                    if (k > 0) out.next(true, v.apart, raw.place(i));
                    out.split(v.items[k]);
                }
            }
            i = behind;
        } else if ((s[i] == '<' || s[i] == '>') && s.compare(i + 1, 1, "(") == 0) {
            const size_t behind = end_of_word(raw, i, path_);
            const Text file = Text::unknown("<(...)", raw.place(i), because("the output of a command is known only to a run"));
            if (s[i] == '<')
                state_.files[file.chars() + id_of(file)] =
                    std::make_shared<const Text>(captured(raw.part(i + 2, behind - 1), raw.place(i)));
            out.add(file);
            i = behind;
        } else if (splits_blanks) {
            out.split(raw.part(i, end));
            i = end;
        } else {
            out.add(raw.part(i, end));
            i = end;
        }
    }
}

// Between double quotes, or a line of a here-document, in which " stands for itself.
bool Interpreter::expand_quoted(const Text& raw, size_t begin, size_t stop, Fields& out, Quoted kind) {
    const std::string& s = raw.chars();
    bool is_word = begin == stop && kind != Quoted::Inner;
    const std::string escaped = kind == Quoted::Document ? "$`\\" : "$`\"\\";
    const auto is_plain = [&](size_t i) {
        return raw.why(i) || (s[i] != '\\' && s[i] != '$' && s[i] != '`' && (s[i] != '"' || kind != Quoted::Inner));
    };
    for (size_t i = begin; i < stop;) {
        if (s[i] == '"' && !is_plain(i)) {
            ++i;
            continue;
        }
        if (is_plain(i)) {
            size_t next = i + 1;
            while (next < stop && is_plain(next)) ++next;
            out.add(raw.part(i, next));
            i = next, is_word = true;
            continue;
        }
        if (s[i] == '\\') {
            is_word = true;
            const bool ends_line = s.compare(i + 1, 1, "\n") == 0 || s.compare(i + 1, 2, "\r\n") == 0;
            if (ends_line) {
                i = s.find('\n', i) + 1;
            } else if (i + 1 < stop && escaped.find(s[i + 1]) != std::string::npos) {
                out.add(s[i + 1], raw.place(i + 1)), i += 2;
            } else {
                out.add('\\', raw.place(i)), ++i;
            }
            continue;
        }
        size_t behind = s.compare(i, 2, "$'") == 0 ? i + 1 : std::min(end_of_quoted(raw, i, path_), stop);
        if (behind == i + 1 && i + 1 < stop) {
            const size_t name = std::min(end_of_name(s, i + 1), stop);
            behind = name > i + 1 ? name : is_special_parameter(s[i + 1]) ? i + 2 : i + 1;
        }
        if (behind == i + 1) {
            out.add('$', raw.place(i));
            is_word = true;
        } else {
            const Value v = expansion(raw, i, behind);
            if (v.raw) is_word |= expand_quoted(*v.raw, 0, v.raw->size(), out, Quoted::Inner) || v.raw->empty();
            for (size_t k = 0; k < v.items.size(); ++k) {
                if (k > 0) out.next(v.apart, v.apart, raw.place(i));
                out.add(v.items[k]);
                if (v.apart) out.open();
            }
            is_word |= !v.raw && (!v.apart || !v.items.empty());
        }
        i = behind;
    }
    return is_word;
}

Text Interpreter::document(const Text& body) {
    Fields f(false, separators());
    expand_quoted(body, 0, body.size(), f, Quoted::Document);
    return f.take().front();
}

// The first line of the script with NAME= or NAME+=; 0: none.
int Interpreter::line_that_sets(const std::string& name) const {
    const auto is_name = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
    for (size_t at = text_.find(name); at != std::string::npos; at = text_.find(name, at + 1)) {
        const size_t behind = at + name.size() + (text_.compare(at + name.size(), 1, "+") == 0);
        if ((at > 0 && (is_name(text_[at - 1]) || text_[at - 1] == '-')) || text_.compare(behind, 1, "=") != 0) continue;
        return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<long>(at), '\n'));
    }
    return 0;
}

Text::Why Interpreter::why_unset(const std::string& name) {
    require_steps(1 + text_.size() / 4096);
    for (const Word& w : out_.unread)
        return std::make_shared<const Reason>(
            Reason{fmt::format("{} is not set in the script, and `{}` ({}), which may set it, is not read: {}", name, w.text,
                               w.where, w.why),
                   "--script-env " + name + "=VALUE", !may_set_all_});
    const int line = line_that_sets(name);
    return std::make_shared<const Reason>(
        Reason{line == 0 ? name + " is not set in the script"
                         : fmt::format("{} is set on line {}, where this run does not come", name, line),
               "--script-env " + name + "=VALUE", true});
}

// "$NAME", "$1", "${...}", "$(...)", "$((...))" or "`...`" between `begin` and `end`.
Interpreter::Value Interpreter::expansion(const Text& raw, size_t begin, size_t end) {
    require_steps(1);
    const std::string& s = raw.chars();
    const Place place = raw.place(begin);
    if (s[begin] == '`') {
        Text inside;
        for (size_t i = begin + 1; i + 1 < end; ++i) {
            if (s[i] == '\\' && i + 2 < end && std::string("`\\$").find(s[i + 1]) != std::string::npos) ++i;
            inside.add(raw, i, i + 1);
        }
        return {{substituted(inside, place)}};
    }
    const bool is_doubled = s.compare(begin, 3, "$((") == 0 && s.compare(end - 2, 2, "))") == 0;
    if (is_doubled || s.compare(begin, 2, "$[") == 0) {
        Text::Why why;
        const std::optional<int64_t> n = number(is_doubled ? raw.part(begin + 3, end - 2) : raw.part(begin + 2, end - 1), why);
        if (n) return {{Text(std::to_string(*n), place)}};
        return {{Text::unknown(without_shell_blanks(s.substr(begin, end - begin)), place, of_value(why))}};
    }
    if (s.compare(begin, 2, "$(") == 0) return {{substituted(raw.part(begin + 2, end - 1), place)}};
    if (s.compare(begin, 2, "${") == 0) return braces(raw, begin, end);
    const std::string name = s.substr(begin + 1, end - begin - 1);
    Value v = parameter(name, place, s.substr(begin, end - begin));
    require_set(name, v, place);
    return v;
}

// A word as a pattern: what is quoted stands for itself.
std::string Interpreter::pattern_of(const Text& raw, Text::Why& why) {
    const std::string& s = raw.chars();
    std::string out;
    for (size_t i = 0; i < raw.size();) {
        size_t end = end_of_quoted(raw, i, path_);
        if (s[i] == '$' && end == i + 1) {
            const size_t name = end_of_name(s, i + 1);
            end = name > i + 1 ? name : i + 1 < raw.size() && is_special_parameter(s[i + 1]) ? i + 2 : end;
        }
        const Text piece = raw.part(i, end);
        const bool plain = !raw.why(i) && end == i + 1;
        const Text text = plain ? piece : joined(piece);
        if (!why) why = text.why();
        const bool is_quoted = s[i] == '\\' || s[i] == '\'' || s[i] == '"' || s.compare(i, 2, "$'") == 0;
        out += is_quoted ? Pattern::quoted(text.chars()) : text.chars();
        i = end;
    }
    return out;
}

std::optional<int64_t> Interpreter::number(const Text& expression, Text::Why& why) {
    Fields f(false, separators());
    const std::string& s = expression.chars();
    // Quotes do nothing in arithmetic.
    Text plain;
    for (size_t i = 0; i < s.size(); ++i) {
        if (s[i] != '"' || expression.why(i)) plain.add(expression, i, i + 1);
    }
    expand_quoted(plain, 0, plain.size(), f, Quoted::Word);
    const Text text = f.take().front();
    why = text.why();
    if (why) return std::nullopt;
    Names names;
    names.value = [&](const std::string& name) -> std::optional<std::string> {
        require_steps(1);
        const size_t bracket = name.find('[');
        const Place place = expression.place();
        const Value v =
            bracket == std::string::npos
                ? parameter(name, place, name)
                : element(name.substr(0, bracket), Text(name.substr(bracket + 1, name.size() - bracket - 2), place), place, name);
        if (v.items.empty()) return "0";
        if (!why) why = v.items.front().why();
        return why ? std::nullopt : std::optional(v.items.front().chars());
    };
    names.assign = [&](const std::string& name, int64_t n) {
        set(name, Text(std::to_string(n), expression.place()), expression.place());
    };
    const std::optional<int64_t> n = evaluate(text.chars(), names);
    if (!n && !why) why = because(fmt::format("the arithmetic of {} has no value", text.chars()));
    return n;
}

// What the commands print.
Text Interpreter::substituted(const Text& commands, Place place) {
    const std::string& s = commands.chars();
    const size_t first = s.find_first_not_of(" \t\r\n");
    if (first != std::string::npos && s[first] == '<' && s.compare(first, 2, "<<") != 0) {
        Text name = commands.part(s.find_first_not_of(" \t", first + 1), commands.size());
        if (std::optional<Text> text = file_text(joined(name))) {
            while (!text->empty() && text->chars().back() == '\n') *text = text->part(0, text->size() - 1);
            return *text;
        }
    }
    const Text out = captured(commands, place);
    size_t end = out.size();
    while (end > 0 && out[end - 1] == '\n' && !out.why(end - 1)) --end;
    return out.part(0, end);
}

Text Interpreter::captured(const Text& commands, Place place) {
    const std::shared_ptr<const Node> parsed = parse_script(commands, file_of(place));
    State before = state_;
    const bool discarded = discards_;
    std::vector<Frame> frames;
    std::swap(frames, frames_);
    discards_ = true;
    Text out = kept_of([&] { run(*parsed); });
    has_substituted_ = true;
    before.files = state_.files, before.kept = state_.kept;
    before.status = state_.status, before.status_why = state_.status_why;
    state_ = std::move(before);
    discards_ = discarded;
    std::swap(frames, frames_);
    return out;
}

}  // namespace lockstep::interop
