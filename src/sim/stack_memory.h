// What a rank of another software than Lockstep allocates: an estimate from the compiled programs. They say which blocks run in
// which order, in which local shapes; [memory] of the stack's file says what that software keeps of each op until its backward.
// PyTorch's autograd keeps the operands that an op's derivative reads: of a product its input, of a norm its input, of
// attention queries, keys, values, result and a sum for each row.
//
// A routine whose backward computes products again (activation checkpointing) keeps what its frame holds in Lockstep's program.
#pragma once

#include <vector>

#include "ir/program.h"
#include "sim/cluster.h"

namespace lockstep::sim {

// Bytes of a rank at the fullest point of its step.
struct StackBytes {
    double states = 0;       // parameters, gradients, optimizer
    double gathered = 0;     // parameters and gradients of layers before they are split again; buckets
    double activations = 0;  // of all microbatches in flight, with the logits of the last stage
    double working = 0;      // what one backward needs in addition: values computed again, gradients of activations

    double allocated() const { return states + gathered + activations + working; }
    double reserved(const StackMemory& of) const { return allocated() * (1 + of.reserve); }
};

// Requires cluster.stack.memory.is_described().
StackBytes stack_bytes(const ir::Program& program, const Stack& stack);

}  // namespace lockstep::sim
