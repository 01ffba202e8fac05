// The configuration that a job of torchtitan prints since its jobs are Python (2026): JSON with a `model_spec`. Facts are those
// of torchtitan at b5bcd76 (August 2026); the forms of the months before have other names for some keys, which are known, too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "interop/reading.h"

namespace lockstep::interop {

bool is_later_torchtitan(const nlohmann::json& json);
// UserError recipe.later_torchtitan, and of the recipe's keys.
Reading read_later_torchtitan(const nlohmann::json& json, const std::string& path);

}  // namespace lockstep::interop
