// Pipeline ranks and their schedule as several commands print them.
#pragma once

#include <nlohmann/json.hpp>

#include "compile/memory_report.h"
#include "schedules/table.h"

namespace lockstep::cli {

// {stage, stages, layers, bytes, reserve, flops_model, flops_executed} of one pipeline rank.
nlohmann::ordered_json stage_json(const ir::Program& program, const compile::StageReport& report, int64_t reserve_bytes);

// An array a rank; cells such as "2F0", empty where the rank would wait if every action took as long.
nlohmann::ordered_json rows_json(const schedules::Table& table);

// The bytes of the fullest pipeline rank by kind, and those of the host's memory that serve a device; where there are several,
// first a line for each. `capacity_bytes` 0: not said.
void print_bytes(const compile::Compiled& compiled, const std::vector<compile::StageReport>& reports, int64_t capacity_bytes);

}  // namespace lockstep::cli
