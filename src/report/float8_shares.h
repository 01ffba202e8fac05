// What a run has counted of the values that it casts to float8 (metrics.log_float8), from float8.jsonl in its dump folder: a line a
// counted step, {step, shares: [{layer, operand, amax, elements, flushed, clipped}]}.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::report {

// A layer of which more than this share of an operand's elements becomes zero is named. The error of normally distributed values
// in E4M3 is then 1.5 times what rounding alone costs (docs/float8.md).
inline constexpr double kMuchFlushed = 0.05;

// {steps, operands: [{layer, operand, amax_least, amax_median, amax_largest, flushed, clipped}], filter_fqns}: largest sizes over
// the steps, shares of all that was counted, the most flushed first; filter_fqns: of layers above kMuchFlushed. null: the run
// counted nothing. Damaged lines are left out.
nlohmann::ordered_json float8_shares_of(const std::string& folder);
// As a table for a person; empty for null.
std::string float8_text(const nlohmann::ordered_json& shares);

}  // namespace lockstep::report
