// The table of recipe keys.
#include <algorithm>

#include "compile/limits.h"
#include "compile/recipe.h"
#include "passes/optimizer.h"
#include "pipeline/schedules.h"

namespace lockstep::compile {
namespace {

constexpr int64_t kGib = 1 << 30;

std::vector<std::string> schedule_names() {
    std::vector<std::string> out;
    for (const pipeline::Schedule& s : pipeline::schedules()) out.emplace_back(s.name);
    return out;
}

bool is_duration(const std::string& text) { return seconds_of(text).has_value(); }

bool is_count(const std::string& text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos && std::stoll(text) > 0;
}

// The data sets that torchtitan's job files name.
bool is_downloaded(const std::string& text) {
    for (const char* name : {"c4", "c4_test", "c4_validation", "cc12m", "cc12m-test", "cc12m-wds", "obelics"}) {
        if (text == name) return true;
    }
    return false;
}

Allowed split() { return one_of({"", "none", "shard", "world"}).or_form("a number of data ranks", is_count); }

}  // namespace

std::optional<double> seconds_of(const std::string& text) {
    double seconds = 0;
    int fields = 0;
    for (size_t begin = 0; begin <= text.size(); ++fields) {
        const size_t end = std::min(text.find(':', begin), text.size());
        const std::string field = text.substr(begin, end - begin);
        if (field.empty() || field.size() > 9 || field.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
        const double value = std::stod(field);
        if (fields > 0 && value >= 60) return std::nullopt;
        seconds = seconds * 60 + value;
        begin = end + 1;
    }
    return fields == 1 || fields == 3 ? std::optional(seconds) : std::nullopt;
}

const std::vector<RecipeKey>& recipe_keys() {
    using S = KeyStatus;
    using Strings = std::vector<std::string>;
    static const std::vector<RecipeKey> keys = {
        {"job.dump_folder", std::string("./outputs"), S::Acts, "folder for everything that a run writes"},
        {"job.description", std::string("default job"), S::Acts, "printed and recorded with the run"},
        {"job.print_config", false, S::Ignored, "`lockstep show` prints what a recipe becomes"},
        {"job.config_file", std::string(), S::Ignored, "the recipe is an argument"},
        {"job.save_config_file", std::string(), S::Ignored, "a run always saves its recipe"},
        {"job.custom_config_module", std::string(), S::Ignored, "there are no Python modules"},

        {"model.name", std::string("llama3"), S::Acts, "the model"},
        {"model.flavor", std::string("debugmodel"), S::Acts,
         "a named shape of the model; other keys of [model] override its numbers"},
        {"model.hf_assets_path", std::string(), S::Acts,
         "Hugging Face folder for the initial weights, used with checkpoint.initial_load_in_hf if checkpoint.initial_load_path "
         "is empty. The tokenizer comes from the prepared data"},
        {"model.tokenizer_path", std::string(), S::Ignored, "the tokenizer comes from the prepared data"},
        {"model.converters", Strings{}, S::Only, "conversion of the model (float8, MX)"},
        {"model.print_after_conversion", false, S::Ignored, "no converter is applied"},

        {"optimizer.name", std::string("AdamW"), S::Acts, "AdamW, Adam, SGD, or Muon: hidden matrices by Muon, the rest by AdamW",
         one_of(passes::optimizer_names())},
        {"optimizer.lr", 8e-4, S::Acts, "peak learning rate", from_to(0, 1e6)},
        {"optimizer.beta1", 0.9, S::Acts, "decay of the first moment", from_to(0, 0.999999999)},
        {"optimizer.beta2", 0.95, S::Acts, "decay of the second moment", from_to(0, 0.999999999)},
        {"optimizer.eps", 1e-8, S::Acts, "added to the root of the second moment", from_to(1e-30, 1)},
        {"optimizer.weight_decay", 0.1, S::Acts,
         "decay of matrices and embeddings (norms have none): decoupled, or with Adam and SGD part of the gradient",
         from_to(0, 1e6)},
        {"optimizer.momentum", 0.95, S::Acts, "of SGD and Muon; 0: SGD remembers nothing", from_to(0, 0.999999999)},
        {"optimizer.nesterov", true, S::Acts, "of SGD and Muon: the gradient is moved by the momentum to come"},
        {"optimizer.muon_ns_steps", int64_t{5}, S::Acts, "Muon's steps of Newton and Schulz", from_to(1, 99)},
        {"optimizer.muon_adjust_lr_fn", std::string("match_rms_adamw"), S::Acts,
         "Muon's learning rate for a matrix of r rows and c columns: match_rms_adamw, lr 0.2 sqrt(max(r, c)), which makes its "
         "updates as large as AdamW's; original, lr sqrt(max(1, r / c))",
         one_of({"match_rms_adamw", "original"})},
        {"optimizer.implementation", std::string("fused"), S::Ignored, "the update is always fused"},
        {"optimizer.early_step_in_backward", false, S::Ignored, "the schedule is compiled"},

        {"lr_scheduler.warmup_steps", int64_t{200}, S::Acts, "steps of linear warm-up", from_to(0, kSteps)},
        {"lr_scheduler.total_steps", int64_t{0}, S::Acts, "length of the schedule in steps; 0: training.steps",
         from_to(0, kSteps)},
        {"lr_scheduler.decay_ratio", -1.0, S::Acts,
         "share of the steps, at the end, in which the rate decays; -1: all steps after warm-up", from_to(0, 1).or_value(-1)},
        {"lr_scheduler.decay_type", std::string("linear"), S::Acts, "linear, sqrt or cosine",
         one_of({"linear", "sqrt", "cosine"})},
        {"lr_scheduler.min_lr_factor", 0.0, S::Acts, "final learning rate / peak learning rate", from_to(0, 1)},

        {"training.dataset", std::string("prepared"), S::Acts,
         "synthetic: random tokens, for tests and timing; prepared, or a name such as c4: the folder training.dataset_path",
         one_of({"prepared", "synthetic"})
             .or_form("the name of a data set of torchtitan's, such as c4", is_downloaded)
             .advise("other text becomes a prepared folder by `lockstep data prepare`, which training.dataset_path names")},
        {"training.dataset_path", Strings{}, S::Acts,
         "folder made by `lockstep data prepare`; a list of folders is a mixture of data sets"},
        {"training.dataset_weights", std::vector<double>{}, S::Acts,
         "share of each folder of training.dataset_path in the sequences, as numbers whose ratios count. Empty: as many as each "
         "has windows, so that all end their epochs together",
         from_to(1e-9, 1e9)},
        {"training.window_stride", int64_t{0}, S::Acts,
         "tokens from the start of a training sequence to that of the next. 0: training.seq_len. With seq_len + 1 no two "
         "sequences share a token; with less than seq_len they overlap",
         from_to(0, kSize)},
        {"training.local_batch_size", int64_t{8}, S::Acts,
         "sequences per microbatch and data rank; with a pipeline, per step and data rank", from_to(1, kSize)},
        {"training.global_batch_size", int64_t{-1}, S::Acts,
         "sequences per step; -1: one microbatch on every data rank. A remainder is filled with masked sequences",
         from_to(1, kSize).or_value(-1)},
        {"training.seq_len", int64_t{2048}, S::Acts, "tokens per sequence", from_to(1, kSize)},
        {"training.document_mask", false, S::Acts, "attention stays within documents, and positions restart in each"},
        {"training.max_norm", 1.0, S::Acts, "gradients are scaled down to this global norm; 0: never", from_to(0, 1e30)},
        {"training.steps", int64_t{10000}, S::Acts, "optimizer steps", from_to(0, kSteps)},
        {"training.dtype", std::string("float32"), S::Acts,
         "element type of the optimizer's weights and moments: float32, bfloat16, or float64 (reference kernels)",
         one_of({"float32", "bfloat16", "float64"})},
        {"training.mixed_precision_param", std::string("bfloat16"), S::Acts,
         "element type of parameters and activations: bfloat16, float16 (with training.loss_scale) or float32; empty: "
         "training.dtype. Norm statistics, softmax, loss and sums stay float32",
         one_of({"", "bfloat16", "float16", "float32", "float64"})},
        {"training.mixed_precision_norm", std::string(), S::Acts,
         "element type of the weights and biases of norms. float32 with bfloat16 parameters behaves as PyTorch's autocast. "
         "Empty: training.mixed_precision_param",
         one_of({"", "bfloat16", "float16", "float32", "float64"})},
        {"training.mixed_precision_reduce", std::string("float32"), S::Acts,
         "element type in which gradients are sent between ranks: float32, bfloat16 or float16. They accumulate in float32",
         one_of({"float32", "bfloat16", "float16"})},
        {"training.fp32_residual_connection", false, S::Acts,
         "with bfloat16 or float16: keep the residual stream in float32, forward and backward, as Megatron-LM and PyTorch's "
         "autocast do"},
        {"training.loss_scale", 0.0, S::Acts,
         "the loss is multiplied by it before backward, and gradients are divided by it again. 0: with float16 a dynamic scale, "
         "which is halved by a step whose gradients overflow, and doubled by training.loss_scale_window steps in a row that "
         "count; else none",
         from_to(1e-6, 1e30).or_value(0)},
        {"training.initial_loss_scale", 65536.0, S::Acts, "where a dynamic scale begins", from_to(1e-6, 1e30)},
        {"training.min_loss_scale", 1.0, S::Acts, "what a dynamic scale does not go below", from_to(1e-6, 1e30)},
        {"training.loss_scale_window", int64_t{2000}, S::Acts,
         "steps in a row without overflow after which a dynamic scale is doubled", from_to(1, kSteps)},
        {"training.max_time", std::string(), S::Acts,
         "time limit since the command began, in seconds or hours:minutes:seconds. The run ends with a checkpoint while one more "
         "step and a save would still fit. Empty: no limit",
         one_of({""}).or_form("seconds (\"3600\") or hours:minutes:seconds (\"1:30:00\")", is_duration)},
        {"training.max_nonfinite_steps", int64_t{10}, S::Acts,
         "stop after this many steps in a row whose loss or gradients are not finite; 0: never", from_to(0, kSteps)},
        {"training.fuse_loss", true, S::Acts, "run output projection and cross-entropy in chunks of tokens"},
        {"training.loss_chunk_tokens", int64_t{512}, S::Acts,
         "largest number of tokens in a chunk of the loss on one rank. Fewer need less memory for logits; more read the "
         "projection's weights less often",
         from_to(1, kSize)},
        {"training.enable_cpu_offload", false, S::Only, "offload to the memory of the CPU"},
        {"training.gc_freq", int64_t{50}, S::Ignored, "there is no garbage collector"},
        {"training.gc_debug", false, S::Ignored, "there is no garbage collector"},
        {"training.dataloader.num_workers", int64_t{0}, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.prefetch_factor", int64_t{0}, S::Ignored, "token files are memory-mapped"},

        {"parallelism.data_parallel_replicate_degree", int64_t{1}, S::Acts,
         "number of replicas of the model, which may itself be sharded", from_to(1, kMostRanks)},
        {"parallelism.data_parallel_shard_degree", int64_t{-1}, S::Acts,
         "data ranks over which parameters are sharded; -1: the ranks that the other degrees leave",
         from_to(1, kMostRanks).or_value(-1)},
        {"parallelism.tensor_parallel_degree", int64_t{1}, S::Acts,
         "ranks over which heads, feed-forward and vocabulary are sharded", from_to(1, kMostRanks)},
        {"parallelism.sequence_parallel", true, S::Acts,
         "shard the residual stream along the sequence over tensor-parallel ranks"},
        {"parallelism.pipeline_parallel_degree", int64_t{1}, S::Acts,
         "pipeline ranks, over which the layers are divided. Batch sizes are then divided into microbatches of "
         "pipeline_parallel_microbatch_size",
         from_to(1, kMostRanks)},
        {"parallelism.pipeline_parallel_schedule", std::string("1F1B"), S::Acts,
         "order of forwards and backwards; `lockstep schedule` lists and draws the schedules",
         one_of(schedule_names()).with_any_case()},
        {"parallelism.pipeline_parallel_schedule_csv", std::string(), S::Acts,
         "CSV file with your own schedule, in PyTorch's format; overrides the name"},
        {"parallelism.pipeline_parallel_microbatch_size", int64_t{1}, S::Acts,
         "sequences per microbatch and data rank, with a pipeline", from_to(1, kSize)},
        {"parallelism.pipeline_parallel_layers_per_stage", int64_t{0}, S::Acts,
         "largest number of layers per stage; 0: one stage per rank, or two if the schedule runs several", from_to(0, kSize)},
        {"parallelism.pipeline_parallel_first_stage_less_layers", int64_t{1}, S::Acts,
         "number of layers that the first stage has less, because it has the embedding; -1 in both keys: the cut minimizes the "
         "cost of the costliest stage",
         from_to(0, kSize).or_value(-1)},
        {"parallelism.pipeline_parallel_last_stage_less_layers", int64_t{1}, S::Acts,
         "number of layers that the last stage has less, because it has the head; -1: as for the first stage",
         from_to(0, kSize).or_value(-1)},
        {"parallelism.pipeline_parallel_expert_parallel_overlap", true, S::Ignored, "there are no experts"},
        {"parallelism.module_fqns_per_model_part", Strings{}, S::Acts,
         "modules of each stage: [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\"]]"},
        {"parallelism.context_parallel_degree", int64_t{1}, S::Only, "context parallelism"},
        {"parallelism.context_parallel_load_balancer", std::string("headtail"), S::Ignored, "there is one context rank"},
        {"parallelism.context_parallel_rotate_method", std::string("allgather"), S::Ignored, "there is one context rank"},
        {"parallelism.expert_parallel_degree", int64_t{1}, S::Only, "experts"},
        {"parallelism.expert_tensor_parallel_degree", int64_t{1}, S::Only, "experts"},
        {"parallelism.expert_parallel_comm_backend", std::string("standard"), S::Ignored, "there are no experts"},
        {"parallelism.fsdp_reshard_after_forward", std::string("default"), S::Acts,
         "always: free gathered parameters after each use; never: keep them for the step; default: always, but with a pipeline "
         "keep those that one of the rank's next three stages uses",
         one_of({"default", "always", "never"})},
        {"parallelism.disable_loss_parallel", false, S::Only, "a loss over the whole vocabulary on each rank"},
        {"parallelism.enable_async_tensor_parallel", false, S::Only, "asynchronous tensor parallelism"},
        {"parallelism.prefetch", int64_t{1}, S::Acts, "number of parameter units gathered ahead of the one in use",
         from_to(0, 1024)},

        {"partition.preset", std::string("default"), S::Acts,
         "none, zero1, zero2 or zero3; default: zero3 over the data_parallel_shard ranks",
         one_of({"default", "none", "zero1", "zero2", "zero3"})},
        {"partition.weights", std::string(), S::Acts,
         "data ranks over which weights are sharded: none, shard, world or a number; overrides the preset", split()},
        {"partition.gradients", std::string(), S::Acts,
         "data ranks over which gradients are sharded: none, shard, world or a number; overrides the preset", split()},
        {"partition.optimizer", std::string(), S::Acts,
         "data ranks over which optimizer states are sharded: none, shard, world or a number; overrides the preset", split()},
        {"partition.reduce_gradients", std::string("default"), S::Acts,
         "when sharded gradients are reduced. microbatch: after each microbatch; step: once a step, which needs whole gradients "
         "until then; default: microbatch, with a pipeline step",
         one_of({"default", "microbatch", "step"})},
        {"partition.secondary_weights", std::string(), S::Only, "a second copy of the weights within a node"},

        {"checkpoint.enable", false, S::Acts, "write checkpoints, and resume from the latest one"},
        {"checkpoint.folder", std::string("checkpoint"), S::Acts, "folder of checkpoints, under job.dump_folder unless absolute"},
        {"checkpoint.interval", int64_t{500}, S::Acts, "steps between checkpoints; the last step always writes one",
         from_to(1, kSteps)},
        {"checkpoint.keep_latest_k", int64_t{10}, S::Acts, "number of checkpoints to keep; older ones are removed. 0: keep all",
         from_to(0, kSteps)},
        {"checkpoint.load_step", int64_t{-1}, S::Acts, "step to resume from; -1: the latest complete checkpoint",
         from_to(0, kSteps).or_value(-1)},
        {"checkpoint.initial_load_path", std::string(), S::Acts,
         "checkpoint, or folder of checkpoints, to start from if checkpoint.folder has none yet"},
        {"checkpoint.initial_load_model_only", true, S::Acts,
         "take only the weights from initial_load_path, and begin at step 0"},
        {"checkpoint.initial_load_in_hf", false, S::Acts,
         "initial_load_path is a Hugging Face folder (config.json and safetensors). If it is empty, model.hf_assets_path is "
         "used"},
        {"checkpoint.initial_load_in_hf_quantized", false, S::Only, "quantized weights"},
        {"checkpoint.last_save_model_only", true, S::Acts,
         "the checkpoint after the last step has no optimizer states, so no run can continue from it"},
        {"checkpoint.last_save_in_hf", false, S::Acts,
         "the checkpoint after the last step is a Hugging Face folder of the model alone"},
        {"checkpoint.export_dtype", std::string("float32"), S::Acts,
         "element type of the checkpoint after the last step if it has the model alone: float32, bfloat16 or float16; empty: "
         "training.dtype",
         one_of({"", "float32", "bfloat16", "float16"})},
        {"checkpoint.async_mode", std::string("disabled"), S::Acts,
         "async: copy states to planned memory and write them while training goes on; async_with_pinned_mem: the same; disabled: "
         "training waits",
         one_of({"disabled", "async", "async_with_pinned_mem"})},
        {"checkpoint.enable_ft_dataloader_checkpoints", true, S::Ignored, "every checkpoint records the position in the data"},
        {"checkpoint.exclude_from_loading", Strings{}, S::Acts, "parts that are not loaded: optimizer, dataloader, train_state",
         one_of({"optimizer", "dataloader", "train_state"})},
        {"checkpoint.enable_first_step_checkpoint", false, S::Acts, "also write a checkpoint after the first step"},
        {"checkpoint.create_seed_checkpoint", false, S::Acts,
         "write the initial values as the checkpoint of step 0, and end. Not needed: initial values do not depend on the layout"},
        {"checkpoint.load_only", false, S::Acts, "load checkpoints, but write none"},

        {"activation_checkpoint.mode", std::string("selective"), S::Acts,
         "what the backward computes again: none, full (each layer's forward), selective, budget, memory_budget",
         one_of({"none", "full", "selective", "budget", "memory_budget"})},
        {"activation_checkpoint.selective_ac_option", std::string("2"), S::Acts,
         "with selective: \"n\" computes every n-th layer again; \"op\" saves attention, reductions and every second product, "
         "and computes the rest again",
         one_of({"op"}).or_form("a number of 1 or more: every n-th layer is computed again", is_count)},
        {"activation_checkpoint.memory_budget", 0.5, S::Acts,
         "with memory_budget, 0 to 1: of the activations that full recompute frees, the share that may be saved. Lockstep finds "
         "the fastest choice",
         from_to(0, 1)},
        {"activation_checkpoint.budget_bytes", int64_t{0}, S::Acts,
         "with budget: largest size of a rank's arena in bytes. Lockstep finds the fastest choice", from_to(0, kBytes)},
        {"activation_checkpoint.preserve_rng_state", true, S::Ignored, "there is no hidden random state"},
        {"activation_checkpoint.determinism_check", std::string("default"), S::Ignored, "everything is deterministic"},
        {"activation_checkpoint.early_stop", false, S::Ignored, "dead ops are dropped"},
        {"activation_checkpoint.debug", false, S::Ignored, "see `lockstep show`"},
        {"activation_checkpoint.visualize_memory_budget_pareto", false, S::Ignored, "see `lockstep check`"},
        {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", Strings{"moe.router.gate"}, S::Ignored,
         "see selective_ac_option"},

        {"metrics.log_freq", int64_t{10}, S::Acts, "steps between lines on the console and in metrics.jsonl", from_to(1, kSteps)},
        {"metrics.disable_color_printing", false, S::Acts, "no colors on a terminal"},
        {"metrics.enable_tensorboard", false, S::Acts, "write event files that TensorBoard reads"},
        {"metrics.save_tb_folder", std::string("tb"), S::Acts,
         "of TensorBoard's event files, under job.dump_folder unless absolute"},
        {"metrics.save_for_all_ranks", false, S::Ignored, "metrics are those of the whole job"},
        {"metrics.enable_wandb", false, S::Ignored, "metrics.jsonl can be imported anywhere"},

        {"validation.enable", false, S::Acts, "measure the loss on held-out data during training"},
        {"validation.dataset", std::string("prepared"), S::Ignored, "always the held-out split of the training data"},
        {"validation.dataset_path", Strings{}, S::Acts,
         "another prepared folder, or a list of them; empty: the held-out splits of training.dataset_path. Of several the loss "
         "is said of each, and over all their tokens"},
        {"validation.freq", int64_t{10}, S::Acts, "steps between validations", from_to(1, kSteps)},
        {"validation.steps", int64_t{-1}, S::Acts, "batches per validation and data set; -1: the whole split once",
         from_to(1, kSteps).or_value(-1)},
        {"validation.local_batch_size", int64_t{-1}, S::Acts, "that of training, or -1, which means the same",
         from_to(1, kSize).or_value(-1)},
        {"validation.seq_len", int64_t{-1}, S::Acts, "that of training, or -1, which means the same",
         from_to(1, kSize).or_value(-1)},
        {"validation.dataloader.num_workers", int64_t{0}, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.prefetch_factor", int64_t{0}, S::Ignored, "token files are memory-mapped"},

        {"debug.replica_check_freq", int64_t{0}, S::Acts,
         "steps between comparisons of checksums among ranks that must hold the same states; 0: never", from_to(0, kSteps)},
        {"debug.seed", int64_t{0}, S::Acts, "seed of initial values, sample order, dropout and synthetic data"},
        {"debug.deterministic", false, S::Ignored, "runs are always deterministic"},
        {"debug.deterministic_warn_only", false, S::Ignored, "runs are always deterministic"},
        {"debug.moe_force_load_balance", false, S::Ignored, "there are no experts"},
        {"debug.synthetic_masked", 0.0, S::Acts, "share of targets without loss in synthetic data", from_below(0, 1)},

        {"runtime.threads_per_rank", int64_t{0}, S::Acts,
         "threads that share the work of one rank; 0: the cores of a host, divided among its ranks. The number does not change "
         "the bits of a result",
         from_to(0, 1024)},
        {"runtime.kernels", std::string("cpu"), S::Acts, "cpu, or reference (plain loops in double precision)",
         one_of({"cpu", "reference"})},
        {"runtime.instruction_set", std::string("auto"), S::Acts,
         "of the cpu kernels: auto (the best one of this processor), avx512, avx2 or baseline. Results of two instruction sets "
         "differ by rounding",
         one_of({"auto", "avx512", "avx2", "baseline"})},
        {"runtime.disabled_kernels", std::string(), S::Acts,
         "ops that run as their parts, separated by commas (qkv_rope,swiglu). Helps to find a wrong kernel, or what one gains"},
        {"runtime.debug_fill", false, S::Acts, "fill freed memory with NaN"},
        {"runtime.comm_thread", std::string("auto"), S::Acts,
         "on: gathers and reductions of parameters run on a thread beside each rank; off: on the rank's own thread; auto: on if "
         "there are more cores than ranks need",
         one_of({"auto", "on", "off"})},

        {"runtime.local_link_bytes_per_s", 0.0, S::Acts,
         "for experiments: collectives between threads take as long as rings over links of this rate; 0: no limit",
         from_to(0, 1e15)},
        {"runtime.local_link_latency_s", 0.0, S::Acts, "for experiments: seconds that each step of such a ring takes",
         from_to(0, 60)},

        {"cluster.ranks", int64_t{0}, S::Acts, "ranks of the job; 0: the product of the degrees", from_to(0, kMostRanks)},
        {"cluster.ranks_per_host", int64_t{0}, S::Acts,
         "ranks per host when planning for hosts that are not present. The program then sums in two levels, within a host and "
         "between hosts. 0: from cluster.file",
         from_to(0, kMostRanks)},
        {"cluster.ranks_per_process", int64_t{1}, S::Acts, "ranks per process, with cluster.ranks_per_host",
         from_to(1, kMostRanks)},
        {"cluster.file", std::string(), S::Acts,
         "cluster file of `lockstep bench`: its rows decide between kernels and price recompute; empty: fixed rules"},
        {"cluster.memory_gib_per_rank", 0.0, S::Acts, "memory of a rank for `check`; 0: this machine's memory / ranks",
         from_to(0, kBytes / kGib)},
        {"cluster.reserve_gib_per_rank", 0.0, S::Acts, "memory of a rank outside the arena (libraries, drivers)",
         from_to(0, kBytes / kGib)},

        {"comm.init_timeout_seconds", int64_t{300}, S::Ignored, "the launcher waits for processes that do not start"},
        {"comm.train_timeout_seconds", int64_t{100}, S::Acts,
         "seconds without progress before the job is stopped and each rank writes a flight record. A silent process is declared "
         "dead after 75 % of it. 0: never",
         from_to(0, 1e9)},
        {"comm.trace_buf_size", int64_t{20000}, S::Acts, "number of ops that a flight record holds, per stream of a rank",
         from_to(1, 1e6)},
        {"comm.save_traces_folder", std::string("comm_traces"), S::Acts,
         "folder of flight records, under job.dump_folder unless absolute"},
        {"comm.save_traces_file_prefix", std::string("rank_"), S::Acts,
         "beginning of a flight record's file name; the rank's number follows"},
        {"comm.mode", std::string("default"), S::Ignored, "`lockstep check` needs no devices"},
        {"compile.enable", false, S::Ignored, "the whole step is always compiled"},
        {"compile.components", Strings{"model", "loss"}, S::Ignored, "the whole step is always compiled"},
        {"compile.backend", std::string("inductor"), S::Ignored, "the whole step is always compiled"},
        {"profiling.enable_profiling", false, S::Ignored, "`lockstep train --trace FILE` records a step's timeline"},
        {"profiling.save_traces_folder", std::string("profile_traces"), S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profile_freq", int64_t{10}, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profiler_active", int64_t{1}, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profiler_warmup", int64_t{3}, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.enable_memory_snapshot", false, S::Ignored, "memory is known before the run: `lockstep check`"},
        {"profiling.save_memory_snapshot_folder", std::string("memory_snapshot"), S::Ignored,
         "memory is known before the run: `lockstep check`"},
        {"memory_estimation.enable", false, S::Ignored, "`lockstep check` is exact"},
        {"memory_estimation.disable_fake_mode", false, S::Ignored, "`lockstep check` is exact"},
        {"quantize.linear.float8.enable_fsdp_float8_all_gather", false, S::Ignored, "acts with model.converters alone"},
        {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", false, S::Ignored,
         "acts with model.converters alone"},
        {"quantize.linear.float8.recipe_name", std::string(), S::Ignored, "acts with model.converters alone"},
        {"quantize.linear.float8.filter_fqns", Strings{}, S::Ignored, "acts with model.converters alone"},
        {"quantize.linear.float8.emulate", false, S::Ignored, "acts with model.converters alone"},
        {"quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", std::string("triton"), S::Ignored,
         "acts with model.converters alone"},
        {"quantize.linear.mx.recipe_name", std::string("mxfp8_cublas"), S::Ignored, "acts with model.converters alone"},
        {"quantize.linear.mx.filter_fqns", Strings{"output"}, S::Ignored, "acts with model.converters alone"},
        {"quantize.grouped_mm.float8.fqns", Strings{}, S::Ignored, "acts with model.converters alone"},
        {"quantize.grouped_mm.mx.recipe_name", std::string("mxfp8"), S::Ignored, "acts with model.converters alone"},
        {"quantize.grouped_mm.mx.fqns", Strings{}, S::Ignored, "acts with model.converters alone"},
        {"fault_tolerance.enable", false, S::Only, "fault tolerance"},
        {"fault_tolerance.process_group", std::string("gloo"), S::Ignored, "acts with fault_tolerance.enable alone"},
        {"fault_tolerance.process_group_timeout_ms", int64_t{10000}, S::Ignored, "acts with fault_tolerance.enable alone"},
        {"fault_tolerance.replica_id", int64_t{0}, S::Ignored, "acts with fault_tolerance.enable alone"},
        {"fault_tolerance.group_size", int64_t{0}, S::Ignored, "acts with fault_tolerance.enable alone"},
        {"fault_tolerance.min_replica_size", int64_t{1}, S::Ignored, "acts with fault_tolerance.enable alone"},
        {"fault_tolerance.semi_sync_method", std::string(), S::Only, "fault tolerance"},
        {"experimental.custom_import", std::string(), S::Ignored, "there are no Python modules"},
        {"experimental.custom_args_module", std::string(), S::Ignored, "there are no Python modules"},
    };
    return keys;
}

std::string default_difference(std::string_view key) {
    constexpr std::pair<const char*, const char*> differences[] = {
        {"model.hf_assets_path", "\"./tests/assets/tokenizer\", a folder of torchtitan's own"},
        {"training.dataset", "\"c4_test\"; here text is prepared by `lockstep data prepare`, and nothing is downloaded"},
        {"validation.dataset", "\"c4_validation\"; here the held-out split of the training data"},
        {"validation.local_batch_size", "8; here a validation has the batches of training"},
        {"validation.seq_len", "2048; here a validation has the sequences of training"},
        {"debug.seed", "None, which draws a seed; here a run is the same each time"},
    };
    for (const auto& [name, why] : differences) {
        if (name == key) return why;
    }
    return "";
}

}  // namespace lockstep::compile
