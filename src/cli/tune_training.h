// What a training takes on the layouts that `tune` found, in days, device hours and money: flags, text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compile/config.h"
#include "tune/devices.h"

namespace CLI {
class App;
}

namespace lockstep::cli {

struct TrainingArgs {
    tune::Training training;
    std::vector<int64_t> devices;
    double days = 0;  // wanted; 0: not said
    std::string currency;
    bool goodput = false;

    bool is_asked() const { return goodput || days > 0 || !devices.empty(); }
    // What is wrong with the flags together; empty: nothing.
    std::string objection() const;
};

void add_training_flags(CLI::App& command, TrainingArgs& args);

// What flags leave open: tokens from the recipe's steps, how often devices fail from the cluster file. UserError tune.no_mtbf.
tune::Training training_of(const TrainingArgs& args, const compile::Config& config, int64_t global_batch,
                           const std::string& cluster_file);

// The fastest layout on the number of devices that was asked for, and tables over numbers of devices.
struct TrainingResult {
    tune::Training training;
    tune::OfDevices fastest;
    std::vector<tune::OfDevices> devices, days;
};

void print(const TrainingArgs& args, const TrainingResult& result);
// {devices; with --goodput: goodput, training; with --days: within_days}
nlohmann::ordered_json json_of(const TrainingArgs& args, const TrainingResult& result);

}  // namespace lockstep::cli
