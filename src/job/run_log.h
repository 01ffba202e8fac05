// What a training run says of itself while it runs: lines, a table and a bar on the console; metrics.jsonl and events.jsonl
// under the dump folder; TensorBoard's event files where metrics.enable_tensorboard asks for them. Of a process group, the
// first process speaks and writes for all; every process makes one, and makes the same calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "job/job.h"
#include "planning/plan.h"
#include "runtime/float8_shares.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"
#include "telemetry/step_table.h"
#include "telemetry/tensorboard.h"

namespace lockstep::job {

struct HeldoutLoss {
    double loss = 0;                                      // nats a token, over all data sets
    std::vector<std::pair<std::string, double>> of_sets;  // of each, by name, where there are several
};

class RunLog {
public:
    // `cluster`: a file that describes this machine, for the planned step time and the peak that MFU is of; empty:
    // cluster.file. UserError metrics.cannot_write, cluster.*.
    RunLog(Job& job, const std::string& dump, const std::string& cluster);

    // What runs, and on what, once states are loaded. `resumed_from`: a checkpoint's folder; empty: from the beginning.
    void start(const std::string& resumed_from);
    // After each step; `heldout` where a validation ran after it.
    void step(const runtime::StepResult& r, const std::optional<HeldoutLoss>& heldout);
    // Is the step one whose metrics are written, whatever else happens after it?
    bool logs(int64_t step) const { return step == 1 || step % config_.metrics.log_freq == 0 || step == steps_; }
    // What the casts of a step have lost.
    void float8(int64_t step, const runtime::Float8Shares& shares);
    // A checkpoint was completed.
    void checkpoint(const std::string& folder);
    // It was refused before its first step.
    void refused(const std::string& text);
    // `reason`: done, signal, time, non_finite, failed.
    void end(const std::string& reason, const std::string& text, const nlohmann::ordered_json& summary);

    void clear_bar() { bar_.clear(); }
    // How much more memory is in use than before the arenas were made: the most at a logged step, and now.
    int64_t resident_bytes() const {
        return std::max<int64_t>(0, std::max(resident_, memory_in_use(config_)) - job_.bytes_before);
    }

private:
    using Clock = std::chrono::steady_clock;

    void event(const char* name, int64_t step, nlohmann::ordered_json values);
    void find_peak(const std::string& cluster);
    std::vector<std::string> data_texts() const;
    void print_start() const;
    nlohmann::ordered_json facts() const;
    void open_tensorboard();
    // A full disk costs lines of the log, not the run: says so once a file.
    void keep_on(FunctionRef<void()> write);
    void write(const runtime::StepResult& r, const std::optional<HeldoutLoss>& heldout);
    double left_s(const runtime::StepResult& r) const;

    Job& job_;
    comm::ProcessGroup& group_;
    const compile::Config& config_;
    const compile::Recipe& recipe_;
    const int64_t steps_, parameters_;
    const double flops_model_;  // of a rank and step
    std::string dump_;
    std::optional<telemetry::JsonLines> metrics_, events_, float8_;
    std::optional<telemetry::TensorBoardFile> tensorboard_;
    std::set<std::string> lost_;  // what keep_on has said
    std::optional<planning::PlannedStep> planned_;
    double peak_flops_per_s_ = 0;  // of a rank; 0: not known
    std::string peak_text_;        // what it is
    telemetry::ProgressBar bar_;
    telemetry::StepTable table_;
    int64_t resident_ = 0, taken_ = 0;  // taken: steps of this run
    Clock::time_point first_end_, window_start_;
    double window_data_s_ = 0;
    int64_t window_steps_ = 0;
};

}  // namespace lockstep::job
