#include "data/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "data/unicode.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using FieldKind = JsonField::Kind;

constexpr size_t kMostFieldsNamed = 12;
constexpr size_t kLongestNameShown = 64;

// Does one of the eight bytes end a stretch of plain text: a quote, a backslash, or a control character?
bool any_ends_plain_text(uint64_t bytes) {
    constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
    const auto below = [](uint64_t v, uint64_t limit) { return (v - kOnes * limit) & ~v & kHigh; };
    return (below(bytes, 0x20) | below(bytes ^ kOnes * '"', 1) | below(bytes ^ kOnes * '\\', 1)) != 0;
}

bool ends_plain_text(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

bool is_json_digit(char c) { return c >= '0' && c <= '9'; }

struct Literal {
    std::string_view text;
    FieldKind kind;
    const char* what;
};
constexpr std::array<Literal, 6> kLiterals = {{{"null", FieldKind::null, "null"},
                                               {"true", FieldKind::wrong_type, "true or false"},
                                               {"false", FieldKind::wrong_type, "true or false"},
                                               {"NaN", FieldKind::wrong_type, "NaN"},
                                               {"Infinity", FieldKind::wrong_type, "Infinity"},
                                               {"-Infinity", FieldKind::wrong_type, "-Infinity"}}};

class JsonReader {
public:
    // `notes_fields`: keep the names of the fields that the path leads past.
    JsonReader(std::string_view text, size_t from, const FieldPath& field, bool notes_fields)
        : text_(text), at_(from), path_(field.text()), notes_fields_(notes_fields) {}

    JsonField read() {
        if (!value()) {
            found_.kind = FieldKind::not_json;
            found_.text.clear();
            found_.end = at_;
            found_.detail = not_json_at(at_ + 1, why_);
            return std::move(found_);
        }
        found_.end = at_;
        if (found_.kind == FieldKind::absent) found_.detail = std::move(fields_);
        return std::move(found_);
    }

private:
    // What the name before a value says of it.
    enum class Leads { nowhere, to_the_field, further };

    bool fail(const char* why) {
        why_ = why;
        return false;
    }
    bool cut(const char* why) {
        at_ = text_.size();
        found_.is_cut = true;
        return fail(why);
    }
    bool at_end() {
        at_ = skip_json_space(text_, at_);
        return at_ == text_.size();
    }

    // Reads the value without recursion: what it holds may be nested to any depth.
    bool value() {
        while (true) {
            if (at_end()) return cut("it ends where a value belongs");
            const char c = text_[at_];
            if (c == '{' || c == '[') {
                open(c);
                if (at_end()) return cut("it ends in the middle");
                if (text_[at_] != closing()) {
                    if (c == '{' && !name()) return false;
                    continue;
                }
                close();
            } else if (!scalar(c)) {
                return false;
            }
            const Then then = end_value();
            if (then != Then::a_value_follows) return then == Then::all_is_read;
        }
    }

    enum class Then { a_value_follows, all_is_read, error };
    // Closes what ends behind a value.
    Then end_value() {
        while (!open_.empty()) {
            if (at_end()) return cut("it ends in the middle"), Then::error;
            const bool is_object = open_.back() == '{';
            if (text_[at_] == closing()) {
                close();
            } else if (text_[at_] == ',') {
                ++at_;
                return is_object && !name() ? Then::error : Then::a_value_follows;
            } else {
                return fail(is_object ? "a ',' or a '}' belongs here" : "a ',' or a ']' belongs here"), Then::error;
            }
        }
        return Then::all_is_read;
    }

    char closing() const { return open_.back() == '{' ? '}' : ']'; }

    void open(char c) {
        const bool is_object = c == '{';
        if (open_.empty()) {
            found_ = {is_object ? FieldKind::absent : FieldKind::no_object, "", is_object ? "" : "a list", 0, false};
            if (is_object) path_at_.push_back(0);
        } else if (leads_ == Leads::to_the_field) {
            take(FieldKind::wrong_type, is_object ? "an object" : "a list");
        } else if (leads_ == Leads::further && is_object) {
            path_at_.push_back(rest_);
        }
        leads_ = Leads::nowhere;
        open_.push_back(c);
        ++at_;
    }
    void close() {
        if (path_at_.size() == open_.size()) path_at_.pop_back();
        open_.pop_back();
        ++at_;
    }

    void take(FieldKind kind, const char* what) {
        const bool is_first = found_.kind == FieldKind::absent || is_null_above_;
        is_null_above_ = false;
        if (!is_first && spelling_ != path_at_) {
            found_.kind = FieldKind::ambiguous;
        } else if (found_.kind != FieldKind::ambiguous) {
            found_.kind = kind;
            found_.detail = what;
        }
        if (is_first) spelling_ = path_at_;
        if (kind != FieldKind::text) found_.text.clear();
    }

    // The name of a field, and the colon behind it.
    bool name() {
        if (at_end()) return cut("it ends in the middle");
        if (text_[at_] != '"') return fail("a name in double quotes belongs here");
        leads_ = Leads::nowhere;
        if (path_at_.size() == open_.size()) {
            name_.clear();
            if (!string(&name_)) return false;
            follow();
        } else if (!string(nullptr)) {
            return false;
        }
        if (at_end()) return cut("it ends in the middle");
        if (text_[at_] != ':') return fail("a ':' belongs here");
        ++at_;
        return true;
    }

    void follow() {
        const std::string_view rest = std::string_view(path_).substr(path_at_.back());
        if (name_ == rest) leads_ = Leads::to_the_field;
        else if (rest.size() > name_.size() && rest[name_.size()] == '.' && rest.starts_with(name_)) leads_ = Leads::further;
        rest_ = path_at_.back() + name_.size() + 1;
        if (notes_fields_) note();
    }

    void note() {
        if (++fields_seen_ > kMostFieldsNamed) {
            if (fields_seen_ == kMostFieldsNamed + 1) fields_ += ", ...";
            return;
        }
        if (!fields_.empty()) fields_ += ", ";
        fields_ += path_.substr(0, path_at_.back()) + with_replacements(std::string_view(name_).substr(0, kLongestNameShown));
        if (name_.size() > kLongestNameShown) fields_ += "...";
    }

    bool scalar(char c) {
        if (c == '"') {
            const bool is_field = leads_ == Leads::to_the_field;
            if (is_field) found_.text.clear();
            if (!string(is_field ? &found_.text : nullptr)) return false;
            return ended(FieldKind::text, "a string");
        }
        if (is_json_digit(c)) return number() && ended(FieldKind::wrong_type, "a number");
        for (const Literal& literal : kLiterals) {
            if (text_.substr(at_, literal.text.size()) != literal.text) continue;
            at_ += literal.text.size();
            return ended(literal.kind, literal.what);
        }
        if (c == '-') return number() && ended(FieldKind::wrong_type, "a number");
        for (const Literal& literal : kLiterals)
            if (literal.text.starts_with(text_.substr(at_))) return cut("it ends in the middle");
        return fail("no value begins like this");
    }

    bool ended(FieldKind kind, const char* what) {
        if (open_.empty()) found_ = {FieldKind::no_object, "", what, 0, false};
        else if (leads_ == Leads::to_the_field) take(kind, what);
        else if (leads_ == Leads::further && kind == FieldKind::null && found_.kind == FieldKind::absent)
            take(kind, what), is_null_above_ = true;  // null for the object is null for the field in it, as in Parquet
        leads_ = Leads::nowhere;
        return true;
    }

    bool number() {
        const auto digits = [&] {
            if (at_ == text_.size()) return cut("it ends in a number");
            if (!is_json_digit(text_[at_])) return fail("a digit belongs here");
            while (at_ < text_.size() && is_json_digit(text_[at_])) ++at_;
            return true;
        };
        const auto is_at = [&](std::string_view any) {
            return at_ < text_.size() && any.find(text_[at_]) != std::string_view::npos;
        };
        if (is_at("-")) ++at_;
        if (is_at("0")) ++at_;
        else if (!digits()) return false;
        if (is_at(".") && (++at_, !digits())) return false;
        if (!is_at("eE")) return true;
        ++at_;
        if (is_at("+-")) ++at_;
        return digits();
    }

    // A string, appended to `out` unless that is null.
    bool string(std::string* out) {
        size_t begin = ++at_;
        while (true) {
            for (uint64_t eight; text_.size() - at_ >= sizeof(eight); at_ += sizeof(eight)) {
                std::memcpy(&eight, text_.data() + at_, sizeof(eight));
                if (any_ends_plain_text(eight)) break;
            }
            while (at_ < text_.size() && !ends_plain_text(text_[at_])) ++at_;
            if (at_ == text_.size()) return cut("a string does not end");
            if (out != nullptr) out->append(text_.substr(begin, at_ - begin));
            if (text_[at_] == '"') return ++at_, true;
            if (text_[at_] != '\\') return fail("a control character in a string must be written as \\u00NN, \\n or \\t");
            if (!escape(out)) return false;
            begin = at_;
        }
    }

    bool escape(std::string* out) {
        constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
        if (++at_ == text_.size()) return cut("a string does not end");
        const char c = text_[at_];
        if (const size_t known = kNames.find(c); known != std::string_view::npos) {
            if (out != nullptr) *out += kMeanings[known];
            ++at_;
            return true;
        }
        if (c != 'u') return fail("no escape begins like this");
        ++at_;
        uint32_t unit = 0, second = 0;
        if (!four_digits(unit)) return false;
        uint32_t code_point = unit;
        if (unit >= 0xD800 && unit < 0xE000) {
            code_point = 0xFFFD;
            const size_t behind = at_;
            const bool is_high = unit < 0xDC00;
            if (is_high && text_.substr(at_, 2) == "\\u") {
                at_ += 2;
                if (!four_digits(second)) return false;
                if (second >= 0xDC00 && second < 0xE000) code_point = 0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00);
                else at_ = behind;
            }
        }
        if (out != nullptr) append_utf8(*out, code_point);
        return true;
    }

    bool four_digits(uint32_t& unit) {
        unit = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            if (at_ == text_.size()) return cut("a string does not end");
            const char c = text_[at_];
            const int digit = is_json_digit(c)       ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) return fail("a hexadecimal digit belongs here");
            unit = unit * 16 + static_cast<uint32_t>(digit);
        }
        return true;
    }

    std::string_view text_;
    size_t at_;
    const std::string& path_;
    bool notes_fields_;
    const char* why_ = nullptr;
    JsonField found_;
    std::string open_;              // the lists and objects that are open: '[' or '{' each
    std::vector<size_t> path_at_;   // where the rest of the path begins, of each object that it leads through
    std::vector<size_t> spelling_;  // path_at_ of the field that was found
    Leads leads_ = Leads::nowhere;
    bool is_null_above_ = false;  // what was found is the null of an object that the path leads through
    size_t rest_ = 0;             // of a name that leads further
    std::string name_;
    std::string fields_;
    size_t fields_seen_ = 0;
};

}  // namespace

FieldPath::FieldPath(const std::string& path) : text_(path) {
    if (path.find_first_not_of('.') != std::string::npos) return;
    throw UserError("data.field", "--field",
                    fmt::format("--field \"{}\" names no field: give the name of a field that holds text, such as text, or "
                                "a.b for the field b of the object a.",
                                path));
}

size_t FieldPath::names_that_spell(const std::vector<std::string_view>& names) const {
    std::string_view rest = text_;
    for (size_t i = 0; i < names.size(); ++i) {
        if (!rest.starts_with(names[i])) return 0;
        rest.remove_prefix(names[i].size());
        if (rest.empty()) return i + 1;
        if (!rest.starts_with('.')) return 0;
        rest.remove_prefix(1);
    }
    return 0;
}

JsonField read_json_value(std::string_view text, size_t from, const FieldPath& field) {
    JsonField found = JsonReader(text, from, field, false).read();
    if (found.kind == FieldKind::absent) return JsonReader(text, from, field, true).read();
    return found;
}

JsonField read_json_line(std::string_view line, const FieldPath& field) {
    JsonField found = read_json_value(line, 0, field);
    const size_t behind = skip_json_space(line, found.end);
    if (found.kind == FieldKind::not_json || behind == line.size()) return found;
    JsonField damaged;
    damaged.detail = not_json_at(behind + 1, "more follows the value");
    damaged.end = behind;
    return damaged;
}

size_t skip_json_space(std::string_view text, size_t from) {
    while (from < text.size() && (text[from] == ' ' || text[from] == '\n' || text[from] == '\r' || text[from] == '\t')) ++from;
    return from;
}

std::string not_json_at(size_t byte, std::string_view why) { return fmt::format("byte {} is not JSON: {}", byte, why); }

}  // namespace lockstep::data
