// Every wait of one stream for the other, left out by itself: where the proof of order says that it is needed, some order of the
// queues of a device shows it.
#pragma once

#include <functional>

#include "tests/equivalence/draw.h"

namespace lockstep::testing {

struct LeftOutWaits {
    int needed = 0, seen = 0;
    std::string missed;
};
// Of `programs` draws, `waits` of each at most; says how many showed. draw: by a seed. run: one step in an order of the queues;
// the outcome of order 0 of a program that is whole is right.
struct LeavingOut {
    std::function<std::optional<Draw>(uint64_t seed)> draw;
    std::function<Outcome(const compile::Recipe&, const compile::Compiled&, uint64_t order)> run;
    int programs = 6, waits = 8;
    uint64_t orders = 150;
    std::function<bool(const ir::Routine&, const ir::Routine& other)> between = nullptr;  // only waits of calls of such routines
};
LeftOutWaits leave_out_waits(const LeavingOut& how);

}  // namespace lockstep::testing
