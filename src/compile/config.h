// What a recipe asks for, as typed values: one struct a section, one field a key that acts. It is made once, by config_of();
// everything behind it reads fields, never keys by name or words. A field has the key's name, its type and its default; the
// table of keys (recipe_keys_*.cpp) has a row for each, with its meaning and its range, and puts the recipe's value into the
// field. A word is an enum. Its words are next to it, and nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compile/origin.h"
#include "ir/program.h"
#include "passes/float8_products.h"
#include "passes/optimizer.h"

namespace lockstep::compile {

class Recipe;

template <class Enum>
using Word = std::pair<std::string_view, Enum>;

// Enums that have words: words_of(E) next to the enum.
template <class T>
concept HasWords = requires(T t) {
    words_of(t);
};

template <HasWords E>
std::string word_of(E e) {
    for (const auto& [word, value] : words_of(E{})) {
        if (value == e) return std::string(word);
    }
    return "";
}
// "float32", as torch calls it.
std::string word_of(Dtype type);

enum class DecayType { Linear, Sqrt, Cosine };
constexpr auto words_of(DecayType) {
    using enum DecayType;
    return std::to_array<Word<DecayType>>({{"linear", Linear}, {"sqrt", Sqrt}, {"cosine", Cosine}});
}

enum class MuonAdjustLr { MatchRmsAdamW, Original };
constexpr auto words_of(MuonAdjustLr) {
    using enum MuonAdjustLr;
    return std::to_array<Word<MuonAdjustLr>>({{"match_rms_adamw", MatchRmsAdamW}, {"original", Original}});
}

// The update is one kernel in any case. The last: with moments in bfloat16.
enum class OptimizerImplementation { Fused, ForLoop, Foreach, FusedOptStatesBf16 };
constexpr auto words_of(OptimizerImplementation) {
    using enum OptimizerImplementation;
    return std::to_array<Word<OptimizerImplementation>>(
        {{"fused", Fused}, {"for-loop", ForLoop}, {"foreach", Foreach}, {"fused_opt_states_bf16", FusedOptStatesBf16}});
}

// parallelism.context_parallel_load_balancer.
enum class LoadBalancer { HeadTail, None };
constexpr auto words_of(LoadBalancer) {
    using enum LoadBalancer;
    return std::to_array<Word<LoadBalancer>>({{"headtail", HeadTail}, {"none", None}});
}

// parallelism.context_parallel_rotate_method.
enum class RotateMethod { Allgather, Alltoall, Ulysses };
constexpr auto words_of(RotateMethod) {
    using enum RotateMethod;
    return std::to_array<Word<RotateMethod>>({{"allgather", Allgather}, {"alltoall", Alltoall}, {"ulysses", Ulysses}});
}

enum class ReshardAfterForward { Default, Always, Never };
constexpr auto words_of(ReshardAfterForward) {
    using enum ReshardAfterForward;
    return std::to_array<Word<ReshardAfterForward>>({{"default", Default}, {"always", Always}, {"never", Never}});
}

enum class PartitionPreset { Default, None, Ddp, Zero1, Zero2, Zero3, Hsdp, Mics, Hpz, ZeroPp, ThreeLevel };
constexpr auto words_of(PartitionPreset) {
    using enum PartitionPreset;
    return std::to_array<Word<PartitionPreset>>({{"default", Default},
                                                 {"none", None},
                                                 {"ddp", Ddp},
                                                 {"zero1", Zero1},
                                                 {"zero2", Zero2},
                                                 {"zero3", Zero3},
                                                 {"hsdp", Hsdp},
                                                 {"mics", Mics},
                                                 {"hpz", Hpz},
                                                 {"zeropp", ZeroPp},
                                                 {"three_level", ThreeLevel}});
}

enum class Quantized { Default, None, Int8, Int4 };
constexpr auto words_of(Quantized) {
    using enum Quantized;
    return std::to_array<Word<Quantized>>({{"default", Default}, {"none", None}, {"int8", Int8}, {"int4", Int4}});
}

enum class Rounding { Default, Nearest, Stochastic };
constexpr auto words_of(Rounding) {
    using enum Rounding;
    return std::to_array<Word<Rounding>>({{"default", Default}, {"nearest", Nearest}, {"stochastic", Stochastic}});
}

enum class ReduceWhen { Default, Microbatch, Step };
constexpr auto words_of(ReduceWhen) {
    using enum ReduceWhen;
    return std::to_array<Word<ReduceWhen>>({{"default", Default}, {"microbatch", Microbatch}, {"step", Step}});
}

enum class SemiSyncMethod { None, DiLoCo, LocalSgd };
constexpr auto words_of(SemiSyncMethod) {
    using enum SemiSyncMethod;
    return std::to_array<Word<SemiSyncMethod>>({{"", None}, {"diloco", DiLoCo}, {"local_sgd", LocalSgd}});
}

enum class AsyncMode { Disabled, Async, AsyncWithPinnedMemory };
constexpr auto words_of(AsyncMode) {
    using enum AsyncMode;
    return std::to_array<Word<AsyncMode>>(
        {{"disabled", Disabled}, {"async", Async}, {"async_with_pinned_mem", AsyncWithPinnedMemory}});
}

enum class LoadPart { Optimizer, Dataloader, TrainState };
constexpr auto words_of(LoadPart) {
    using enum LoadPart;
    return std::to_array<Word<LoadPart>>({{"optimizer", Optimizer}, {"dataloader", Dataloader}, {"train_state", TrainState}});
}

enum class RecomputeMode { None, Full, Selective, Budget, MemoryBudget };
constexpr auto words_of(RecomputeMode) {
    using enum RecomputeMode;
    return std::to_array<Word<RecomputeMode>>(
        {{"none", None}, {"full", Full}, {"selective", Selective}, {"budget", Budget}, {"memory_budget", MemoryBudget}});
}

enum class Kernels { Cpu, Cuda, Reference };
constexpr auto words_of(Kernels) {
    using enum Kernels;
    return std::to_array<Word<Kernels>>({{"cpu", Cpu}, {"cuda", Cuda}, {"reference", Reference}});
}

// comm.reductions. Exact: in ascending ranks. Nccl: as NCCL adds.
enum class Reductions { Exact, Nccl };
constexpr auto words_of(Reductions) {
    using enum Reductions;
    return std::to_array<Word<Reductions>>({{"exact", Exact}, {"nccl", Nccl}});
}

// comm.transport. Auto: GPUs of a host write to each other's memory, where they can.
enum class CommTransport { Auto, Nccl };
constexpr auto words_of(CommTransport) {
    using enum CommTransport;
    return std::to_array<Word<CommTransport>>({{"auto", Auto}, {"nccl", Nccl}});
}

enum class InstructionSet { Auto, Avx512, Avx2, Baseline };
constexpr auto words_of(InstructionSet) {
    using enum InstructionSet;
    return std::to_array<Word<InstructionSet>>({{"auto", Auto}, {"avx512", Avx512}, {"avx2", Avx2}, {"baseline", Baseline}});
}

enum class DeviceKind { Host, Late };
constexpr auto words_of(DeviceKind) {
    using enum DeviceKind;
    return std::to_array<Word<DeviceKind>>({{"host", Host}, {"late", Late}});
}

// runtime.cuda_graph.
enum class CudaGraph { Auto, True, False };
constexpr auto words_of(CudaGraph) {
    using enum CudaGraph;
    return std::to_array<Word<CudaGraph>>({{"auto", Auto}, {"true", True}, {"false", False}});
}

// training.mixed_precision_weights.
enum class NarrowWeights { Auto, Kept, Cast };
constexpr auto words_of(NarrowWeights) {
    using enum NarrowWeights;
    return std::to_array<Word<NarrowWeights>>({{"auto", Auto}, {"kept", Kept}, {"cast", Cast}});
}

enum class CommThread { Auto, On, Off };
constexpr auto words_of(CommThread) {
    using enum CommThread;
    return std::to_array<Word<CommThread>>({{"auto", Auto}, {"on", On}, {"off", Off}});
}

// model.converters. A family has the name of torchtitan's documents, and that of its file llama3_405b.toml.
enum class Converter { Float8, Mx, GroupedFloat8, GroupedMx };
constexpr auto words_of(Converter) {
    using enum Converter;
    return std::to_array<Word<Converter>>({{"quantize.linear.float8", Float8},
                                           {"quantize.linear.mx", Mx},
                                           {"quantize.grouped_mm.float8", GroupedFloat8},
                                           {"quantize.grouped_mm.mx", GroupedMx},
                                           {"float8", Float8},
                                           {"mx", Mx}});
}

// quantize.linear.float8.recipe_name. Unnamed is tensorwise.
enum class Float8Name { Unnamed, Tensorwise, Rowwise, RowwiseWithGwHp, Blockwise };
constexpr auto words_of(Float8Name) {
    using enum Float8Name;
    return std::to_array<Word<Float8Name>>({{"", Unnamed},
                                            {"tensorwise", Tensorwise},
                                            {"rowwise", Rowwise},
                                            {"rowwise_with_gw_hp", RowwiseWithGwHp},
                                            {"blockwise", Blockwise}});
}

// quantize.linear.mx.recipe_name.
enum class MxName { Cublas, CublasRceil, Emulated, Fp4Cutlass, Fp4Emulated };
constexpr auto words_of(MxName) {
    using enum MxName;
    return std::to_array<Word<MxName>>({{"mxfp8_cublas", Cublas},
                                        {"mxfp8_cublas_rceil", CublasRceil},
                                        {"mxfp8_emulated", Emulated},
                                        {"mxfp4_cutlass", Fp4Cutlass},
                                        {"mxfp4_emulated", Fp4Emulated}});
}

// training.dataset. A name of torchtitan's, such as c4, stands for Prepared.
enum class Dataset { Prepared, Synthetic };

// partition.weights, .secondary_weights, .gradients, .optimizer: over the data ranks of which level. Package, Node: those that
// share one. Shard: data_parallel_shard. World: all. Number: `ranks` of them.
struct Split {
    enum class Over { Preset, One, Package, Node, Shard, World, Number } over = Over::Preset;
    int64_t ranks = 0;
    bool operator==(const Split&) const = default;
};

// activation_checkpoint.selective_ac_option.
struct Selective {
    int64_t every_nth = 2;  // layer is computed again; 0: "op"
    bool operator==(const Selective&) const = default;
};

// training.max_time.
struct Duration {
    double seconds = 0;  // 0: no limit
    bool operator==(const Duration&) const = default;
};

// runtime.disabled_kernels.
struct Names {
    std::vector<std::string> names;
    bool operator==(const Names&) const = default;
};

// How products of linear layers are in 8 bits: what model.converters and the keys of [quantize] ask for.
struct Float8 {
    using Recipe = passes::Float8Recipe;
    Recipe recipe = Recipe::Tensorwise;
    bool fsdp_gather = false;                               // weights cross data ranks in 8 bits
    std::vector<std::string> filter_fqns;                   // a layer whose name contains one of them stays as it is
    bool auto_filter_small_kn = false;                      // so does one whose product is too small to gain
    int64_t scale_sequences = 0, scale_context_blocks = 0;  // 0: as the layout has them
    bool operator==(const Float8&) const = default;
};

// "" stands for none.
using OptionalDtype = std::optional<Dtype>;

struct Config {
    struct Job {
        std::string dump_folder = "./outputs", description = "default job";
        bool operator==(const Job&) const = default;
    } job;

    struct Model {
        std::string name = "llama3", flavor = "debugmodel", hf_assets_path;
        std::vector<Converter> converters;
        ir::Attrs shape;  // every key of the model
        int64_t size(std::string_view key) const { return std::get<int64_t>(shape.find(std::string(key))->second); }
        bool operator==(const Model&) const = default;
    } model;

    struct Optimizer {
        passes::OptimizerName name = passes::OptimizerName::AdamW;
        double lr = 8e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, momentum = 0.95;
        bool nesterov = true;
        int64_t muon_ns_steps = 5;
        MuonAdjustLr muon_adjust_lr_fn = MuonAdjustLr::MatchRmsAdamW;
        OptimizerImplementation implementation = OptimizerImplementation::Fused;
        bool operator==(const Optimizer&) const = default;
    } optimizer;

    struct LrScheduler {
        int64_t warmup_steps = 200, total_steps = 0;
        double decay_ratio = -1;
        DecayType decay_type = DecayType::Linear;
        double min_lr_factor = 0;
        bool operator==(const LrScheduler&) const = default;
    } lr_scheduler;

    struct Training {
        Dataset dataset = Dataset::Prepared;
        std::vector<std::string> dataset_path;
        std::vector<double> dataset_weights;
        int64_t window_stride = 0, local_batch_size = 8, global_batch_size = -1, seq_len = 2048;
        bool document_mask = false;
        double max_norm = 1;
        int64_t steps = 10000;
        Dtype dtype = Dtype::F32;
        OptionalDtype mixed_precision_param = Dtype::BF16, mixed_precision_norm;
        Dtype mixed_precision_reduce = Dtype::F32;
        NarrowWeights mixed_precision_weights = NarrowWeights::Auto;
        OptionalDtype logits;
        bool fp32_residual_connection = false;
        double loss_scale = 0, initial_loss_scale = 65536, min_loss_scale = 1;
        int64_t loss_scale_window = 2000;
        Duration max_time;
        int64_t max_nonfinite_steps = 10;
        bool pack_products = true, fuse_loss = true;
        int64_t loss_chunk_tokens = 0;  // 0: what the kernels like (ops/catalog.h)
        bool operator==(const Training&) const = default;
    } training;

    struct Parallelism {
        int64_t data_parallel_replicate_degree = 1, data_parallel_shard_degree = -1, tensor_parallel_degree = 1;
        int64_t context_parallel_degree = 1;
        LoadBalancer context_parallel_load_balancer = LoadBalancer::HeadTail;
        RotateMethod context_parallel_rotate_method = RotateMethod::Allgather;
        int64_t context_parallel_head_degree = 0;
        bool sequence_parallel = true, enable_async_tensor_parallel = false;
        int64_t pipeline_parallel_degree = 1;
        std::string pipeline_parallel_schedule = "1F1B";  // a name of schedules::schedules()
        std::string pipeline_parallel_schedule_csv;
        int64_t pipeline_parallel_microbatch_size = 1, pipeline_parallel_layers_per_stage = 0;
        int64_t pipeline_parallel_first_stage_less_layers = 1, pipeline_parallel_last_stage_less_layers = 1;
        std::vector<std::string> module_fqns_per_model_part;
        ReshardAfterForward fsdp_reshard_after_forward = ReshardAfterForward::Default;
        int64_t prefetch = 1;
        bool operator==(const Parallelism&) const = default;
    } parallelism;

    struct Partition {
        PartitionPreset preset = PartitionPreset::Default;
        Split weights, secondary_weights, gradients, optimizer;
        Quantized quantized_weights = Quantized::Default, quantized_gradients = Quantized::Default;
        Rounding gradient_rounding = Rounding::Default;
        ReduceWhen reduce_gradients = ReduceWhen::Default;
        bool operator==(const Partition&) const = default;
        bool names_levels() const;  // of the machine: a package or a node
    } partition;

    struct Checkpoint {
        bool enable = false;
        std::string folder = "checkpoint";
        int64_t interval = 500, keep_latest_k = 10, load_step = -1;
        std::string initial_load_path;
        bool initial_load_model_only = true, initial_load_in_hf = false;
        bool last_save_model_only = false, last_save_in_hf = false;
        std::string export_dtype = "float32";  // a name of file_type_of() (base/elements.h), or empty: training.dtype
        AsyncMode async_mode = AsyncMode::Disabled;
        std::vector<LoadPart> exclude_from_loading;
        bool enable_first_step_checkpoint = false, create_seed_checkpoint = false, load_only = false;
        bool saves() const { return enable && !load_only; }
        bool operator==(const Checkpoint&) const = default;
    } checkpoint;

    struct ActivationCheckpoint {
        RecomputeMode mode = RecomputeMode::Selective;
        Selective selective_ac_option;
        double memory_budget = 0.5;
        int64_t budget_bytes = 0;
        bool operator==(const ActivationCheckpoint&) const = default;
    } activation_checkpoint;

    struct Metrics {
        int64_t log_freq = 10;
        bool log_float8 = false, disable_color_printing = false, enable_tensorboard = false;
        std::string save_tb_folder = "tb";
        bool operator==(const Metrics&) const = default;
    } metrics;

    struct Validation {
        bool enable = false;
        std::vector<std::string> dataset_path;
        int64_t freq = 10, steps = -1, local_batch_size = -1, seq_len = -1;
        bool operator==(const Validation&) const = default;
    } validation;

    struct Debug {
        int64_t replica_check_freq = 0, seed = 0;
        DeviceKind device = DeviceKind::Host;
        int64_t device_seed = 0;
        double synthetic_masked = 0;
        bool operator==(const Debug&) const = default;
    } debug;

    struct Runtime {
        int64_t threads_per_rank = 0;
        bool pin_threads = true;
        Kernels kernels = Kernels::Cpu;
        CudaGraph cuda_graph = CudaGraph::Auto;
        bool deterministic = true;
        InstructionSet instruction_set = InstructionSet::Auto;
        Names disabled_kernels;
        std::string products;
        bool debug_fill = false;
        CommThread comm_thread = CommThread::Auto;
        double local_link_bytes_per_s = 0, local_link_latency_s = 0;
        bool operator==(const Runtime&) const = default;
    } runtime;
    bool on_gpu() const { return runtime.kernels == Kernels::Cuda; }

    struct Cluster {
        int64_t ranks = 0, ranks_per_host = 0, ranks_per_process = 1;
        int64_t ranks_per_package = 0, ranks_per_node = 0;  // 0: not known
        std::string file, stack;
        double memory_gib_per_rank = 0, reserve_gib_per_rank = 0;
        bool operator==(const Cluster&) const = default;
    } cluster;

    struct Comm {
        Reductions reductions = Reductions::Exact;
        CommTransport transport = CommTransport::Auto;
        int64_t train_timeout_seconds = 100, trace_buf_size = 20000;
        std::string save_traces_folder = "comm_traces", save_traces_file_prefix = "rank_";
        bool operator==(const Comm&) const = default;
    } comm;

    struct LinearFloat8 {  // [quantize.linear.float8]
        Float8Name recipe_name = Float8Name::Unnamed;
        bool enable_fsdp_float8_all_gather = false, emulate = false;
        std::vector<std::string> filter_fqns;
        bool operator==(const LinearFloat8&) const = default;
    } linear_float8;

    struct LinearMx {  // [quantize.linear.mx]
        MxName recipe_name = MxName::Cublas;
        std::vector<std::string> filter_fqns = {"output"};
        bool operator==(const LinearMx&) const = default;
    } linear_mx;

    struct Quantize {
        int64_t scale_sequences = 0, scale_context_blocks = 0;
        bool operator==(const Quantize&) const = default;
    } quantize;
    // Nothing: no product is in 8 bits.
    std::optional<Float8> float8() const;

    struct FaultTolerance {
        bool enable = false;
        SemiSyncMethod semi_sync_method = SemiSyncMethod::None;
        int64_t group_size = 0, sync_steps = 5, num_fragments = 1;
        bool should_quantize = false;
        double fragment_update_alpha = 0, outer_lr = 0.7, outer_momentum = 0.9;
        int64_t replica_id = -1;  // which of the islands this job is; -1: all are in it
        bool is_job() const { return enable && replica_id >= 0; }
        int64_t islands() const { return enable && !is_job() ? group_size : 1; }  // of this job,
        int64_t jobs() const { return is_job() ? group_size : 1; }                // and jobs that are one each
        bool operator==(const FaultTolerance&) const = default;
    } fault_tolerance;

    Origins origins;
    bool is_set(std::string_view key) const { return origins.find(key) != origins.end(); }
    // "run.toml:3: " or "flag --training.steps: ", to begin a message with; empty where the key has its default.
    std::string where(std::string_view key) const;
    bool operator==(const Config&) const = default;

    // Does the recipe leave the number of ranks to the machine?
    bool leaves_ranks_open() const { return cluster.ranks == 0 && parallelism.data_parallel_shard_degree == -1; }
};

// Refuses what contradicts itself (rules.h). Throws UserError.
Config config_of(const Recipe& recipe);

// What each key says, before the rules are asked; the model's shape is not in it.
Config values_of(const Recipe& recipe);

}  // namespace lockstep::compile
