// What a search is asked: a recipe's model and batch on a described machine, with what the compiles of all
// layouts share.
#pragma once

#include <memory>

#include "compile/compile.h"
#include "planning/machine.h"
#include "tune/space.h"

namespace lockstep::tune {

struct Problem {
    Space space;
    planning::Machine machine;  // of all ranks; its capacity is less the margin
    std::shared_ptr<compile::Prefixes> prefixes;
    int64_t margin_bytes = 0;  // of a rank's memory, that a layout leaves free

    // Then memory is that of another software, and no bound of Lockstep's program holds for it.
    bool is_of_described_stack() const { return cluster().stack.memory.is_described(); }
    const sim::Cluster& cluster() const { return *machine.cluster; }
    const std::vector<ir::Block>& blocks() const { return prefixes->first().program.blocks; }
    compile::OrRefusal<compile::Compiled> compiled(const compile::Config& config, const compile::CompileOptions& options) const {
        return compile::compile(prefixes->of(config), config, options);
    }
    compile::Config config(const Choice& choice) const { return with(space.base, choice, space.global_batch); }
};

// For `ranks` ranks of `cluster`, which `file` describes; a layout leaves `memory_margin` of a rank's memory free (0 to below 1).
// UserError tune.*, cluster.*, model.*.
Problem problem_of(const compile::Config& base, const sim::Cluster& cluster, const std::string& file, int64_t ranks,
                   int64_t global_batch, double memory_margin = 0);

}  // namespace lockstep::tune
