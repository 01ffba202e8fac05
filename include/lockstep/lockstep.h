// Lockstep as a library: what the commands do, for C++ programs. `find_package(lockstep)` and lockstep::lockstep link it.
//
// Ranks are threads of the calling process. What is wrong with a recipe, data or a machine is a lockstep::UserError; what fails
// while it runs another std::exception. Nothing is printed unless print_messages() asks for it. Functions may be called from
// several threads, one training run or evaluation at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lockstep {

std::string version();

// What runs say on the way: warnings, checkpoints, held-out losses.
enum class MessageLevel { Info, Warning, Error };
// Empty: messages are dropped. The function may be called from several threads at the same time.
void set_messages(std::function<void(MessageLevel, std::string_view)> take);
// On standard error, as the commands print them, with a table of steps and a progress bar.
void print_messages();

// The file of the module for GPUs (docs/gpu.md), before the first recipe with runtime.kernels = "cuda". Without it the module
// is looked for next to the program. The library reads no variable of the environment.
void use_gpu_module(const std::string& file);

// Keys with values as they would be in TOML; quotes are optional: {"training.steps", "100"}.
using Settings = std::vector<std::pair<std::string, std::string>>;

// One pipeline rank: the bytes of a rank by kind, and its FLOPs in a step. Bytes are those of the device's memory if ranks have
// devices, else of the host's.
struct Stage {
    int64_t pipeline_rank = 0, total_bytes = 0;
    std::map<std::string, int64_t> bytes;
    int64_t host_bytes = 0;  // of the host's memory, not a device's: pinned copies of the states, for checkpoints
    double flops_model = 0, flops_executed = 0;
};

struct Pass {
    std::string name;
    double time_s = 0;
};
struct Program {
    int64_t ranks = 0, parameters = 0, microbatches = 0, global_batch = 0, seq_len = 0;
    int64_t bytes_of_a_rank = 0, bytes_of_all_ranks = 0;
    int64_t host_bytes_of_a_rank = 0;  // apart from a device's memory
    std::vector<Pass> passes;
    std::string text;  // as `lockstep show` prints it
};
struct ProgramOptions {
    std::string after;              // the last pass that runs; empty: all run
    std::vector<std::string> skip;  // pack_products, mark_one_document, fuse_loss, recompute or overlap
};

struct Check {
    bool fits = false;
    std::string machine;  // that it was compiled for
    int64_t ranks = 0;
    std::optional<int64_t> capacity_bytes;  // of a rank; none: not known
    std::vector<Stage> stages;
    std::optional<UserError> refusal;  // why it does not fit, and what would help
};

struct PlannedOp {
    std::string name;
    double count = 0, time_s = 0, flops = 0, bytes = 0;  // of a step
};
struct PlannedStage : Stage {
    double waiting_s = 0;                           // for other pipeline ranks
    std::vector<PlannedOp> compute, communication;  // the costliest first
};
struct Plan {
    double step_time_s = 0, tokens_per_s = 0;
    double mfu = 0, hfu = 0;  // of 1
    double bubble_fraction = 0, exposed_communication_s = 0, hidden_communication_s = 0;
    bool fits = false;
    int64_t ranks = 0;
    std::string cluster, machine;
    bool declared = false;  // the cluster file contains published rates, not measurements
    std::vector<PlannedStage> stages;
};

class Recipe {
public:
    // UserError recipe.* names file, line and key.
    static Recipe read(const std::string& path, const Settings& settings = {});
    static Recipe parse(const std::string& toml, const Settings& settings = {});

    void set(const std::string& key, const std::string& value);
    std::string get(const std::string& key) const;  // as text, with its default
    std::string toml() const;                       // every key that was set
    Settings config() const;                        // every key that acts, with its value

    // With all microbatches, on the machine of cluster.file, else this one.
    Program compile(const ProgramOptions& options = {}) const;
    // Compiles, proves and holds the memory against the machine of `cluster`, else of cluster.file, else this one.
    Check check(const std::string& cluster = "") const;
    // Simulates the step on the machine of `cluster`, else of cluster.file. UserError plan.no_cluster.
    Plan plan(const std::string& cluster = "") const;

private:
    friend struct Access;
    std::shared_ptr<void> recipe_;
};

struct Step {
    int64_t step = 0, steps = 0;  // counted from 1; of the whole run
    double loss = 0, grad_norm = 0, lr = 0;
    bool committed = true;  // false: loss or norm was not finite, and no state has changed
    double step_time_s = 0, tokens_per_s = 0;
    std::optional<double> heldout_loss;  // nats a token, if a validation ran after this step
    std::string checkpoint;              // folder of the latest complete one; empty: none
};
struct TrainOptions {
    // Called after each step in the calling thread. False stops the run, with a checkpoint if checkpoint.enable is true. What
    // it throws ends the run without one.
    std::function<bool(const Step&)> on_step;
    std::vector<std::string> watch;  // tensors whose values are written under job.dump_folder after each step
    std::string cluster;             // file of this machine's roofs; empty: they are measured
};
struct TrainResult {
    bool done = false;    // all steps were taken
    std::string stopped;  // else why not: "caller", "time", "non_finite"
    int64_t steps = 0;
    double final_loss = 0;  // NaN: no step was taken
    double tokens_per_s = 0, step_time_s = 0;
    std::optional<double> heldout_loss;
    int64_t planned_bytes = 0, resident_bytes = 0;  // of all ranks
    std::string checkpoint, dump_folder;            // no checkpoint: empty
};
// From the latest checkpoint of job.dump_folder, if there is one.
TrainResult train(const Recipe& recipe, const TrainOptions& options = {});

struct EvaluateOptions {
    Settings settings;              // keys of the checkpoint's recipe to change
    std::vector<std::string> data;  // prepared folders; none: those of the checkpoint's recipe
    std::string tokens;             // a token file, instead of prepared folders
    std::string split = "heldout";  // or train
    int64_t steps = 0;              // batches; 0: all
};
struct Evaluation {
    int64_t step = 0;  // of the checkpoint
    double loss = 0, perplexity = 0;
    std::optional<double> bits_per_byte;  // none: the tokens' text is not known
    int64_t tokens = 0;
};
// `checkpoint`: a checkpoint's folder, a folder of checkpoints or a run's folder; of several the latest.
Evaluation evaluate(const std::string& checkpoint, const EvaluateOptions& options = {});

struct TensorInfo {
    std::string dtype;  // of safetensors: "F32", "BF16"
    std::vector<int64_t> shape;
    int64_t bytes = 0;
};
// The global tensors of a checkpoint, whatever layout wrote it: parameters by their names, then states of the optimizer. Every
// byte that is read is checked.
class Checkpoint {
public:
    explicit Checkpoint(const std::string& path);  // as evaluate() takes it. UserError checkpoint.*
    const std::string& folder() const;
    int64_t step() const;
    Recipe recipe() const;  // that it was trained with
    std::vector<std::string> names() const;
    TensorInfo info(const std::string& name) const;  // UserError checkpoint.no_such_tensor
    // Row-major. `to` has info(name).bytes bytes.
    void read(const std::string& name, void* to) const;
    std::vector<float> read_as_float(const std::string& name) const;

private:
    struct Files;
    std::shared_ptr<const Files> files_;
};

// metrics.jsonl of a run (its path, or the run's folder): a column by name, a value by logged step, NaN where a line lacks it.
// "step" is a column. Steps that were repeated after a resume are there once. UserError metrics.cannot_read.
std::map<std::string, std::vector<double>> read_metrics(const std::string& path);

}  // namespace lockstep
