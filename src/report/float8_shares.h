// What a run has counted of the values that it casts to float8 (metrics.log_float8), from float8.jsonl in its dump folder: a line a
// counted step, {step, shares: [{layer, operand, amax, elements, flushed, clipped}]}.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::report {

// A layer is named if more than this share of an operand's elements becomes zero or is beyond the largest code. The error
// of normally distributed values in E4M3 is then 1.5 times what rounding alone costs (docs/float8.md).
inline constexpr double kMuchLost = 0.05;

// {steps, operands: [{layer, operand, amax_least, amax_median, amax_largest, flushed, clipped}], table, filter_fqns}: largest
// sizes over the steps, shares of all that was counted, those that lose most first. filter_fqns, a key of the recipe's `table`:
// what the run's recipe has there and the layers above kMuchLost; empty: no layer is. null: the run counted nothing. A warning
// names damaged lines.
nlohmann::ordered_json float8_shares_of(const std::string& folder);
// As a table for a person; empty for null.
std::string float8_text(const nlohmann::ordered_json& shares);

}  // namespace lockstep::report
