// What a recipe does not ask for and might gain from: the same job with other numbers of context ranks, in the form that plans
// fastest. Where the recipe does not fit, also the least number of context ranks with which it does. And its linear layers in
// float8, where the machine has a rate of it: that changes what is computed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planning/plan.h"

namespace lockstep::planning {

// Another step, held against the plan's.
struct OtherStep {
    Step step;
    double time = 0;         // of a rank for a token, over that of the plan, less 1
    int64_t more_bytes = 0;  // of the rank with the most, than the plan's
};

struct Hint : OtherStep {
    int64_t context_ranks = 1;
    std::string form;  // a word of parallelism.context_parallel_rotate_method; empty with one context rank
};

// Float8 with one scale for each tensor, also where weights cross data ranks.
struct Float8Hint {
    std::optional<OtherStep> step;
    std::string why;  // it cannot be planned
};

struct RefusedHint {
    int64_t context_ranks = 1;
    std::string why;  // no form of it can be planned
};

struct Hints {
    std::vector<Hint> hints;  // by context ranks
    std::vector<RefusedHint> refused;
    std::optional<Float8Hint> float8;  // none: the recipe names converters, or the machine has no rate of float8
};

// Of `plan`, which plan_of_opened(opened, cluster_file) has returned. 2, 4 and 8 context ranks take the place of data ranks, so
// the job keeps its ranks; a recipe that does not fit then gets more ranks. `progress`: layouts that were planned.
Hints hints_of(const compile::Recipe& opened, const std::string& cluster_file, const Plan& plan,
               const std::function<void(int64_t done)>& progress = {});

}  // namespace lockstep::planning
