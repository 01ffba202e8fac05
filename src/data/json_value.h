// Reads one value of JSON and keeps the text of one field; what else the value holds is read over, and nothing of it is kept.
// More than RFC 8259 allows is read where other programs write it and its meaning is plain: NaN, Infinity and -Infinity among
// numbers (Python's json), numbers of any size, and half of a surrogate pair, which becomes U+FFFD. Bytes of texts are taken as
// they are, UTF-8 or not. Memory: the text of the field, and a byte for each list or object that is open.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// "a.b": the field b of the object a, or a field whose own name is "a.b".
class FieldPath {
public:
    // UserError data.field where it is empty, or only dots.
    explicit FieldPath(const std::string& path);
    const std::string& text() const { return text_; }
    // How many of `names`, from the first, make up the whole path; 0: they do not.
    size_t names_that_spell(const std::vector<std::string_view>& names) const;

private:
    std::string text_;
};

struct JsonField {
    enum class Kind {
        text,        // the field is a string: `text`
        null,        // the field is null
        absent,      // the object has no such field; `detail` names those that it has
        wrong_type,  // the field is something else: `detail` says what
        ambiguous,   // "a.b" is the name of one field, and b of the object a is another
        no_object,   // JSON, but not an object: `detail` says what
        not_json     // `detail` says what is wrong
    };
    Kind kind = Kind::not_json;
    std::string text, detail;
    size_t end = 0;       // where the value ends; of not_json, where it is damaged
    bool is_cut = false;  // of not_json: all bytes were right, and the value goes on behind the last
};

// The value that begins at or behind `from`. Of a name that occurs twice the last counts.
JsonField read_json_value(std::string_view text, size_t from, const FieldPath& field);

// A line of JSON Lines: a value and nothing else.
JsonField read_json_line(std::string_view line, const FieldPath& field);

// Where the first byte is, at or behind `from`, that is no white space; text.size(): nowhere.
size_t skip_json_space(std::string_view text, size_t from);

// "byte 3 is not JSON: .."
std::string not_json_at(size_t byte, std::string_view why);

}  // namespace lockstep::data
