// Compares the processes of a job when it starts. All must have the same recipe, flags, data, build and instruction set.
// Without this check, processes that differ would train on different terms or wait for each other forever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/process_group.h"
#include "compile/compile.h"
#include "compile/recipe.h"

namespace lockstep::job {

// Names with values, in the order in which they are compared: {"optimizer.lr", "0.001"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

inline const std::string kBuild = "the build of lockstep", kInstructionSet = "the instruction set";

// Every key that acts; then the manifests of the prepared data that the recipe names; then the instruction set, if kernels
// depend on it.
Facts facts_of(const compile::Recipe& recipe);
// "0.1.0 (9a1af66c2f10, GCC 12.2.0)". If the commit is not known or the tree had changes, the checksum of the program file is
// part of the text.
std::string build_text();
// Adds the manifest of the prepared data in `folder`.
void add_data(Facts& facts, const std::string& folder);

// The first fact that differs between the first process and another one.
struct Disagreement {
    std::string name, first, other;  // "(absent)": the process lacks the fact
    size_t process = 0;              // the process with the value `other`
};
std::optional<Disagreement> disagreement(const std::vector<Facts>& of_processes);

// Compares the facts of all processes of a job. All processes call it at the same time. `ranks` is the number of ranks
// of the whole job; 0: not known yet, and the message names processes instead of ranks. UserError job.ranks_disagree.
void require_agreement(const Facts& own, comm::ProcessGroup& group, int64_t ranks = 0);

// As require_agreement, for the facts of this recipe and then `flags`.
void require_same_job(const compile::Recipe& recipe, const Facts& flags, comm::ProcessGroup& group);

// Of what processes said (ProcessGroup::exchange): the first one that did not say what the first process did; 0: none.
size_t dissenter(const std::vector<std::string>& said);

// All processes have compiled the same programs. UserError job.other_program.
void require_same_programs(const compile::Compiled& compiled, comm::ProcessGroup& group);

}  // namespace lockstep::job
