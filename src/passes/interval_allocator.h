// Offsets in memory for items that are in use at known times. Times are positions 0, 1, .. of a list.
// Assumes: the size of each item is a multiple of the alignment. Offsets are sums of sizes, so they are aligned too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/function_ref.h"

namespace lockstep::passes {

// Positions, both included; none if `last` is before `first`.
struct Interval {
    int first = 0, last = -1;
    bool intersects(const Interval& o) const { return first <= o.last && o.first <= last; }
};

struct Allocation {
    int64_t bytes = 0;
    Interval possible;  // two items are never in conflict if these do not intersect
    Interval certain;   // two items are always in conflict if these intersect; part of `possible`, and begins with it
    int64_t offset = -1;

    int64_t end() const { return offset + bytes; }
};

// Sets offsets such that items in conflict do not overlap: larger ones first, each in the lowest gap that holds it. `conflict`
// is asked about two items only if their intervals do not tell. All positions are less than `positions`. Returns the end.
int64_t allocate(std::vector<Allocation>& items, int positions, FunctionRef<bool(size_t, size_t)> conflict);

}  // namespace lockstep::passes
