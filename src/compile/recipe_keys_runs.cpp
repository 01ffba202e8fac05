// Rows of the table of recipe keys: checkpoint and all that follows it.
#include "compile/key_field.h"
#include "compile/limits.h"

namespace lockstep::compile {
std::span<const KeyRow> keys_of_runs() {
    using C = Config;
    using S = KeyStatus;
    constexpr int64_t gib = 1 << 30;
    using Strings = std::vector<std::string>;
    constexpr auto no_strings = [](const C&) -> Value { return Strings{}; };
    static constexpr KeyRow rows[] = {
        acts<&C::checkpoint, &C::Checkpoint::enable>("checkpoint.enable", "write checkpoints, and resume from the latest one"),
        acts<&C::checkpoint, &C::Checkpoint::folder>("checkpoint.folder",
                                                     "folder of checkpoints, under job.dump_folder unless absolute"),
        acts<&C::checkpoint, &C::Checkpoint::interval>(
            "checkpoint.interval", "steps between checkpoints; the last step always writes one", from_to(1, kSteps)),
        acts<&C::checkpoint, &C::Checkpoint::keep_latest_k>(
            "checkpoint.keep_latest_k", "number of checkpoints to keep; older ones are removed. 0: keep all", from_to(0, kSteps)),
        acts<&C::checkpoint, &C::Checkpoint::load_step>(
            "checkpoint.load_step", "step to resume from; -1: the latest complete checkpoint", from_to(0, kSteps).or_value(-1)),
        acts<&C::checkpoint, &C::Checkpoint::initial_load_path>(
            "checkpoint.initial_load_path",
            "checkpoint, or folder of checkpoints, to start from if checkpoint.folder has none yet"),
        acts<&C::checkpoint, &C::Checkpoint::initial_load_model_only>(
            "checkpoint.initial_load_model_only", "take only the weights from initial_load_path, and begin at step 0"),
        acts<&C::checkpoint, &C::Checkpoint::initial_load_in_hf>(
            "checkpoint.initial_load_in_hf",
            "initial_load_path is a Hugging Face folder (config.json and safetensors). If it is empty, model.hf_assets_path "
            "is used"),
        {"checkpoint.initial_load_in_hf_quantized", false, S::Only, "quantized weights"},
        acts<&C::checkpoint, &C::Checkpoint::last_save_model_only>(
            "checkpoint.last_save_model_only",
            "the checkpoint after the last step has no optimizer states, so no run can continue from it; true where a file "
            "that is torchtitan's leaves it out"),
        acts<&C::checkpoint, &C::Checkpoint::last_save_in_hf>(
            "checkpoint.last_save_in_hf", "the checkpoint after the last step is a Hugging Face folder with only the model"),
        acts<&C::checkpoint, &C::Checkpoint::export_dtype>(
            "checkpoint.export_dtype",
            "element type of the checkpoint after the last step if it has only the model: float32, bfloat16 or float16; "
            "empty: training.dtype",
            one_of({"", "float32", "bfloat16", "float16"})),
        acts<&C::checkpoint, &C::Checkpoint::async_mode>(
            "checkpoint.async_mode",
            "async: copy states to planned memory and write them while training goes on; async_with_pinned_mem: the same; "
            "disabled: training waits")
            .of_step(kOthers),
        {"checkpoint.enable_ft_dataloader_checkpoints", true, S::Ignored, "every checkpoint records the position in the data"},
        acts<&C::checkpoint, &C::Checkpoint::exclude_from_loading>(
            "checkpoint.exclude_from_loading", "parts that are not loaded: optimizer, dataloader, train_state"),
        acts<&C::checkpoint, &C::Checkpoint::enable_first_step_checkpoint>("checkpoint.enable_first_step_checkpoint",
                                                                           "also write a checkpoint after the first step"),
        acts<&C::checkpoint, &C::Checkpoint::create_seed_checkpoint>(
            "checkpoint.create_seed_checkpoint",
            "write the initial values as the checkpoint of step 0, and end. Not needed: initial values do not depend on the "
            "layout"),
        acts<&C::checkpoint, &C::Checkpoint::load_only>("checkpoint.load_only", "load checkpoints, but write none"),

        acts<&C::activation_checkpoint, &C::ActivationCheckpoint::mode>(
            "activation_checkpoint.mode",
            "what the backward computes again: none, full (each layer's forward), selective, budget, memory_budget")
            .of_step(kOthers),
        acts<&C::activation_checkpoint, &C::ActivationCheckpoint::selective_ac_option>(
            "activation_checkpoint.selective_ac_option",
            "with selective: \"n\" computes every n-th layer again; \"op\" saves attention, reductions and every second "
            "product, and computes the rest again",
            one_of({"op"}).or_form("a number of 1 or more: every n-th layer is computed again", is_count))
            .of_step(kOthers),
        acts<&C::activation_checkpoint, &C::ActivationCheckpoint::memory_budget>(
            "activation_checkpoint.memory_budget",
            "with memory_budget, 0 to 1: of the activations that full recompute frees, the share that may be saved. Lockstep "
            "finds the fastest choice",
            from_to(0, 1))
            .of_step(to(0.75)),
        acts<&C::activation_checkpoint, &C::ActivationCheckpoint::budget_bytes>(
            "activation_checkpoint.budget_bytes",
            "with budget: largest size of a rank's arena in bytes. Lockstep finds the fastest choice", from_to(0, kBytes)),
        {"activation_checkpoint.preserve_rng_state", true, S::Ignored, "there is no hidden random state"},
        {"activation_checkpoint.determinism_check", "default", S::Ignored, "everything is deterministic"},
        {"activation_checkpoint.early_stop", false, S::Ignored, "dead ops are dropped"},
        {"activation_checkpoint.debug", false, S::Ignored, "see `lockstep show`"},
        {"activation_checkpoint.visualize_memory_budget_pareto", false, S::Ignored, "see `lockstep check`"},
        {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
         [](const C&) -> Value { return Strings{"moe.router.gate"}; }, S::Ignored, "see selective_ac_option"},

        acts<&C::metrics, &C::Metrics::log_freq>("metrics.log_freq", "steps between lines on the console and in metrics.jsonl",
                                                 from_to(1, kSteps)),
        acts<&C::metrics, &C::Metrics::log_float8>(
            "metrics.log_float8",
            "with a converter: count each metrics.log_freq steps what casts to float8 lose, for `lockstep report`"),
        acts<&C::metrics, &C::Metrics::disable_color_printing>("metrics.disable_color_printing", "no colors on a terminal"),
        acts<&C::metrics, &C::Metrics::enable_tensorboard>("metrics.enable_tensorboard",
                                                           "write event files that TensorBoard reads"),
        acts<&C::metrics, &C::Metrics::save_tb_folder>("metrics.save_tb_folder",
                                                       "of TensorBoard's event files, under job.dump_folder unless absolute"),
        {"metrics.save_for_all_ranks", false, S::Ignored, "metrics are those of the whole job"},
        {"metrics.enable_wandb", false, S::Ignored, "metrics.jsonl can be imported anywhere"},

        acts<&C::validation, &C::Validation::enable>("validation.enable", "measure the loss on held-out data during training")
            .of_step(kOthers),
        {"validation.dataset", "prepared", S::Ignored, "always the held-out split of the training data"},
        acts<&C::validation, &C::Validation::dataset_path>(
            "validation.dataset_path",
            "another prepared folder, or a list of them; empty: the held-out splits of training.dataset_path. Of several the "
            "loss is said of each, and over all their tokens"),
        acts<&C::validation, &C::Validation::freq>("validation.freq", "steps between validations", from_to(1, kSteps)),
        acts<&C::validation, &C::Validation::steps>(
            "validation.steps", "batches per validation and data set; -1: the whole split once", from_to(1, kSteps).or_value(-1)),
        acts<&C::validation, &C::Validation::local_batch_size>(
            "validation.local_batch_size", "that of training, or -1, which means the same", from_to(1, kSize).or_value(-1)),
        acts<&C::validation, &C::Validation::seq_len>("validation.seq_len", "that of training, or -1, which means the same",
                                                      from_to(1, kSize).or_value(-1)),
        {"validation.dataloader.num_workers", 0, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.persistent_workers", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.pin_memory", false, S::Ignored, "token files are memory-mapped"},
        {"validation.dataloader.prefetch_factor", 0, S::Ignored, "token files are memory-mapped"},

        acts<&C::debug, &C::Debug::replica_check_freq>(
            "debug.replica_check_freq",
            "steps between comparisons of checksums among ranks that must hold the same states; 0: never", from_to(0, kSteps)),
        acts<&C::debug, &C::Debug::device>(
            "debug.device",
            "host, or late: the same bits on a device whose memory host code cannot read and whose queues run late and in any "
            "legal order. Finds missing copies, waits and events; slow; ranks are threads of one process"),
        acts<&C::debug, &C::Debug::device_seed>(
            "debug.device_seed", "of the order in which the queues of debug.device = \"late\" run", from_to(0, kSteps)),
        acts<&C::debug, &C::Debug::seed>("debug.seed", "seed of initial values, sample order, dropout and synthetic data"),
        {"debug.deterministic", false, S::Ignored, "runs are deterministic unless runtime.deterministic = false"},
        {"debug.deterministic_warn_only", false, S::Ignored, "runs are deterministic unless runtime.deterministic = false"},
        {"debug.moe_force_load_balance", false, S::Ignored, "there are no experts"},
        acts<&C::debug, &C::Debug::synthetic_masked>("debug.synthetic_masked", "share of targets without loss in synthetic data",
                                                     from_below(0, 1)),

        acts<&C::runtime, &C::Runtime::threads_per_rank>(
            "runtime.threads_per_rank",
            "threads that share the work of one rank; 0: the cores of a host, divided among its ranks. The number does not "
            "change the bits of a result",
            from_to(0, 1024))
            .of_step(to(1)),
        acts<&C::runtime, &C::Runtime::pin_threads>(
            "runtime.pin_threads",
            "bind each thread to a processor, so that all ranks are equally fast. Where several jobs share the processors of "
            "a host, false is faster"),
        acts<&C::runtime, &C::Runtime::kernels>("runtime.kernels",
                                                "cpu, cuda (a GPU, docs/gpu.md), or reference (plain loops in double precision)")
            .of_step(kOthers),
        acts<&C::runtime, &C::Runtime::cuda_graph>(
            "runtime.cuda_graph",
            "with kernels = cuda: record a step once as a CUDA graph and launch that, which saves the gaps between kernels. "
            "auto: where a step has so few FLOPs that the gaps count. Not with several ranks on one GPU")
            .of_step(kOthers),
        acts<&C::runtime, &C::Runtime::deterministic>(
            "runtime.deterministic",
            "with kernels = cuda: false lets cuDNN add up attention's gradients in any order, which is faster. The bits of two "
            "runs then differ")
            .of_step(kOthers),
        acts<&C::runtime, &C::Runtime::instruction_set>(
            "runtime.instruction_set",
            "of the cpu kernels: auto (the best one of this processor), avx512, avx2 or baseline. Results of two instruction "
            "sets differ by rounding")
            .of_step(kOthers),
        acts<&C::runtime, &C::Runtime::disabled_kernels>(
            "runtime.disabled_kernels",
            "ops that run as their parts, separated by commas (qkv_rope,swiglu). Helps to find a wrong kernel, or what one gains"),
        acts<&C::runtime, &C::Runtime::products>(
            "runtime.products",
            "with kernels = cuda, and for plans of its GPUs: a file of `lockstep bench --products`, whose algorithms of cuBLASLt "
            "run the products that it lists, on the device and with the version of cuBLASLt that it names. The choice is part "
            "of the program. A path that does not exist begins in the recipe's folder"),
        acts<&C::runtime, &C::Runtime::debug_fill>("runtime.debug_fill", "fill freed memory with NaN"),
        acts<&C::runtime, &C::Runtime::comm_thread>(
            "runtime.comm_thread",
            "on: gathers and reductions of parameters run on a second thread of each rank; off: on the rank's own thread; auto: "
            "on if there are more cores than ranks need")
            .of_step(kOthers),

        acts<&C::runtime, &C::Runtime::local_link_bytes_per_s>(
            "runtime.local_link_bytes_per_s",
            "for experiments: collectives between threads take as long as rings over links of this rate; 0: no limit",
            from_to(0, 1e15)),
        acts<&C::runtime, &C::Runtime::local_link_latency_s>(
            "runtime.local_link_latency_s", "for experiments: seconds that each step of such a ring takes", from_to(0, 60)),

        acts<&C::cluster, &C::Cluster::ranks>("cluster.ranks", "ranks of the job; 0: the product of the degrees",
                                              from_to(0, kMostRanks)),
        acts<&C::cluster, &C::Cluster::ranks_per_host>(
            "cluster.ranks_per_host",
            "ranks per host when planning for hosts that are not present. The program then sums in two levels, within a host "
            "and between hosts. 0: from cluster.file",
            from_to(0, kMostRanks)),
        acts<&C::cluster, &C::Cluster::ranks_per_process>(
            "cluster.ranks_per_process", "ranks per process, with cluster.ranks_per_host", from_to(1, kMostRanks)),
        acts<&C::cluster, &C::Cluster::ranks_per_package>(
            "cluster.ranks_per_package",
            "ranks on one package, as the two halves of an MI250X, for partition.* = package. 0: from the links of cluster.file",
            from_to(0, kMostRanks)),
        acts<&C::cluster, &C::Cluster::ranks_per_node>(
            "cluster.ranks_per_node",
            "ranks on one node, for partition.* = node. 0: those on a host of the job, or of cluster.file; one host has all ranks",
            from_to(0, kMostRanks)),
        acts<&C::cluster, &C::Cluster::file>(
            "cluster.file",
            "cluster file (clusters/*.toml, or of `lockstep bench`): `check`, `plan` and `show` compile for that machine's "
            "kernels and threads. Its measured rows decide between kernels and price recompute. A path that does not exist "
            "begins in the recipe's folder. Empty: this machine, fixed rules"),
        acts<&C::cluster, &C::Cluster::stack>(
            "cluster.stack",
            "the software that runs there, where `plan` shall estimate another one than Lockstep (clusters/stacks/*.toml): "
            "its kernels, launches, overlap and memory. A path is found as that of cluster.file. Empty: Lockstep"),
        acts<&C::cluster, &C::Cluster::memory_gib_per_rank>(
            "cluster.memory_gib_per_rank",
            "memory that a rank may use, in place of all that the machine has for it; 0: all. More than the device of a "
            "cluster file has is refused",
            from_to(0, kBytes / gib)),
        acts<&C::cluster, &C::Cluster::reserve_gib_per_rank>(
            "cluster.reserve_gib_per_rank", "memory of a rank outside the arena (libraries, drivers)", from_to(0, kBytes / gib)),

        {"comm.init_timeout_seconds", 300, S::Ignored, "the launcher waits for processes that do not start"},
        acts<&C::comm, &C::Comm::reductions>(
            "comm.reductions",
            "sums over GPUs of several processes. exact: in the order of ranks, as on every transport. nccl: by NCCL, whose "
            "order depends on the links and on its version. Ranks of one process and on processors are always exact")
            .of_step(kOthers),
        acts<&C::comm, &C::Comm::transport>(
            "comm.transport",
            "what carries collectives between GPUs of a host that have a process each. auto: they write to each other's memory by "
            "copy engines, which take no processors, where all GPUs of the job can; else NCCL. nccl: NCCL. Between hosts it is "
            "NCCL. The bits are the same")
            .of_step(kOthers),
        acts<&C::comm, &C::Comm::train_timeout_seconds>(
            "comm.train_timeout_seconds",
            "seconds without progress before the job is stopped and each rank writes a flight record. A silent process is "
            "declared dead after 75 % of it. 0: never",
            from_to(0, 1e9)),
        acts<&C::comm, &C::Comm::trace_buf_size>(
            "comm.trace_buf_size", "number of ops that a flight record holds, per stream of a rank", from_to(1, 1e6)),
        acts<&C::comm, &C::Comm::save_traces_folder>("comm.save_traces_folder",
                                                     "folder of flight records, under job.dump_folder unless absolute"),
        acts<&C::comm, &C::Comm::save_traces_file_prefix>("comm.save_traces_file_prefix",
                                                          "beginning of a flight record's file name; the rank's number follows"),
        {"comm.mode", "default", S::Ignored, "`lockstep check` needs no devices"},
        {"compile.enable", false, S::Ignored, "the whole step is always compiled"},
        {"compile.components", [](const C&) -> Value { return Strings{"model", "loss"}; }, S::Ignored,
         "the whole step is always compiled"},
        {"compile.backend", "inductor", S::Ignored, "the whole step is always compiled"},
        {"profiling.enable_profiling", false, S::Ignored, "`lockstep train --trace FILE` records a step's timeline"},
        {"profiling.save_traces_folder", "profile_traces", S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profile_freq", 10, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profiler_active", 1, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.profiler_warmup", 3, S::Ignored, "see `lockstep train --trace`"},
        {"profiling.enable_memory_snapshot", false, S::Ignored, "memory is known before the run: `lockstep check`"},
        {"profiling.save_memory_snapshot_folder", "memory_snapshot", S::Ignored,
         "memory is known before the run: `lockstep check`"},
        {"memory_estimation.enable", false, S::Ignored, "`lockstep check` is exact"},
        {"memory_estimation.disable_fake_mode", false, S::Ignored, "`lockstep check` is exact"},
        acts<&C::linear_float8, &C::LinearFloat8::enable_fsdp_float8_all_gather>(
            "quantize.linear.float8.enable_fsdp_float8_all_gather",
            "with the converter float8: weights that are split over data ranks cross them in 1 byte an element. With recipe_name tensorwise alone"),
        {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", false, S::Ignored,
         "scales of weights are made once a step in any case"},
        acts<&C::linear_float8, &C::LinearFloat8::recipe_name>(
            "quantize.linear.float8.recipe_name",
            "with the converter float8: which elements share a scale. tensorwise: all of a tensor on a rank; rowwise: those of a row; rowwise_with_gw_hp: the "
            "same, with gradients of weights as without float8; blockwise: 1 x 128 of activations, 128 x 128 of weights. Empty: "
            "tensorwise"),
        acts<&C::linear_float8, &C::LinearFloat8::filter_fqns>(
            "quantize.linear.float8.filter_fqns",
            "with the converter float8: parts of names of linear layers that stay as they are. A name is layers.0.attention.wq (wk, wv, wo) or "
            "layers.0.feed_forward.w1 (w2, w3). output never converts, nor does a matrix with a side that is no multiple of 16. "
            "auto_filter_small_kn: products that are too small to gain stay, too"),
        acts<&C::linear_float8, &C::LinearFloat8::emulate>(
            "quantize.linear.float8.emulate",
            "with the converter float8: GPUs multiply in wider types even where they have float8; without it, only where they have none"),
        {"quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", "triton", S::Ignored, "kernels are Lockstep's own"},
        acts<&C::linear_mx, &C::LinearMx::recipe_name>(
            "quantize.linear.mx.recipe_name",
            "with the converter mx: blocks of 32 elements share a scale that is a power of two. mxfp8_cublas and mxfp8_emulated: by the exponent of the "
            "largest element, which clips a few; mxfp8_cublas_rceil: the least scale that clips none"),
        acts<&C::linear_mx, &C::LinearMx::filter_fqns>(
            "quantize.linear.mx.filter_fqns",
            "with the converter mx: parts of names of linear layers that stay as they are, as in quantize.linear.float8.filter_fqns"),
        acts<&C::quantize, &C::Quantize::scale_sequences>(
            "quantize.scale_sequences",
            "with a converter: sequences of a microbatch that share the scales of a tensor of activations. It divides those of a data rank. 0: "
            "all of a data rank",
            from_to(0, kSize)),
        acts<&C::quantize, &C::Quantize::scale_context_blocks>(
            "quantize.scale_context_blocks",
            "with a converter: parts of a sequence with scales of their own: 1, parallelism.context_parallel_degree, or a multiple of the ranks "
            "that divide a sequence. 0: parallelism.context_parallel_degree",
            from_to(0, kSize)),
        {"quantize.grouped_mm.float8.fqns", no_strings, S::Ignored, "there are no experts"},
        {"quantize.grouped_mm.mx.recipe_name", "mxfp8", S::Ignored, "there are no experts"},
        {"quantize.grouped_mm.mx.fqns", no_strings, S::Ignored, "there are no experts"},
        acts<&C::fault_tolerance, &C::FaultTolerance::enable>(
            "fault_tolerance.enable",
            "train islands: copies of the model that meet every sync_steps steps, as semi_sync_method says"),
        acts<&C::fault_tolerance, &C::FaultTolerance::semi_sync_method>(
            "fault_tolerance.semi_sync_method",
            "how islands meet. diloco: an outer optimizer takes a step along the mean of what they have changed; local_sgd: "
            "they take the mean of their weights")
            .of_step(kOthers),
        acts<&C::fault_tolerance, &C::FaultTolerance::group_size>(
            "fault_tolerance.group_size", "number of islands; each has the ranks that the degrees of [parallelism] make",
            from_to(0, kMostRanks)),
        acts<&C::fault_tolerance, &C::FaultTolerance::sync_steps>("fault_tolerance.sync_steps",
                                                                  "steps from one meeting to the next", from_to(1, kSteps))
            .of_step(kTwice),
        acts<&C::fault_tolerance, &C::FaultTolerance::num_fragments>(
            "fault_tolerance.num_fragments",
            "parts of the model, each of which meets every sync_steps steps, one after the other", from_to(1, 4096))
            .of_step(kTwice),
        acts<&C::fault_tolerance, &C::FaultTolerance::should_quantize>(
            "fault_tolerance.should_quantize", "what islands have changed crosses them as int8; norms and biases as they are")
            .of_step(kOthers),
        acts<&C::fault_tolerance, &C::FaultTolerance::fragment_update_alpha>(
            "fault_tolerance.fragment_update_alpha", "share of its own weights that an island keeps when it meets the others",
            from_to(0, 1)),
        acts<&C::fault_tolerance, &C::FaultTolerance::outer_lr>("fault_tolerance.outer_lr",
                                                                "learning rate of diloco's outer optimizer", from_to(0, 1e6)),
        acts<&C::fault_tolerance, &C::FaultTolerance::outer_momentum>(
            "fault_tolerance.outer_momentum", "Nesterov's momentum of diloco's outer optimizer", from_to(0, 0.999999999)),
        {"fault_tolerance.fragment_sync_delay", 0, S::Only, "meetings that end while later steps run"},
        {"fault_tolerance.module_fqns_per_model_fragment", no_strings, S::Only, "fragments by the names of modules"},
        {"fault_tolerance.process_group", "gloo", S::Ignored, "islands meet over the links of the job"},
        {"fault_tolerance.process_group_timeout_ms", 10000, S::Ignored, "comm.train_timeout_seconds holds for meetings too"},
        acts<&C::fault_tolerance, &C::FaultTolerance::replica_id>(
            "fault_tolerance.replica_id",
            "which of the islands this job is, as `lockstep launch` sets it; -1: all are in one job", from_to(-1, kMostRanks)),
        {"fault_tolerance.min_replica_size", 1, S::Ignored, "islands that are there meet"},
        {"experimental.custom_import", "", S::Ignored, "there are no Python modules"},
        {"experimental.custom_args_module", "", S::Ignored, "there are no Python modules"},
    };
    return rows;
}

}  // namespace lockstep::compile
