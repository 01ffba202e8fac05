// JSON as people write it by hand, which DeepSpeed reads (hjson): comments of three kinds, names without quotes, commas that are
// left out or one too many, text without quotes up to the end of its line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::interop {

// Throws std::runtime_error with the line for what is none, and for more than 64 levels.
nlohmann::json parse_hjson(const std::string& text);

}  // namespace lockstep::interop
