// The angles of rotary position embedding (Su et al. 2021, arXiv 2104.09864), with Llama 3.1's scaling of low frequencies.
#pragma once

#include <vector>

#include <span>
#include <string>

#include "ir/program.h"

namespace lockstep::ops {

// Radians a position, one for each of head_dim / 2 pairs. `op` is a rope op: attributes theta, factor (1: no scaling),
// low_freq_factor, high_freq_factor, original_positions.
std::vector<double> rope_frequencies(const ir::Op& op, int64_t head_dim);

// Empty if the dims `qkv` end in [qkv, kv_heads, head_dim], and `parts` are the queries, keys and values of such rows; else
// what is wrong.
std::string check_qkv(const ir::Routine& routine, std::span<const ir::DimId> qkv, std::span<const ir::TensorId> parts);
// The dims that an op on such rows cannot have sharded.
std::vector<ir::DimId> qkv_dims(const ir::Routine& routine, const ir::Op& op);

// Are these such rows?
bool is_packed_qkv(const ir::Routine& routine, ir::TensorId tensor);
// Of operands and results, bytes that the op neither reads nor writes where it works in place: values of such rows that `rope`
// rotates. 0: of all others.
int64_t untouched_bytes(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op);

}  // namespace lockstep::ops
