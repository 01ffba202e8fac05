// The angles of rotary position embedding (Su et al. 2021, arXiv 2104.09864), with Llama 3.1's scaling of low frequencies.
#pragma once

#include <vector>

#include "ir/program.h"

namespace lockstep::ops {

// Radians a position, one for each of head_dim / 2 pairs. `op` is a rope op: attributes theta, factor (1: no scaling),
// low_freq_factor, high_freq_factor, original_positions.
std::vector<double> rope_frequencies(const ir::Op& op, int64_t head_dim);

}  // namespace lockstep::ops
