// What the processes of a job must have alike, compared when it starts: recipe, flags, data, build and instruction set. Processes
// that differ would train together, each in its own way, or wait for each other for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/crew.h"
#include "compile/recipe.h"

namespace lockstep::cli {

// Names with values, in the order in which they are compared: {"optimizer.lr", "0.001"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

inline const std::string kBuild = "the build of lockstep", kInstructionSet = "the instruction set";

// Every key that acts, then the manifests of the prepared data that it names, and the instruction set where kernels depend on it.
Facts facts_of(const compile::Recipe& recipe);
// "0.1.0 (9a1af66c2f10, GCC 12.2.0)". Where the commit does not say what was built, with the checksum of the program file.
std::string build_text();
// The manifest of prepared data in `folder`.
void add_data(Facts& facts, const std::string& folder);

// The first fact that a process has another way than the first process.
struct Disagreement {
    std::string name, first, other;  // "(absent)" where a process lacks the fact
    size_t process = 0;              // the one that has `other`
};
std::optional<Disagreement> disagreement(const std::vector<Facts>& of_processes);

// Compares the facts of all processes of a crew, which call it at the same time. `ranks`: of the whole job; 0: not known yet, and
// processes are named. UserError job.ranks_disagree.
void require_agreement(const Facts& own, comm::Crew& crew, int64_t ranks = 0);

// The same for a job of this recipe: its facts, then `flags`.
void require_same_job(const compile::Recipe& recipe, const Facts& flags, comm::Crew& crew);

}  // namespace lockstep::cli
