// A file of another system describes a job for that system. Where the software is described (clusters/stacks), `plan` says how
// long the step takes in it, too.
#pragma once

#include <optional>
#include <string>

#include "interop/reading.h"
#include "planning/plan.h"

namespace lockstep::planning {

// The name of the stack that runs such a file: "torchtitan_compiled".
// Empty: it is a recipe of Lockstep's, or none is described.
std::string stack_that_runs(const interop::Reading& reading);

struct TheirPlan {
    std::string stack;  // its name
    Plan plan;
};
// The recipe's step in the software that the file was written for. None where the recipe names a stack, the machine has no
// devices, or the stack has no kernels for them.
// `opened`: the reading's recipe, as opened_for_plan returned it.
std::optional<TheirPlan> plan_in_their_stack(const interop::Reading& reading, const compile::Recipe& opened,
                                             const std::string& cluster_file);

}  // namespace lockstep::planning
