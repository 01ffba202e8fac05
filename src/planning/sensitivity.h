// Which inputs that a recipe does not state decide its plan: each key that it leaves at its default is given other values, one
// at a time, and the step is planned again. The table of recipe keys says which keys a step depends on and which values are
// tried (compile::Tried). The job stays: its ranks, and where the key is not one of its sizes, its tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "planning/plan.h"

namespace lockstep::planning {

// Values of one key that come to the same step time and memory.
struct Change {
    std::string key, by_default;
    std::vector<std::string> instead;
    double step_s = 0;
    double time = 0;          // of a token, over that of the plan, less 1
    bool same_tokens = true;  // as the plan's in a step: the time of a token is then that of the step
    int64_t bytes = 0;        // of the rank with the most
    int64_t more_bytes = 0;   // than the plan's
    bool fits = true;

    // Is it enough to print? 0.05 % of the time, or 0.01 GiB.
    bool is_notable() const;
};

struct RefusedChange {
    std::string key, instead, why;
};

struct Sensitivity {
    std::vector<Change> changes;  // that change anything; the largest of time first, then of memory
    std::vector<RefusedChange> refused;
    int64_t without_effect = 0;  // values
};

// Of `plan`, which plan_of_opened(opened, cluster_file) has returned. `progress`: values that were planned, of how many.
Sensitivity sensitivity_of(const compile::Recipe& opened, const std::string& cluster_file, const Plan& plan,
                           const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace lockstep::planning
