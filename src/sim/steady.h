// The steady state of a pipeline: what a further microbatch takes, from those of its middle.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/program.h"
#include "sim/cluster.h"

namespace lockstep::sim {

struct StepTime {
    double step_time_s = 0;
    double microbatch_s = 0;  // of a pipeline in its steady state; 0: the step is too short to show it
    double busiest_s = 0;     // with a microbatch: the link or the computing thread that has the most to do
};

// Microbatches of the steady state of a pipeline: those between whose backwards, on the first pipeline rank, all ranks still
// have forwards to do. With several stages a rank they go through the pipeline in rounds of one a rank, so it is whole rounds.
struct Steady {
    int64_t before = 0, last = 0;  // of the microbatch before the first of them, and of the last

    bool has(int64_t microbatch) const { return microbatch > before && microbatch <= last; }
    double count() const { return static_cast<double>(last - before); }
};

// What a step does in its steady state, from what its parts do with microbatches of it.
class SteadyTimes {
public:
    explicit SteadyTimes(const std::vector<ir::Program>& programs);

    bool has(const ir::Routine& r, const ir::Call& call) const;
    void compute(size_t rank, double time_s) { add(computing_s_, rank, time_s); }
    void use_link(int link, double time_s) { add(links_s_, static_cast<size_t>(link), time_s); }
    // On the first pipeline rank: is it asked when works of the call end, and one has ended.
    bool asks_end(const ir::Routine& r, const ir::Call& call) const;
    void end(const ir::Routine& r, const ir::Call& call, double end_s);

    // Of a step whose ops have ended: with what no op accounts for. At first the last ranks work off what has piled up before
    // them; in the long run nothing is faster than the busiest part.
    StepTime step(double end_s, const std::vector<ir::Program>& programs, const Cluster& cluster) const;

private:
    static void add(std::vector<double>& to, size_t i, double time_s) {
        if (i >= to.size()) to.resize(i + 1, 0);
        to[i] += time_s;
    }

    std::optional<Steady> of_;
    std::vector<double> computing_s_, links_s_;  // of each rank's computing thread; of each link, by its number
    double before_s_ = 0, last_s_ = 0;           // of the backwards of Steady::before and Steady::last
};

}  // namespace lockstep::sim
