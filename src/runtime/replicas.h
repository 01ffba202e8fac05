// Whether ranks that must hold the same bits do: what silent data corruption looks like from outside. States only, between two
// steps.
#pragma once

#include <string>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::runtime {

struct ReplicaDifference {
    std::string state;            // "weights of layer[3]"
    std::vector<int64_t> ranks;   // whose bits differ from those of `others`: the fewer
    std::vector<int64_t> others;  // who agree with each other
};

// Compares checksums of every state among the ranks that hold the same elements of it. Every process of the ranks' process
// group calls it at the same time and gets the same answer; empty: all agree.
std::vector<ReplicaDifference> replica_differences(Ranks& ranks);

}  // namespace lockstep::runtime
