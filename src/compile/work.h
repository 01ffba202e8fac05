// How much a program does, at any point between passes: what a pass changed is the difference of two.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/config.h"
#include "ir/program.h"

namespace lockstep::compile {

struct Work {
    int64_t ops = 0;          // in all routines
    double bytes = 0;         // that the ops of a training step write, on one rank of each pipeline rank
    double flops = 0;         // that they execute
    int64_t arena_bytes = 0;  // of both arenas of the largest program; 0 before plan_memory
    bool operator==(const Work&) const = default;
};

// Does the step of such programs run as one CUDA graph? With runtime.cuda_graph = auto where a rank has fewer than 5e13 FLOPs in
// a step: some 0.1 s of an H100, whose gaps between kernels then count. The same on all ranks. `microbatches_for_each`: of the
// step, for one of the programs.
bool runs_as_graph(const Config& config, const std::vector<ir::Program>& programs, double microbatches_for_each = 1);

// Before calls exist, a routine of a block counts once for each instance, microbatch and chunk, as `schedule` will call it.
Work work_of(const std::vector<ir::Program>& programs);

}  // namespace lockstep::compile
