// The memory of a pipeline rank as `check` and `plan` print it.
#pragma once

#include <nlohmann/json.hpp>

#include "compile/report.h"

namespace lockstep::cli {

// {stage, stages, layers, bytes, reserve, flops_model, flops_executed} of one pipeline rank.
nlohmann::ordered_json stage_json(const ir::Program& program, const compile::StageReport& report, int64_t reserve_bytes);

// The bytes of the fullest pipeline rank by kind; where there are several, first a line for each. `capacity_bytes` 0: not said.
void print_bytes(const compile::Compiled& compiled, const std::vector<compile::StageReport>& reports, int64_t capacity_bytes);

}  // namespace lockstep::cli
