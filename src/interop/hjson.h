// JSON as people write it by hand, which DeepSpeed reads (hjson): comments of three kinds, names without quotes, commas that
// are left out or one too many, text without quotes up to the end of its line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::interop {

// The outermost braces may be left out. Throws std::runtime_error with the line for what is none, for a name that an object has
// twice, and for more than 64 levels.
nlohmann::json parse_hjson(const std::string& text);
// The text without the blanks and comments that it begins with.
std::string without_comments_before(const std::string& text);

}  // namespace lockstep::interop
