// A run of a table, compiled once, whose step can then be planned on its cluster with other constants.
#pragma once

#include <string>
#include <vector>

#include "calibration/runs_file.h"
#include "compile/compile.h"
#include "compile/rank_threads.h"
#include "sim/cluster.h"

namespace lockstep::calibration {

// The files that describe the machines of runs.
class ClusterFiles {
public:
    // `folder`: where names without a path are looked up ("h100" is FOLDER/h100.toml, a stack FOLDER/stacks/NAME.toml).
    explicit ClusterFiles(std::string folder) : folder_(std::move(folder)) {}
    std::vector<sim::Source> sources(const std::string& cluster, const std::string& stack) const;

private:
    std::string folder_;
};

struct PreparedRun {
    const Run* run = nullptr;
    std::vector<sim::Source> sources;
    std::vector<sim::Part> parts;  // of its machine, as the files say
    compile::Config config;
    compile::Compiled compiled;
    compile::RankThreads rank_threads;
    double memory_bytes = 0;  // of the fullest rank: what the run's table says, allocated or reserved
    double flops_model = 0;   // of a rank and step
    bool fits = true;         // what it needs, in the memory of the cluster file less its reserve
    std::string refusal;      // why it cannot be planned; empty: it can

    // Can its planned step be held against a measured one?
    bool is_measured() const { return refusal.empty() && run->step_time_s > 0; }
};

// Compiled on the cluster that its files describe. What a recipe cannot be is a refusal, not an error.
PreparedRun prepare(const Run& run, const ClusterFiles& files);

// Seconds of a step on `cluster`, which is read from the run's sources with other constants.
double step_s(const PreparedRun& run, const sim::Cluster& cluster);

}  // namespace lockstep::calibration
