// A recipe's step on a described machine, for commands that set it beside what they measure.
#pragma once

#include <optional>
#include <string>

#include "compile/config.h"

namespace lockstep::cli {

struct PlannedStep {
    double step_time_s = 0, peak_flops_per_s = 0;  // the peak: of a rank
    std::string cluster;                           // its name
};
// None where the file describes devices, or rates that were not measured, or too few hosts without their links: it is not of a
// machine that trains here. UserError cluster.*.
std::optional<PlannedStep> planned_step(const compile::Config& config, const std::string& cluster_file, const char* asked_by);

}  // namespace lockstep::cli
