// What a run records of itself on request: one step as a trace file, and where the time of the steps went.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/breakdown.h"
#include "measure/roofs.h"
#include "runtime/trainer.h"

namespace lockstep::job {

struct ObserveArgs {
    std::string trace;       // file of one step's timeline; empty: none
    int64_t trace_step = 0;  // of this run, counted from 1; 0: the third, or the last if there are fewer
    bool profile = false;
    std::string cluster;  // file with this machine's roofs; empty: they are measured after the run
};

// Mean over the steps and all ranks.
struct Profile {
    compile::Breakdown breakdown;
    double flops_roof = 0, bytes_roof = 0;  // a second, of a rank
    int64_t steps = 0;
};

class Observer {
public:
    // `steps`: that the run is going to take.
    Observer(const ObserveArgs& args, runtime::Trainer& trainer, const compile::Compiled& compiled, int64_t steps);

    // One step of training, recorded where something asks for it. `more`: nothing but another one follows.
    runtime::StepResult step(bool more);
    // Where the time of the steps went, compared with the roofs;
    // none if no profile was asked for, or by another process than the first.
    std::optional<Profile> finish();

private:
    bool traces(int64_t step) const { return !args_.trace.empty() && step == trace_step_; }
    bool profiles(int64_t step) const { return args_.profile && step > kWarmUp; }

    static constexpr int64_t kWarmUp = 2;  // steps that step_time_s leaves out too
    const ObserveArgs args_;
    runtime::Trainer& trainer_;
    const compile::Compiled& compiled_;
    int64_t trace_step_, taken_ = 0, profiled_ = 0;
    bool traced_ = false;
    std::vector<ir::Timeline> timelines_;
    compile::Breakdown breakdown_;
    measure::Roofs declared_;  // of args.cluster
};

}  // namespace lockstep::job
