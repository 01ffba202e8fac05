// How other software (a stack) runs ops of a program, where it does more than the program says.
#pragma once

#include "ir/program.h"
#include "ops/cost.h"
#include "sim/cluster.h"

namespace lockstep::sim {

class TheirOps {
public:
    TheirOps(const ir::Program& program, const Stack& stack);

    // Of a collective's i-th operand or result: bytes that cross ranks, over those of the program.
    double sent(const ir::Routine& routine, const ir::Op& op, ir::TensorId tensor) const;
    // What is copied behind a gather, or before its sum is scattered; no bytes: nothing is.
    ops::CostKey copied(const ir::Routine& routine, const ir::Op& op) const;
    // Of an op that computes: elements, over those of the program.
    double elements(const ir::Routine& routine, const ir::Op& op) const;

private:
    const mesh::Mesh& mesh_;
    const mesh::AxisList tp_, cp_;
    const bool copies_blocks_, repeats_keys_, casts_gathered_;
};

}  // namespace lockstep::sim
