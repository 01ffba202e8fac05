// What a search is asked: a recipe's model and batch on a described machine, with the prefix of the compile that all layouts
// share.
#pragma once

#include "compile/compile.h"
#include "planning/machine.h"
#include "tune/space.h"

namespace lockstep::tune {

struct Problem {
    Space space;
    planning::Machine machine;  // of all ranks
    compile::Prefix prefix;

    // Then memory is that of another software, and no bound of Lockstep's program holds for it.
    bool is_of_described_stack() const { return cluster().stack.memory.is_described(); }
    const sim::Cluster& cluster() const { return *machine.cluster; }
    compile::Config config(const Choice& choice) const { return with(space.base, choice, space.global_batch); }
};

// For `ranks` ranks of `cluster`, which `file` describes. UserError tune.*, cluster.*, model.*.
Problem problem_of(const compile::Config& base, const sim::Cluster& cluster, const std::string& file, int64_t ranks,
                   int64_t global_batch);

}  // namespace lockstep::tune
