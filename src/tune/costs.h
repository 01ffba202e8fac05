// What a layout's routines take and keep on a rank, without compiling the layout: those of blocks once for all layouts that
// share tensor parallelism, microbatch and recompute, those of units once for all that share the split of states.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "schedules/table.h"
#include "tune/problem.h"

namespace lockstep::tune {

// What one microbatch does with an instance of a block, on one rank.
struct BlockCost {
    double forward_s = 0, backward_s = 0, input_s = 0, weight_s = 0;  // input, weight: a backward in two parts
    int64_t saved_bytes = 0;                                          // for the backward

    double of(schedules::Work work) const;
    double whole_s() const { return forward_s + backward_s; }
    BlockCost& operator+=(const BlockCost& o);
    void raise_to(const BlockCost& o);  // its seconds, where they are less
};

// The model on one pipeline rank, with chosen kernels.
struct Whole {
    ir::Program program;
    std::vector<ir::BlockInstance> blocks;
    std::vector<BlockCost> costs;  // by position in `blocks`
    // How long the computing thread is busy with it, wherever it waits: with what may run ahead of a gradient's arrival.
    std::vector<BlockCost> busy;
    BlockCost sum, sum_busy;
    double computing_s = 0;  // of forward and backward, without collectives
    bool has_parts = false;  // backwards in two parts are priced, too
};

// What an instance's unit keeps and does once a step, on one rank.
struct StateCost {
    int64_t bytes = 0, gradient_bytes = 0, full_gradient_bytes = 0;  // between steps; sums, as split; sums that are not split
    int64_t gathered_bytes = 0;
    double gather_s = 0, reduce_micro_s = 0, reduce_s = 0, update_s = 0;
    bool gathered = false;
};
using States = std::vector<StateCost>;  // by position in Whole::blocks

// Of a problem. Seconds are 0 on processors, where the time of an op depends on caches.
class Costs {
public:
    explicit Costs(const Problem& problem) : problem_(problem) {}

    bool are_priced() const { return problem_.cluster().devices; }
    const Whole& whole(const Choice& family);
    // Without asynchronous tensor parallelism.
    const Whole& plain(const Choice& family);
    const States& states_of(const Choice& member);
    // Of what crosses the cut behind a block, to the next pipeline rank or back: what a stage that follows waits at least.
    double transfer_s(const Whole& whole, const ir::BlockInstance& behind, const Choice& family, int64_t from, int64_t to) const;

    static bool splits(const Choice& family);
    static Choice plain_of(Choice family);

private:
    compile::CompileOptions until(const char* pass) const;
    ir::Program routines(const Choice& family, bool in_parts) const;
    double computing_s(const Whole& w) const;
    void add(Whole& w, const ir::Program& p, bool in_parts) const;
    void measure(Whole& w, const Choice& family, bool in_parts);

    const Problem& problem_;
    std::optional<compile::Prefixes> few_layers_;  // of the model with fewer layers
    std::map<std::tuple<mesh::Degrees, bool, bool, compile::RotateMethod, int64_t, int64_t, compile::RecomputeMode>, Whole>
        wholes_;
    std::map<std::tuple<mesh::Degrees, bool, compile::PartitionPreset>, States> states_;
};

}  // namespace lockstep::tune
