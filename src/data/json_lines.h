// One line of JSON Lines: the text of one field. Pure functions; numbers, lists and other fields are read over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// "a.b": the field b of the object a.
class FieldPath {
public:
    // UserError data.field where a name between dots is empty.
    explicit FieldPath(const std::string& path);
    const std::vector<std::string>& names() const { return names_; }
    const std::string& text() const { return text_; }

private:
    std::string text_;
    std::vector<std::string> names_;
};

struct JsonLine {
    enum class Kind {
        text,        // the field is a string: `text`
        null,        // the field is null
        absent,      // the object has no such field; `detail` names those that it has
        wrong_type,  // the field is something else: `detail` says what
        no_object,   // JSON, but not an object
        not_json     // `detail` says what is wrong
    };
    Kind kind = Kind::not_json;
    std::string text, detail;
};

// `line` must be UTF-8 (with_replacements). Of a name that occurs twice the last counts.
JsonLine parse_json_line(std::string_view line, const FieldPath& field);

}  // namespace lockstep::data
