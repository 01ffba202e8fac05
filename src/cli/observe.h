// What `train --trace` and `train --profile` record of a run: one step as a trace file; where the time of the steps went.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compile/breakdown.h"
#include "measure/roofs.h"
#include "runtime/trainer.h"

namespace lockstep::cli {

// What a run records of itself (observe.h).
struct ObserveArgs {
    std::string trace;       // file of one step's timeline; empty: none
    int64_t trace_step = 0;  // of this run, counted from 1; 0: the third, or the last if there are fewer
    bool profile = false;
    std::string cluster;  // file with this machine's roofs; empty: they are measured after the run
};

class Observer {
public:
    // `steps`: that the run is going to take.
    Observer(const ObserveArgs& args, runtime::Trainer& trainer, const compile::Compiled& compiled, int64_t steps);

    // One step of training, recorded where something asks for it.
    runtime::StepResult step();
    // Prints the profile, unless `quiet`, and returns it; null where none was asked for.
    nlohmann::ordered_json finish(bool quiet);

private:
    const ObserveArgs args_;
    runtime::Trainer& trainer_;
    const compile::Compiled& compiled_;
    int64_t trace_step_, taken_ = 0, profiled_ = 0;
    bool traced_ = false;
    std::vector<ir::Timeline> timelines_;
    compile::Breakdown breakdown_;
    measure::Roofs declared_;  // of args.cluster
};

}  // namespace lockstep::cli
