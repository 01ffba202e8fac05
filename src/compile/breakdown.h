// Where a step's time went: timelines of a program's entry, measured or simulated, summed by kind of op. The parts of a step on
// the computing thread add up to it: ops, waiting, data, and a remainder that belongs to no op.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/timeline.h"

namespace lockstep::compile {

// All numbers are means over ranks and steps.
struct TimeSpent {
    double time_s = 0, count = 0;
    double flops = 0, bytes = 0;  // executed FLOPs; bytes read and written (of collectives: operands and results)
    bool communication = false;
};

struct Breakdown {
    double step_s = 0;
    std::map<std::string, TimeSpent> ops;     // on the computing thread; collectives from when the last member had come
    std::map<std::string, TimeSpent> beside;  // on the communication thread, while the other computes
    double waiting_s = 0;                     // for other ranks, and for the communication thread
    double data_s = 0;                        // reading samples
    double remainder_s = 0;                   // between ops: the executor, waking ranks
};

// Of a record: the name under which it is counted.
using Naming = std::function<std::string(const ir::Routine&, const ir::Op&)>;
std::string kind_of(const ir::Routine& routine, const ir::Op& op);  // "einsum"
std::string name_of(const ir::Routine& routine, const ir::Op& op);  // "layer.backward d.w1 (einsum)"

// Adds one step to `sum`, which is of `steps` steps so far; timelines are of some ranks, match_collectives'd.
// `microbatches`: that each of the programs' represents (Compiled::microbatches_for_each).
void add_step(Breakdown& sum, int64_t steps, std::span<const ir::Timeline> timelines, const Naming& naming,
              double microbatches = 1);

}  // namespace lockstep::compile
