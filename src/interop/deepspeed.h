// DeepSpeed's configuration, ds_config.json: batch, ZeRO, precision and optimizer. It says nothing of the model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "interop/read_options.h"
#include "interop/reading.h"

namespace lockstep::interop {

// Does the object have keys that only DeepSpeed's configuration has?
bool is_deepspeed(const nlohmann::json& json);
// The statements of a configuration, into the reading of a run, but for sections that the program which calls DeepSpeed
// replaces. Returns its gradient_accumulation_steps; 0: it has none. UserError recipe.deepspeed_config.
int64_t read_deepspeed(const std::string& text, const std::string& origin, Reading& reading, Refusals& refusals,
                       const ReadOptions& options = {}, const std::vector<std::string>& of_caller = {});
// A configuration without a script: with the questions that it leaves.
Reading read_deepspeed_alone(const std::string& text, const std::string& path, const ReadOptions& options = {});

}  // namespace lockstep::interop
