// The ops into which an `orthogonalize` is expanded (ops/optimizer.cpp), as no kernel serves it.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

struct Orthogonalized {
    std::string wrong;  // empty, or what is not as the iteration has it
    size_t ops = 0;     // that it takes
    ir::TensorId result = -1;
    int64_t steps = 0;
    bool matches_rms = false;  // optimizer.muon_adjust_lr_fn
};

// The ops from `first` on, which reads a matrix: are they those of the iteration, on that matrix, and on nothing else?
Orthogonalized orthogonalized(const ir::Routine& routine, size_t first);

}  // namespace lockstep::check
