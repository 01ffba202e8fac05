// Does a recipe's program run on a machine? It is compiled, proved, and its bytes are held against the memory of a rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "compile/memory_report.h"
#include "compile/traffic.h"
#include "planning/machine.h"

namespace lockstep::planning {

struct Checked {
    Machine machine;
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;  // by pipeline rank
    std::vector<compile::GroupTraffic> groups;  // which ranks communicate, how much
    std::vector<double> bytes_by_host;          // that a host sends to others in a step; empty: hosts are not described
    std::optional<UserError> refusal;           // check.does_not_fit, with what would help; none: it fits
};

// On the machine of `cluster_file`, else of cluster.file, else this one. UserError recipe.*, cluster.*, model.*, layout.* where
// there is no such program; what does not fit is a value.
Checked check(compile::Recipe recipe, const std::string& cluster_file);

}  // namespace lockstep::planning
