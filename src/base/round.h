// Small integer arithmetic that everybody needs.
#pragma once

#include <cstdint>

namespace lockstep {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// Buffers and the tensors inside them start on cache lines.
constexpr int64_t kAlignmentBytes = 64;

}  // namespace lockstep
