// Is a text JSON Lines, or JSON of another shape? A pure function of the first bytes of a file; its name says nothing here.
#pragma once

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

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace lockstep::data
