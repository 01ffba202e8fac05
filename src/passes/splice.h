// What recompute and fuse_loss share: bringing the ops of a placed forward in front of those of its backward.
#pragma once

#include <set>
#include <string>

#include "ir/program.h"

namespace lockstep::passes {

// A routine that holds the forward's ops followed by the backward's. Saved values are read where the forward made them; the
// parameters, inputs and activations that both read are one; equal ops are merged, so that forward and backward share a
// reshard of the same value. The frame holds those of `saved` (names of the forward's tensors) that are needed, and nothing
// else; the forward's written value ports (y) are dropped unless results are kept.
enum class Results { Keep, Drop };
ir::Routine join_forward_and_backward(const ir::Routine& forward, const ir::Routine& backward, Results results,
                                      bool mark_recomputed, const std::set<std::string>& saved = {});

// Is the tensor a saved value?
bool in_frame(const ir::Routine& routine, const ir::Tensor& tensor);
// The first port of a kind, -1 where absent.
int port_of(const ir::Routine& routine, ir::PortKind kind);
// Under which source a tensor of a forward is in frames.
std::string saved_as(const ir::Tensor& tensor);

// Merges ops of equal kind, operands, attributes and group. Keeps the first. A gather of a slice becomes what was sliced.
void merge_equal_ops(ir::Routine& routine);

}  // namespace lockstep::passes
