// A training run from its recipe to its last checkpoint: data opened, program compiled and proved, checkpoint resumed, steps,
// validation, logs, checkpoints, a clean stop. What a run says on the way goes to telemetry/console.h.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "compile/recipe.h"
#include "job/exit_code.h"
#include "job/observe.h"
#include "job/run_log.h"
#include "runtime/trainer.h"

namespace lockstep::job {

// A step that is complete, with what is logged and saved of it.
struct StepReport {
    runtime::StepResult result;
    int64_t steps = 0;  // of the whole run
    int64_t tokens_per_step = 0;
    std::string checkpoint;              // folder of the latest complete one; empty: none
    std::optional<double> heldout_loss;  // nats a token, if a validation ran after this step
};

struct TrainOptions {
    std::vector<std::string> watch;  // tensors whose values are written under the dump folder after each step
    ObserveArgs observe;
    // Called after each step, in the thread that called train(). False stops the run, with a checkpoint.
    std::function<bool(const StepReport&)> on_step = nullptr;
    bool announces_signals = false;              // says while a step computes that a signal was remembered (stopping.h)
    std::optional<std::string> invitation = {};  // see start_job
};

struct TrainSummary {
    int64_t steps = 0;
    double final_loss = 0;  // NaN: no step was taken
    double tokens_per_s = 0, step_time_s = 0;
    int64_t planned_bytes = 0, resident_bytes = 0;  // of all ranks
    std::string checkpoint;                         // folder; empty: none
    int64_t checkpoints_written = 0;
    double checkpoint_stall_s = 0;
    std::string stopped;  // why before the last step: "signal", "time", "non_finite", "caller"; empty: it was not
    double start_up_s = 0;
    std::string dump_folder;
    std::optional<HeldoutLoss> heldout;          // the last one
    std::optional<double> unigram_entropy_nats;  // what token frequencies alone give
};
nlohmann::ordered_json to_json(const TrainSummary& summary);

struct TrainResult {
    int code = kDone;  // kDone, kStopped with a checkpoint, kFailed without
    TrainSummary summary;
    std::optional<Profile> profile;  // of the first process, if it was asked for
};

// Every process of `group` calls it at the same time, with the same recipe and options. A process group of one process has all
// ranks as threads of this process. UserError for what is refused; std::runtime_error for what fails while it runs.
TrainResult train(compile::Recipe recipe, const TrainOptions& options, comm::ProcessGroup& group);

}  // namespace lockstep::job
