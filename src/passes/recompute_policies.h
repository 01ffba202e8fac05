// Which values the backward of a block finds saved: TorchTitan's policies, and the least-time choices for given bytes. All look
// at placed routines (after `shard` and `fuse_loss`), where collectives are ops with a price.
#pragma once

#include <functional>

#include "passes/recompute.h"

namespace lockstep::passes {

// Nothing: full recompute of every block that is between two others.
std::vector<SaveList> save_nothing(const ir::Program& program);

// Full recompute of every n-th instance (n - 1, 2 n - 1, ...), as TorchTitan's selective_ac_option = "n". n >= 1.
std::vector<SaveList> recompute_every(const ir::Program& program, int64_t n);

// TorchTitan's selective_ac_option = "op": results of attention, of reductions over ranks, and of every second product (the
// first, third, ...) are saved, the rest is computed again.
std::vector<SaveList> save_costly_ops(const ir::Program& program);

// What an op takes, before kernels are chosen. Only the ratios matter.
using OpSeconds = std::function<double(const mesh::Mesh&, const ir::Routine&, const ir::Op&)>;

// Where nothing was measured; the defaults are those of two cores of a server.
struct Rates {
    double flops_per_s = 200e9, bytes_per_s = 20e9, wire_bytes_per_s = 5e9;
    double operator()(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op) const;
};

// One choice for one instance of a block.
struct Saved {
    std::set<std::string> values;
    int64_t bytes = 0;  // in the frame of one instance and microbatch, on one rank
    double time_s = 0;  // of computing the rest again
    bool operator==(const Saved&) const = default;
};

// Both in ascending order of bytes. All choices among at most 16 ops are tried: ops with results in the frame first, then those
// that take longest. The others are computed again.
struct Choices {
    std::vector<Saved> front;  // those that no other beats in both bytes and time
    std::vector<size_t> hull;  // of these the lower convex hull, from nothing saved to nothing computed again: mixing
                               // neighbours among a block's instances takes the least time for its bytes
};
Choices least_time_choices(const mesh::Mesh& mesh, const ir::Routine& forward, const OpSeconds& time_s = Rates{});

}  // namespace lockstep::passes
