// A compiled recipe with its data, ready to take steps. What to print, when to save and when to stop is the caller's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "compile/compile.h"
#include "compile/rank_threads.h"
#include "data/sampler.h"
#include "runtime/evaluator.h"
#include "runtime/loader.h"
#include "runtime/lr_schedule.h"
#include "runtime/ranks.h"
#include "runtime/states.h"
#include "runtime/step_result.h"

namespace lockstep::runtime {

// Where training is, apart from the states: what a checkpoint's manifest records.
struct Progress {
    int64_t steps = 0, samples_seen = 0, tokens_seen = 0;
};

BatchShape batch_shape(const compile::Layout& layout);

class Trainer {
public:
    // `source` is shared by the ranks here and outlives the trainer, as does the process group; none: all ranks are here.
    // `backend`: where the ranks run; nothing: as the recipe says. `islands`: where islands that are jobs of their own meet;
    // none: this is the only one. Weights have their initial values.
    Trainer(const compile::Config& config, const compile::Compiled& compiled, const data::Source& source,
            comm::ProcessGroup* group = nullptr, Backend backend = {},
            const std::optional<comm::islands::Invitation>& islands = {});

    // Where other islands are jobs of their own: waits until they are ready for this one, before its first step. True: it has
    // taken the state of another one, which was further.
    bool join_islands();
    // Between two steps: gives this island's state to others that wait for one, if there are any. A step in which islands meet
    // ends so.
    void admit_islands();

    StepResult step();
    // As step(); on a GPU the next step is begun before the result of this one is waited for, so that the GPU never waits for
    // the host. Then nothing but another step may follow.
    StepResult step_and_begin_next();
    bool has_begun_next() const { return begun_.has_value(); }
    // As step(), and writes when every rank's ops ran: timelines[r] of rank r (made by new_timelines;
    // ir::match_collectives then says who waited).
    StepResult step(std::vector<ir::Timeline>& timelines);
    std::vector<ir::Timeline> new_timelines() const;
    // Validation between two steps. Needs the entry eval.
    Evaluator& evaluator() { return *evaluator_; }

    Ranks& ranks() { return *ranks_; }
    const compile::RankThreads& rank_threads() const { return rank_threads_; }
    const Progress& progress() const { return progress_; }
    // After states were loaded from elsewhere.
    void set_progress(const Progress& progress) { progress_ = progress; }
    void fill_weights(const ValuesOf& values_of);
    GlobalTensors state(const WhichStates& which);
    int64_t samples_per_step() const { return shape_.global_batch * compiled_.layout.islands(); }
    int64_t tokens_per_step() const { return samples_per_step() * shape_.seq_len; }

private:
    StepResult step(std::vector<ir::Timeline>* timelines, bool begins_next);
    bool meets(int64_t fragment) const;
    void meet(Executor& executor);
    bool share_state(FunctionRef<comm::islands::Turn(comm::islands::Member&, Executor&)> turn_of);
    // A step that was begun and not ended.
    struct Begun {
        StepResult result;
        std::chrono::steady_clock::time_point start;
        bool meets = false, has_ended = false;
    };
    Begun begin(std::vector<ir::Timeline>* timelines, bool to_its_end);
    void end(Executor& executor);

    const compile::Compiled& compiled_;
    const data::Source& source_;
    LrSchedule lr_;
    const compile::RankThreads rank_threads_;
    BatchShape shape_;
    std::unique_ptr<Ranks> ranks_;
    std::vector<Loader> loaders_;  // by place
    std::optional<Evaluator> evaluator_;
    Progress progress_;                              // of steps that have ended
    std::optional<Begun> begun_;                     // the next
    std::chrono::steady_clock::time_point ended_{};  // the last
};

}  // namespace lockstep::runtime
