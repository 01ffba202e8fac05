// A job on the clock without its timelines: what its step takes, as often as it is asked.
#pragma once

#include <optional>
#include <vector>

#include "sim/devices.h"
#include "sim/job.h"
#include "sim/steady.h"

namespace lockstep::sim {

// Plays the step of a job, which outlives this and may move between two plays.
class StepPlayer {
public:
    explicit StepPlayer(const Job& job);

    // The job's starts have changed.
    void read_starts();

    struct Played {
        double end_s = 0;  // of the last op
        SteadyTimes steady;
    };
    Played play();

private:
    struct SteadyWork {
        int thread, work, call;
        bool is_steady, asks_end;
    };
    void add_works(size_t rank);

    const Job& job_;
    std::vector<std::vector<SteadyWork>> works_;  // by rank: those from which the steady state is read
    Recorded recorded_;                           // of them, on the computing threads
    std::optional<Devices> devices_;
};

// With what no op accounts for.
StepTime step_of(const Job& job, const StepPlayer::Played& played);

}  // namespace lockstep::sim
