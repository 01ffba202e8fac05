// Is a text JSON Lines, or JSON of another shape? A pure function of the first bytes of a file; its name says nothing here.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/json_value.h"

namespace lockstep::data {

struct JsonShape {
    enum class Kind {
        none,    // text
        lines,   // an object on the first line that is not blank, and objects or nothing on those behind it
        values,  // objects over several lines, one behind another, or a list of objects
        more     // more of the file is needed
    };
    Kind kind = Kind::none;
    bool has_field = false;  // the first object has the field, as text or null
};

// `head`: the first bytes of a file, or all of them (`is_whole`).
JsonShape json_shape(std::string_view head, bool is_whole, const FieldPath& field);

// Lines that are not blank: all, and those that are objects with the field. A last line that is cut off counts only if
// `is_whole`.
struct ObjectLines {
    int64_t all = 0, objects = 0;
    bool are_many() const { return objects > 0 && objects * 2 >= all; }
};
ObjectLines object_lines(std::string_view head, bool is_whole, const FieldPath& field);

}  // namespace lockstep::data
