// What `train --trace` and `train --profile` record of a run: one step as a trace file; where the time of the steps went.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "compile/breakdown.h"
#include "runtime/trainer.h"

namespace lockstep::cli {

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
    std::vector<ir::Timeline> timelines_;
    compile::Breakdown breakdown_;
};

}  // namespace lockstep::cli
