// The table of recipe keys.
#include <algorithm>

#include "compile/key_field.h"
#include "compile/limits.h"
#include "compile/recipe.h"
#include "schedules/schedules.h"

namespace lockstep::compile {
namespace {

constexpr int64_t kGib = 1 << 30;

std::vector<std::string> schedule_names() {
    std::vector<std::string> out;
    for (const schedules::Schedule& s : schedules::schedules()) out.emplace_back(s.name);
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

Allowed split() { return one_of({"", "none", "package", "node", "shard", "world"}).or_form("a number of data ranks", is_count); }

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
    using C = Config;
    const Section job("job", &C::job);
    const Section model("model", &C::model);
    const Section optimizer("optimizer", &C::optimizer);
    const Section lr_scheduler("lr_scheduler", &C::lr_scheduler);
    const Section training("training", &C::training);
    const Section parallelism("parallelism", &C::parallelism);
    const Section partition("partition", &C::partition);
    const Section checkpoint("checkpoint", &C::checkpoint);
    const Section activation_checkpoint("activation_checkpoint", &C::activation_checkpoint);
    const Section metrics("metrics", &C::metrics);
    const Section validation("validation", &C::validation);
    const Section debug("debug", &C::debug);
    const Section runtime("runtime", &C::runtime);
    const Section cluster("cluster", &C::cluster);
    const Section comm("comm", &C::comm);
    const Section fault_tolerance("fault_tolerance", &C::fault_tolerance);
    using Strings = std::vector<std::string>;
    static const std::vector<RecipeKey> keys = {
        job.acts("dump_folder", &C::Job::dump_folder, "folder for everything that a run writes"),
        job.acts("description", &C::Job::description, "printed and recorded with the run"),
        {"job.print_config", false, S::Ignored, "`lockstep show` prints what a recipe becomes"},
        {"job.config_file", std::string(), S::Ignored, "the recipe is an argument"},
        {"job.save_config_file", std::string(), S::Ignored, "a run always saves its recipe"},
        {"job.custom_config_module", std::string(), S::Ignored, "there are no Python modules"},

        model.acts("name", &C::Model::name, "the model"),
        model.acts("flavor", &C::Model::flavor, "a named shape of the model; other keys of [model] override its numbers"),
        model.acts("hf_assets_path", &C::Model::hf_assets_path,
                   "Hugging Face folder for the initial weights, used with checkpoint.initial_load_in_hf if "
                   "checkpoint.initial_load_path "
                   "is empty. The tokenizer comes from the prepared data"),
        {"model.tokenizer_path", std::string(), S::Ignored, "the tokenizer comes from the prepared data"},
        {"model.converters", Strings{}, S::Only, "conversion of the model (float8, MX)"},
        {"model.print_after_conversion", false, S::Ignored, "no converter is applied"},

        optimizer.acts("name", &C::Optimizer::name, "AdamW, Adam, SGD, or Muon: hidden matrices by Muon, the rest by AdamW"),
        optimizer.acts("lr", &C::Optimizer::lr, "peak learning rate", from_to(0, 1e6)),
        optimizer.acts("beta1", &C::Optimizer::beta1, "decay of the first moment", from_to(0, 0.999999999)),
        optimizer.acts("beta2", &C::Optimizer::beta2, "decay of the second moment", from_to(0, 0.999999999)),
        optimizer.acts("eps", &C::Optimizer::eps, "added to the root of the second moment", from_to(1e-30, 1)),
        optimizer.acts("weight_decay", &C::Optimizer::weight_decay,
                       "decay of matrices and embeddings (norms have none): decoupled, or with Adam and SGD part of the gradient",
                       from_to(0, 1e6)),
        optimizer.acts("momentum", &C::Optimizer::momentum, "of SGD and Muon; 0: SGD remembers nothing", from_to(0, 0.999999999)),
        optimizer.acts("nesterov", &C::Optimizer::nesterov, "of SGD and Muon: the gradient is moved by the momentum to come"),
        optimizer.acts("muon_ns_steps", &C::Optimizer::muon_ns_steps, "Muon's steps of Newton and Schulz", from_to(1, 99)),
        optimizer.acts(
            "muon_adjust_lr_fn", &C::Optimizer::muon_adjust_lr_fn,
            "Muon's learning rate for a matrix of r rows and c columns: match_rms_adamw, lr 0.2 sqrt(max(r, c)), which makes its "
            "updates as large as AdamW's; original, lr sqrt(max(1, r / c))"),
        {"optimizer.implementation", std::string("fused"), S::Ignored, "the update is always fused"},
        {"optimizer.early_step_in_backward", false, S::Ignored, "the schedule is compiled"},

        lr_scheduler.acts("warmup_steps", &C::LrScheduler::warmup_steps, "steps of linear warm-up", from_to(0, kSteps)),
        lr_scheduler.acts("total_steps", &C::LrScheduler::total_steps, "length of the schedule in steps; 0: training.steps",
                          from_to(0, kSteps)),
        lr_scheduler.acts("decay_ratio", &C::LrScheduler::decay_ratio,
                          "share of the steps, at the end, in which the rate decays; -1: all steps after warm-up",
                          from_to(0, 1).or_value(-1)),
        lr_scheduler.acts("decay_type", &C::LrScheduler::decay_type, "linear, sqrt or cosine"),
        lr_scheduler.acts("min_lr_factor", &C::LrScheduler::min_lr_factor, "final learning rate / peak learning rate",
                          from_to(0, 1)),

        training.acts(
            "dataset", &C::Training::dataset,
            "synthetic: random tokens, for tests and timing; prepared, or a name such as c4: the folder training.dataset_path",
            one_of({"prepared", "synthetic"})
                .or_form("the name of a data set of torchtitan's, such as c4", is_downloaded)
                .advise("other text becomes a prepared folder by `lockstep data prepare`, which training.dataset_path names")),
        training.acts("dataset_path", &C::Training::dataset_path,
                      "folder made by `lockstep data prepare`; a list of folders is a mixture of data sets"),
        training.acts("dataset_weights", &C::Training::dataset_weights,
                      "share of each folder of training.dataset_path in the sequences, as numbers whose ratios count. Empty: as "
                      "many as each "
                      "has windows, so that all end their epochs together",
                      from_to(1e-9, 1e9)),
        training.acts(
            "window_stride", &C::Training::window_stride,
            "tokens from the start of a training sequence to that of the next. 0: training.seq_len. With seq_len + 1 no two "
            "sequences share a token; with less than seq_len they overlap",
            from_to(0, kSize)),
        training.acts("local_batch_size", &C::Training::local_batch_size,
                      "sequences per microbatch and data rank; with a pipeline, per step and data rank", from_to(1, kSize)),
        training.acts("global_batch_size", &C::Training::global_batch_size,
                      "sequences per step; -1: one microbatch on every data rank. A remainder is filled with masked sequences",
                      from_to(1, kSize).or_value(-1)),
        training.acts("seq_len", &C::Training::seq_len, "tokens per sequence", from_to(1, kSize)),
        training.acts("document_mask", &C::Training::document_mask,
                      "attention stays within documents, and positions restart in each"),
        training.acts("max_norm", &C::Training::max_norm, "gradients are scaled down to this global norm; 0: never",
                      from_to(0, 1e30)),
        training.acts("steps", &C::Training::steps, "optimizer steps", from_to(0, kSteps)),
        training.acts("dtype", &C::Training::dtype,
                      "element type of the optimizer's weights and moments: float32, bfloat16, or float64 (reference kernels)",
                      one_of({"float32", "bfloat16", "float64"})),
        training.acts(
            "mixed_precision_param", &C::Training::mixed_precision_param,
            "element type of parameters and activations: bfloat16, float16 (with training.loss_scale) or float32; empty: "
            "training.dtype. Norm statistics, softmax, loss and sums stay float32",
            one_of({"", "bfloat16", "float16", "float32", "float64"})),
        training.acts("mixed_precision_norm", &C::Training::mixed_precision_norm,
                      "element type of the weights and biases of norms. float32 with bfloat16 parameters behaves as PyTorch's "
                      "autocast. Empty: training.mixed_precision_param",
                      one_of({"", "bfloat16", "float16", "float32", "float64"})),
        training.acts("mixed_precision_reduce", &C::Training::mixed_precision_reduce,
                      "element type in which gradients are sent between ranks: float32, bfloat16 or float16. They accumulate in "
                      "float32",
                      one_of({"float32", "bfloat16", "float16"})),
        training.acts("fp32_residual_connection", &C::Training::fp32_residual_connection,
                      "with bfloat16 or float16: keep the residual stream in float32, forward and backward, as Megatron-LM and "
                      "PyTorch's autocast do"),
        training.acts("loss_scale", &C::Training::loss_scale,
                      "the loss is multiplied by it before backward, and gradients are divided by it again. 0: with float16 a "
                      "dynamic scale, which is halved by a step whose gradients overflow, and doubled by "
                      "training.loss_scale_window steps in a row that count; else none",
                      from_to(1e-6, 1e30).or_value(0)),
        training.acts("initial_loss_scale", &C::Training::initial_loss_scale, "where a dynamic scale begins",
                      from_to(1e-6, 1e30)),
        training.acts("min_loss_scale", &C::Training::min_loss_scale, "what a dynamic scale does not go below",
                      from_to(1e-6, 1e30)),
        training.acts("loss_scale_window", &C::Training::loss_scale_window,
                      "steps in a row without overflow after which a dynamic scale is doubled", from_to(1, kSteps)),
        training.acts("max_time", &C::Training::max_time,
                      "time limit since the command began, in seconds or hours:minutes:seconds. The run ends with a checkpoint "
                      "while one more "
                      "step and a save would still fit. Empty: no limit",
                      one_of({""}).or_form("seconds (\"3600\") or hours:minutes:seconds (\"1:30:00\")", is_duration)),
        training.acts("max_nonfinite_steps", &C::Training::max_nonfinite_steps,
                      "stop after this many steps in a row whose loss or gradients are not finite; 0: never", from_to(0, kSteps)),
        training.acts(
            "pack_products", &C::Training::pack_products,
            "read weights that are multiplied with the same rows and lie side by side as one matrix: those of SwiGLU's gate and "
            "up, and those of queries, keys and values. One product in forward and two in backward take the place of all"),
        training.acts("fuse_loss", &C::Training::fuse_loss, "run output projection and cross-entropy in chunks of tokens"),
        training.acts(
            "loss_chunk_tokens", &C::Training::loss_chunk_tokens,
            "largest number of tokens in a chunk of the loss on one rank. Fewer need less memory for logits; more read the "
            "projection's weights less often. 0: 512, and 4096 with runtime.kernels = \"cuda\"",
            from_to(0, kSize)),
        {"training.enable_cpu_offload", false, S::Only, "offload to the memory of the CPU"},
        {"training.gc_freq", int64_t{50}, S::Ignored, "there is no garbage collector"},
        {"training.gc_debug", false, S::Ignored, "there is no garbage collector"},
        {"training.dataloader.num_workers", int64_t{0}, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"training.dataloader.prefetch_factor", int64_t{0}, S::Ignored, "token files are memory-mapped"},

        parallelism.acts("data_parallel_replicate_degree", &C::Parallelism::data_parallel_replicate_degree,
                         "number of replicas of the model, which may itself be sharded", from_to(1, kMostRanks)),
        parallelism.acts("data_parallel_shard_degree", &C::Parallelism::data_parallel_shard_degree,
                         "data ranks over which parameters are sharded; -1: the ranks that the other degrees leave",
                         from_to(1, kMostRanks).or_value(-1)),
        parallelism.acts("tensor_parallel_degree", &C::Parallelism::tensor_parallel_degree,
                         "ranks over which heads, feed-forward and vocabulary are sharded", from_to(1, kMostRanks)),
        parallelism.acts("sequence_parallel", &C::Parallelism::sequence_parallel,
                         "shard the residual stream along the sequence over tensor-parallel ranks"),
        parallelism.acts("pipeline_parallel_degree", &C::Parallelism::pipeline_parallel_degree,
                         "pipeline ranks, over which the layers are divided. Batch sizes are then divided into microbatches of "
                         "pipeline_parallel_microbatch_size",
                         from_to(1, kMostRanks)),
        parallelism.acts("pipeline_parallel_schedule", &C::Parallelism::pipeline_parallel_schedule,
                         "order of forwards and backwards; `lockstep schedule` lists and draws the schedules",
                         one_of(schedule_names()).with_any_case()),
        parallelism.acts("pipeline_parallel_schedule_csv", &C::Parallelism::pipeline_parallel_schedule_csv,
                         "CSV file with your own schedule, in PyTorch's format; overrides the name"),
        parallelism.acts("pipeline_parallel_microbatch_size", &C::Parallelism::pipeline_parallel_microbatch_size,
                         "sequences per microbatch and data rank, with a pipeline", from_to(1, kSize)),
        parallelism.acts("pipeline_parallel_layers_per_stage", &C::Parallelism::pipeline_parallel_layers_per_stage,
                         "largest number of layers per stage; 0: one stage per rank, or two if the schedule runs several",
                         from_to(0, kSize)),
        parallelism.acts("pipeline_parallel_first_stage_less_layers", &C::Parallelism::pipeline_parallel_first_stage_less_layers,
                         "number of layers that the first stage has less, because it has the embedding; -1 in both keys: the cut "
                         "minimizes the "
                         "cost of the costliest stage",
                         from_to(0, kSize).or_value(-1)),
        parallelism.acts("pipeline_parallel_last_stage_less_layers", &C::Parallelism::pipeline_parallel_last_stage_less_layers,
                         "number of layers that the last stage has less, because it has the head; -1: as for the first stage",
                         from_to(0, kSize).or_value(-1)),
        {"parallelism.pipeline_parallel_expert_parallel_overlap", true, S::Ignored, "there are no experts"},
        parallelism.acts("module_fqns_per_model_part", &C::Parallelism::module_fqns_per_model_part,
                         "modules of each stage: [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\"]]"),
        {"parallelism.context_parallel_degree", int64_t{1}, S::Only, "context parallelism"},
        {"parallelism.context_parallel_load_balancer", std::string("headtail"), S::Ignored, "there is one context rank"},
        {"parallelism.context_parallel_rotate_method", std::string("allgather"), S::Ignored, "there is one context rank"},
        {"parallelism.expert_parallel_degree", int64_t{1}, S::Only, "experts"},
        {"parallelism.expert_tensor_parallel_degree", int64_t{1}, S::Only, "experts"},
        {"parallelism.expert_parallel_comm_backend", std::string("standard"), S::Ignored, "there are no experts"},
        parallelism.acts("fsdp_reshard_after_forward", &C::Parallelism::fsdp_reshard_after_forward,
                         "always: free gathered parameters after each use; never: keep them for the step; default: always, but "
                         "with a pipeline "
                         "keep those that one of the rank's next three stages uses"),
        {"parallelism.disable_loss_parallel", false, S::Only, "a loss over the whole vocabulary on each rank"},
        parallelism.acts("enable_async_tensor_parallel", &C::Parallelism::enable_async_tensor_parallel,
                         "cut the collectives of tensor parallelism into blocks, which travel while others are multiplied; needs "
                         "parallelism.sequence_parallel"),
        parallelism.acts("prefetch", &C::Parallelism::prefetch, "number of parameter units gathered ahead of the one in use",
                         from_to(0, 1024)),

        partition.acts(
            "preset", &C::Partition::preset,
            "ddp (or none), zero1, zero2, zero3, hsdp, mics, hpz, zeropp or three_level: over which data ranks weights, "
            "gradients and optimizer states are sharded; default: zero3 over the data_parallel_shard ranks"),
        partition.acts("weights", &C::Partition::weights,
                       "data ranks over which weights are sharded: none, package, node, shard, world or a number; overrides the "
                       "preset",
                       split()),
        partition.acts("secondary_weights", &C::Partition::secondary_weights,
                       "data ranks over which a second copy of the weights is sharded, as partition.weights. A step fetches it "
                       "once and gathers from it; fewer ranks than those of partition.weights, as those of a node; none: no copy",
                       split()),
        partition.acts("gradients", &C::Partition::gradients, "data ranks over which gradients are sharded: as partition.weights",
                       split()),
        partition.acts("optimizer", &C::Partition::optimizer,
                       "data ranks over which optimizer states are sharded: as partition.weights", split()),
        partition.acts(
            "quantized_weights", &C::Partition::quantized_weights,
            "int8: gathers and fetches of weights carry int8 with a scale for each 256 elements. Every layout computes "
            "with the weights that this leaves; norms and biases are not quantized. none: as they are; default: as the "
            "preset says"),
        partition.acts(
            "quantized_gradients", &C::Partition::quantized_gradients,
            "int8, int4: ranks exchange gradients so and add them up in float32, within a node first where a level names "
            "it. Norms and biases are not quantized. This changes the arithmetic with the number of ranks. none: as "
            "they are; default: as the preset says"),
        partition.acts("gradient_rounding", &C::Partition::gradient_rounding,
                       "how quantized gradients are rounded. nearest; stochastic: up or down at random, so that small gradients "
                       "are not lost on average; default: nearest with int8, stochastic with int4"),
        partition.acts("reduce_gradients", &C::Partition::reduce_gradients,
                       "when sharded gradients are reduced. microbatch: after each microbatch; step: once a step, which needs "
                       "whole gradients "
                       "until then; default: microbatch, with a pipeline step"),

        checkpoint.acts("enable", &C::Checkpoint::enable, "write checkpoints, and resume from the latest one"),
        checkpoint.acts("folder", &C::Checkpoint::folder, "folder of checkpoints, under job.dump_folder unless absolute"),
        checkpoint.acts("interval", &C::Checkpoint::interval, "steps between checkpoints; the last step always writes one",
                        from_to(1, kSteps)),
        checkpoint.acts("keep_latest_k", &C::Checkpoint::keep_latest_k,
                        "number of checkpoints to keep; older ones are removed. 0: keep all", from_to(0, kSteps)),
        checkpoint.acts("load_step", &C::Checkpoint::load_step, "step to resume from; -1: the latest complete checkpoint",
                        from_to(0, kSteps).or_value(-1)),
        checkpoint.acts("initial_load_path", &C::Checkpoint::initial_load_path,
                        "checkpoint, or folder of checkpoints, to start from if checkpoint.folder has none yet"),
        checkpoint.acts("initial_load_model_only", &C::Checkpoint::initial_load_model_only,
                        "take only the weights from initial_load_path, and begin at step 0"),
        checkpoint.acts(
            "initial_load_in_hf", &C::Checkpoint::initial_load_in_hf,
            "initial_load_path is a Hugging Face folder (config.json and safetensors). If it is empty, model.hf_assets_path is "
            "used"),
        {"checkpoint.initial_load_in_hf_quantized", false, S::Only, "quantized weights"},
        checkpoint.acts("last_save_model_only", &C::Checkpoint::last_save_model_only,
                        "the checkpoint after the last step has no optimizer states, so no run can continue from it; true where "
                        "a file that is torchtitan's leaves it out"),
        checkpoint.acts("last_save_in_hf", &C::Checkpoint::last_save_in_hf,
                        "the checkpoint after the last step is a Hugging Face folder of the model alone"),
        checkpoint.acts(
            "export_dtype", &C::Checkpoint::export_dtype,
            "element type of the checkpoint after the last step if it has the model alone: float32, bfloat16 or float16; empty: "
            "training.dtype",
            one_of({"", "float32", "bfloat16", "float16"})),
        checkpoint.acts("async_mode", &C::Checkpoint::async_mode,
                        "async: copy states to planned memory and write them while training goes on; async_with_pinned_mem: the "
                        "same; disabled: "
                        "training waits"),
        {"checkpoint.enable_ft_dataloader_checkpoints", true, S::Ignored, "every checkpoint records the position in the data"},
        checkpoint.acts("exclude_from_loading", &C::Checkpoint::exclude_from_loading,
                        "parts that are not loaded: optimizer, dataloader, train_state"),
        checkpoint.acts("enable_first_step_checkpoint", &C::Checkpoint::enable_first_step_checkpoint,
                        "also write a checkpoint after the first step"),
        checkpoint.acts("create_seed_checkpoint", &C::Checkpoint::create_seed_checkpoint,
                        "write the initial values as the checkpoint of step 0, and end. Not needed: initial values do not depend "
                        "on the layout"),
        checkpoint.acts("load_only", &C::Checkpoint::load_only, "load checkpoints, but write none"),

        activation_checkpoint.acts(
            "mode", &C::ActivationCheckpoint::mode,
            "what the backward computes again: none, full (each layer's forward), selective, budget, memory_budget"),
        activation_checkpoint.acts(
            "selective_ac_option", &C::ActivationCheckpoint::selective_ac_option,
            "with selective: \"n\" computes every n-th layer again; \"op\" saves attention, reductions and every second product, "
            "and computes the rest again",
            one_of({"op"}).or_form("a number of 1 or more: every n-th layer is computed again", is_count)),
        activation_checkpoint.acts("memory_budget", &C::ActivationCheckpoint::memory_budget,
                                   "with memory_budget, 0 to 1: of the activations that full recompute frees, the share that may "
                                   "be saved. Lockstep finds "
                                   "the fastest choice",
                                   from_to(0, 1)),
        activation_checkpoint.acts("budget_bytes", &C::ActivationCheckpoint::budget_bytes,
                                   "with budget: largest size of a rank's arena in bytes. Lockstep finds the fastest choice",
                                   from_to(0, kBytes)),
        {"activation_checkpoint.preserve_rng_state", true, S::Ignored, "there is no hidden random state"},
        {"activation_checkpoint.determinism_check", std::string("default"), S::Ignored, "everything is deterministic"},
        {"activation_checkpoint.early_stop", false, S::Ignored, "dead ops are dropped"},
        {"activation_checkpoint.debug", false, S::Ignored, "see `lockstep show`"},
        {"activation_checkpoint.visualize_memory_budget_pareto", false, S::Ignored, "see `lockstep check`"},
        {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", Strings{"moe.router.gate"}, S::Ignored,
         "see selective_ac_option"},

        metrics.acts("log_freq", &C::Metrics::log_freq, "steps between lines on the console and in metrics.jsonl",
                     from_to(1, kSteps)),
        metrics.acts("disable_color_printing", &C::Metrics::disable_color_printing, "no colors on a terminal"),
        metrics.acts("enable_tensorboard", &C::Metrics::enable_tensorboard, "write event files that TensorBoard reads"),
        metrics.acts("save_tb_folder", &C::Metrics::save_tb_folder,
                     "of TensorBoard's event files, under job.dump_folder unless absolute"),
        {"metrics.save_for_all_ranks", false, S::Ignored, "metrics are those of the whole job"},
        {"metrics.enable_wandb", false, S::Ignored, "metrics.jsonl can be imported anywhere"},

        validation.acts("enable", &C::Validation::enable, "measure the loss on held-out data during training"),
        {"validation.dataset", std::string("prepared"), S::Ignored, "always the held-out split of the training data"},
        validation.acts("dataset_path", &C::Validation::dataset_path,
                        "another prepared folder, or a list of them; empty: the held-out splits of training.dataset_path. Of "
                        "several the loss "
                        "is said of each, and over all their tokens"),
        validation.acts("freq", &C::Validation::freq, "steps between validations", from_to(1, kSteps)),
        validation.acts("steps", &C::Validation::steps, "batches per validation and data set; -1: the whole split once",
                        from_to(1, kSteps).or_value(-1)),
        validation.acts("local_batch_size", &C::Validation::local_batch_size, "that of training, or -1, which means the same",
                        from_to(1, kSize).or_value(-1)),
        validation.acts("seq_len", &C::Validation::seq_len, "that of training, or -1, which means the same",
                        from_to(1, kSize).or_value(-1)),
        {"validation.dataloader.num_workers", int64_t{0}, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.prefetch_factor", int64_t{0}, S::Ignored, "token files are memory-mapped"},

        debug.acts("replica_check_freq", &C::Debug::replica_check_freq,
                   "steps between comparisons of checksums among ranks that must hold the same states; 0: never",
                   from_to(0, kSteps)),
        debug.acts("device", &C::Debug::device,
                   "host, or late: the same bits on a device whose memory host code cannot read and whose queues run late and in "
                   "any legal order. Finds missing copies, waits and events; slow; ranks are threads of one process"),
        debug.acts("device_seed", &C::Debug::device_seed, "of the order in which the queues of debug.device = \"late\" run",
                   from_to(0, kSteps)),
        debug.acts("seed", &C::Debug::seed, "seed of initial values, sample order, dropout and synthetic data"),
        {"debug.deterministic", false, S::Ignored, "runs are always deterministic"},
        {"debug.deterministic_warn_only", false, S::Ignored, "runs are always deterministic"},
        {"debug.moe_force_load_balance", false, S::Ignored, "there are no experts"},
        debug.acts("synthetic_masked", &C::Debug::synthetic_masked, "share of targets without loss in synthetic data",
                   from_below(0, 1)),

        runtime.acts("threads_per_rank", &C::Runtime::threads_per_rank,
                     "threads that share the work of one rank; 0: the cores of a host, divided among its ranks. The number does "
                     "not change "
                     "the bits of a result",
                     from_to(0, 1024)),
        runtime.acts("pin_threads", &C::Runtime::pin_threads,
                     "bind each thread to a processor, so that all ranks are equally fast. Where several jobs share the "
                     "processors of a host, false is faster"),
        runtime.acts("kernels", &C::Runtime::kernels,
                     "cpu, cuda (a GPU, docs/gpu.md), or reference (plain loops in double precision)"),
        runtime.acts(
            "cuda_graph", &C::Runtime::cuda_graph,
            "with kernels = cuda: record a step once as a CUDA graph and launch that, which saves the gaps between kernels. "
            "Not with several ranks on one GPU"),
        runtime.acts("instruction_set", &C::Runtime::instruction_set,
                     "of the cpu kernels: auto (the best one of this processor), avx512, avx2 or baseline. Results of two "
                     "instruction sets "
                     "differ by rounding"),
        runtime.acts("disabled_kernels", &C::Runtime::disabled_kernels,
                     "ops that run as their parts, separated by commas (qkv_rope,swiglu). Helps to find a wrong kernel, or what "
                     "one gains"),
        runtime.acts("debug_fill", &C::Runtime::debug_fill, "fill freed memory with NaN"),
        runtime.acts("comm_thread", &C::Runtime::comm_thread,
                     "on: gathers and reductions of parameters run on a thread beside each rank; off: on the rank's own thread; "
                     "auto: on if "
                     "there are more cores than ranks need"),

        runtime.acts("local_link_bytes_per_s", &C::Runtime::local_link_bytes_per_s,
                     "for experiments: collectives between threads take as long as rings over links of this rate; 0: no limit",
                     from_to(0, 1e15)),
        runtime.acts("local_link_latency_s", &C::Runtime::local_link_latency_s,
                     "for experiments: seconds that each step of such a ring takes", from_to(0, 60)),

        cluster.acts("ranks", &C::Cluster::ranks, "ranks of the job; 0: the product of the degrees", from_to(0, kMostRanks)),
        cluster.acts(
            "ranks_per_host", &C::Cluster::ranks_per_host,
            "ranks per host when planning for hosts that are not present. The program then sums in two levels, within a host and "
            "between hosts. 0: from cluster.file",
            from_to(0, kMostRanks)),
        cluster.acts("ranks_per_process", &C::Cluster::ranks_per_process, "ranks per process, with cluster.ranks_per_host",
                     from_to(1, kMostRanks)),
        cluster.acts("ranks_per_package", &C::Cluster::ranks_per_package,
                     "ranks on one package, as the two halves of an MI250X, for partition.* = package. 0: from the links of "
                     "cluster.file",
                     from_to(0, kMostRanks)),
        cluster.acts("ranks_per_node", &C::Cluster::ranks_per_node,
                     "ranks on one node, for partition.* = node. 0: those on a host of the job, or of cluster.file; one host has "
                     "all ranks",
                     from_to(0, kMostRanks)),
        cluster.acts(
            "file", &C::Cluster::file,
            "cluster file (clusters/*.toml, or of `lockstep bench`): `check`, `plan` and `show` compile for that machine's "
            "kernels and "
            "threads. Its measured rows decide between kernels and price recompute. A path that does not exist begins in the "
            "recipe's folder. Empty: this machine, fixed rules"),
        cluster.acts(
            "stack", &C::Cluster::stack,
            "the software that runs there, where `plan` shall estimate another one than Lockstep (clusters/stacks/*.toml): "
            "its kernels, launches, overlap and memory. A path is found as that of cluster.file. Empty: Lockstep"),
        cluster.acts("memory_gib_per_rank", &C::Cluster::memory_gib_per_rank,
                     "memory that a rank may use, in place of all that the machine has for it; 0: all. More than the device of a "
                     "cluster file has is refused",
                     from_to(0, kBytes / kGib)),
        cluster.acts("reserve_gib_per_rank", &C::Cluster::reserve_gib_per_rank,
                     "memory of a rank outside the arena (libraries, drivers)", from_to(0, kBytes / kGib)),

        {"comm.init_timeout_seconds", int64_t{300}, S::Ignored, "the launcher waits for processes that do not start"},
        comm.acts(
            "reductions", &C::Comm::reductions,
            "sums over GPUs of several processes. exact: in the order of ranks, as on every transport. nccl: by NCCL, whose "
            "order depends on the links and on its version. Ranks of one process and on processors are always exact"),
        comm.acts("train_timeout_seconds", &C::Comm::train_timeout_seconds,
                  "seconds without progress before the job is stopped and each rank writes a flight record. A silent process is "
                  "declared "
                  "dead after 75 % of it. 0: never",
                  from_to(0, 1e9)),
        comm.acts("trace_buf_size", &C::Comm::trace_buf_size, "number of ops that a flight record holds, per stream of a rank",
                  from_to(1, 1e6)),
        comm.acts("save_traces_folder", &C::Comm::save_traces_folder,
                  "folder of flight records, under job.dump_folder unless absolute"),
        comm.acts("save_traces_file_prefix", &C::Comm::save_traces_file_prefix,
                  "beginning of a flight record's file name; the rank's number follows"),
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
        fault_tolerance.acts("enable", &C::FaultTolerance::enable,
                             "train islands: copies of the model that meet every sync_steps steps, as semi_sync_method says"),
        fault_tolerance.acts("semi_sync_method", &C::FaultTolerance::semi_sync_method,
                             "how islands meet. diloco: an outer optimizer takes a step along the mean of what they have "
                             "changed; local_sgd: they take the mean of their weights"),
        fault_tolerance.acts("group_size", &C::FaultTolerance::group_size,
                             "number of islands; each has the ranks that the degrees of [parallelism] make",
                             from_to(0, kMostRanks)),
        fault_tolerance.acts("sync_steps", &C::FaultTolerance::sync_steps, "steps from one meeting to the next",
                             from_to(1, kSteps)),
        fault_tolerance.acts("num_fragments", &C::FaultTolerance::num_fragments,
                             "parts of the model, each of which meets every sync_steps steps, one after the other",
                             from_to(1, 4096)),
        fault_tolerance.acts("should_quantize", &C::FaultTolerance::should_quantize,
                             "what islands have changed crosses them as int8; norms and biases as they are"),
        fault_tolerance.acts("fragment_update_alpha", &C::FaultTolerance::fragment_update_alpha,
                             "share of its own weights that an island keeps when it meets the others", from_to(0, 1)),
        fault_tolerance.acts("outer_lr", &C::FaultTolerance::outer_lr, "learning rate of diloco's outer optimizer",
                             from_to(0, 1e6)),
        fault_tolerance.acts("outer_momentum", &C::FaultTolerance::outer_momentum,
                             "Nesterov's momentum of diloco's outer optimizer", from_to(0, 0.999999999)),
        {"fault_tolerance.fragment_sync_delay", int64_t{0}, S::Only, "meetings that end while later steps run"},
        {"fault_tolerance.module_fqns_per_model_fragment", Strings{}, S::Only, "fragments by the names of modules"},
        {"fault_tolerance.process_group", std::string("gloo"), S::Ignored, "islands meet over the links of the job"},
        {"fault_tolerance.process_group_timeout_ms", int64_t{10000}, S::Ignored,
         "comm.train_timeout_seconds holds for meetings too"},
        fault_tolerance.acts("replica_id", &C::FaultTolerance::replica_id,
                             "which of the islands this job is, as `lockstep launch` sets it; -1: all are in one job",
                             from_to(-1, kMostRanks)),
        {"fault_tolerance.min_replica_size", int64_t{1}, S::Ignored, "islands that are there meet"},
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
        {"checkpoint.last_save_model_only",
         "true; here a run can go on from its last checkpoint, unless its file is torchtitan's"},
        {"fault_tolerance.replica_id", "0; here all islands are in one job until `lockstep launch` numbers them"},
        {"debug.seed", "None, which draws a seed; here a run is the same each time"},
    };
    for (const auto& [name, why] : differences) {
        if (name == key) return why;
    }
    return "";
}

}  // namespace lockstep::compile
