// How far a planned step may be off by what is not known of its cluster: the [[constants]] of the cluster's files, each moved to
// both ends of what runs leave open (low, high), else one deviation (spread) from its value, while the others stay. Their errors
// are taken as independent. Nothing else of a plan's error is in it.
#pragma once

#include <string>
#include <vector>

#include "planning/plan.h"
#include "sim/cluster.h"

namespace lockstep::tune {

struct Band {
    double low_s = 0, high_s = 0;  // both the step's time where the files name no constants
};

class Bands {
public:
    // UserError cluster.*.
    Bands(const std::string& cluster_file, const char* asked_by, const std::string& stack);
    Band of(const planning::Plan& plan) const;

private:
    std::vector<sim::Cluster> moved_;  // two of each constant
};

}  // namespace lockstep::tune
