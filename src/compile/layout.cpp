#include "compile/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/round.h"
#include "compile/conversion.h"
#include "compile/limits.h"
#include "compile/types.h"
#include "models/model.h"
#include "passes/sharding_table.h"

namespace lockstep::compile {

int64_t size_of(const std::vector<ir::Dim>& dims, ir::DimRole role) {
    const auto at = std::find_if(dims.begin(), dims.end(), [&](const ir::Dim& d) { return d.role == role; });
    return at == dims.end() ? 1 : at->size;
}

namespace {

using mesh::Axis;
using Objection = std::optional<UserError>;

// The product of the degrees, before anything is multiplied.
Objection too_many_ranks(const mesh::Degrees& degrees) {
    double ranks = 1;
    for (int64_t n : degrees) ranks *= static_cast<double>(n);
    if (ranks <= kMostRanks) return std::nullopt;
    return UserError("recipe.too_many_ranks", "parallelism",
                     fmt::format("the degrees of [parallelism] make {} ranks: at most {} can be planned; lower one of them",
                                 mesh::text(degrees), kMostRanks));
}

// The degrees, and how many ranks they make.
Objection set_degrees(const Config& config, mesh::Degrees& degrees, Layout& l) {
    const Config::Parallelism& p = config.parallelism;
    const int64_t ranks = config.cluster.ranks;
    const auto degree = [&](Axis a) -> int64_t& { return degrees[static_cast<size_t>(a)]; };
    degrees = {config.fault_tolerance.islands(), p.pipeline_parallel_degree,
               p.data_parallel_replicate_degree, std::max<int64_t>(p.data_parallel_shard_degree, 1),
               p.context_parallel_degree,        p.tensor_parallel_degree};
    if (Objection o = too_many_ranks(degrees)) return o;
    const auto product = [&] { return std::accumulate(degrees.begin(), degrees.end(), int64_t{1}, std::multiplies<>()); };
    if (p.data_parallel_shard_degree == -1 && ranks > 0) {
        const int64_t others = product();
        if (ranks % others != 0)
            return UserError("recipe.ranks", "cluster.ranks",
                             fmt::format("{} ranks are not divisible by {}pipeline_parallel_degree x "
                                         "data_parallel_replicate_degree x {}tensor_parallel_degree = {}",
                                         ranks, config.fault_tolerance.enable ? "fault_tolerance.group_size x " : "",
                                         p.context_parallel_degree > 1 ? "context_parallel_degree x " : "", others));
        degree(Axis::dp_shard) = ranks / others;
    }
    l.ranks = product();
    l.data_ranks = degree(Axis::dp_replicate) * degree(Axis::dp_shard);
    if (ranks > 0 && ranks != l.ranks)
        return UserError("recipe.ranks", "cluster.ranks",
                         fmt::format("the degrees make {} = {} ranks, but {} are asked for: change a degree or cluster.ranks",
                                     mesh::text(degrees), l.ranks, ranks));
    return std::nullopt;
}

Objection set_batch(const Config& config, Layout& l) {
    const Config::Training& t = config.training;
    const bool pipeline = config.parallelism.pipeline_parallel_degree > 1;
    l.seq_len = t.seq_len;
    l.local_batch = pipeline ? config.parallelism.pipeline_parallel_microbatch_size : t.local_batch_size;
    const int64_t islands = config.fault_tolerance.islands() * config.fault_tolerance.jobs();
    l.global_batch = t.global_batch_size == -1 ? t.local_batch_size * l.data_ranks * islands : t.global_batch_size;
    if (l.global_batch % islands != 0)
        return UserError("recipe.fault_tolerance", "training.global_batch_size",
                         fmt::format("{}training.global_batch_size = {} is not divisible by fault_tolerance.group_size = {}, the "
                                     "number of islands: change one of them",
                                     config.where("training.global_batch_size"), l.global_batch, islands));
    l.microbatches = ceil_div(l.global_batch / islands, l.local_batch * l.data_ranks);
    if (l.microbatches > kMostMicrobatches) {
        return UserError(
            kTooManyMicrobatches, "training.global_batch_size",
            fmt::format("{}training.global_batch_size = {} makes {} microbatches of {} sequences on {} data ranks: at most "
                        "{} can be planned; lower it, or raise {}",
                        config.where("training.global_batch_size"), l.global_batch, l.microbatches, l.local_batch, l.data_ranks,
                        kMostMicrobatches,
                        pipeline ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size"));
    }
    const int64_t chunks = t.fuse_loss ? ceil_div(l.local_batch * l.seq_len, loss_chunk_tokens(config, {})) : 1;
    const int64_t layers = config.model.size("n_layers");
    if (static_cast<double>(l.microbatches) * static_cast<double>(layers + chunks) <= kMostRuns) return std::nullopt;
    return UserError(kTooManyMicrobatches, "training.global_batch_size",
                     fmt::format("a step runs {} layers and {} chunks of the loss {} times, once for each microbatch: at most "
                                 "{} runs can be planned; lower training.global_batch_size or training.seq_len, or raise the "
                                 "sequences of a microbatch or training.loss_chunk_tokens",
                                 layers, chunks, l.microbatches, kMostRuns));
}

using Cuts = std::map<Axis, std::vector<int64_t>>;

// Cuts the data axes, innermost first, so that the innermost sub-axes make `n` ranks. False: no cut does. Context ranks hold
// the same parameters as data ranks do and are the innermost of them, as in torchtitan's mesh `fsdp`.
bool cut_for(int64_t n, const mesh::Degrees& degrees, Cuts& cuts) {
    for (const Axis a : {Axis::cp, Axis::dp_shard, Axis::dp_replicate}) {
        const int64_t degree = degrees[static_cast<size_t>(a)];
        if (n <= degree && degree % n == 0) {
            cuts[a].push_back(degree / n);
            return true;
        }
        if (n % degree != 0) return false;
        n /= degree;
    }
    return false;
}

using Over = Split::Over;

struct Preset {
    PartitionPreset name;
    Over weights, secondary, gradients, optimizer;
    int64_t quantized_weights = 0, quantized_gradients = 0;  // bits; 0: as they are
};
constexpr Preset kPresets[] = {
    {PartitionPreset::None, Over::One, Over::One, Over::One, Over::One},                 // replicated data parallelism
    {PartitionPreset::Ddp, Over::One, Over::One, Over::One, Over::One},                  // the same
    {PartitionPreset::Zero1, Over::One, Over::One, Over::One, Over::Shard},              // arXiv 1910.02054
    {PartitionPreset::Zero2, Over::One, Over::One, Over::Shard, Over::Shard},            // the same
    {PartitionPreset::Zero3, Over::Shard, Over::One, Over::Shard, Over::Shard},          // the same; FSDP, arXiv 2304.11277
    {PartitionPreset::Default, Over::Shard, Over::One, Over::Shard, Over::Shard},        // as zero3
    {PartitionPreset::Hsdp, Over::Shard, Over::One, Over::Shard, Over::Shard},           // arXiv 2304.11277, with replicas
    {PartitionPreset::Mics, Over::Node, Over::One, Over::Node, Over::Node},              // arXiv 2205.00119
    {PartitionPreset::Hpz, Over::Shard, Over::Node, Over::Shard, Over::Shard},           // arXiv 2306.10209
    {PartitionPreset::ZeroPp, Over::Shard, Over::Node, Over::Shard, Over::Shard, 8, 4},  // the same
    {PartitionPreset::ThreeLevel, Over::Package, Over::One, Over::Node, Over::World},    // arXiv 2501.04266
};

const Preset& preset_of(const Config::Partition& p) {
    return *std::find_if(std::begin(kPresets), std::end(kPresets), [&](const Preset& known) { return known.name == p.preset; });
}

// By its own key, else as the preset says.
Over level_of(const Split& own, Over of_preset) { return own.over == Over::Preset ? of_preset : own.over; }

// The data ranks that split a state: by its own key, else as the preset says.
class Splits {
public:
    Splits(const Config& config, const mesh::Degrees& degrees) : config_(config) {
        const auto [islands, pp, replicate, dp_shard, cp, tp] = degrees;
        tp_ = tp, shard_ = dp_shard * cp, data_ = replicate * shard_;
    }

    Objection set(const char* key, const Split& own, Over of_preset, int64_t& ranks) const {
        const Over over = level_of(own, of_preset);
        const Config::Cluster& c = config_.cluster;
        switch (over) {
            case Over::One: ranks = 1; return std::nullopt;
            case Over::Shard: ranks = shard_; return std::nullopt;
            case Over::World: ranks = data_; return std::nullopt;
            case Over::Number: ranks = own.ranks; return std::nullopt;
            case Over::Package:
                if (c.ranks_per_package == 0)
                    return UserError(
                        "recipe.level_unknown", "cluster.ranks_per_package",
                        fmt::format("{}: nothing says how many ranks a package has; set cluster.ranks_per_package, or "
                                    "cluster.file to a file with links of packages, nodes and all",
                                    said(key, own, "package")));
                return of_level(said(key, own, "package"), c.ranks_per_package, ranks);
            case Over::Node: {
                const int64_t node = c.ranks_per_node > 0 ? c.ranks_per_node : c.ranks_per_host;
                if (node == 0) ranks = data_;  // one host
                return node == 0 ? std::nullopt : of_level(said(key, own, "node"), node, ranks);
            }
            case Over::Preset: break;
        }
        throw InternalError("layout: a split of no kind");
    }

    std::string text() const { return fmt::format("data_parallel_shard_degree ({})", shard_); }
    int64_t data() const { return data_; }

private:
    std::string said(const char* key, const Split& own, const char* level) const {
        if (own.over != Over::Preset) return fmt::format("{}{} = {}", config_.where(key), key, level);
        return fmt::format("{}partition.preset = {} makes {} = {}", config_.where("partition.preset"),
                           word_of(config_.partition.preset), key, level);
    }

    // A level's ranks hold whole tensor-parallel groups.
    Objection of_level(const std::string& said, int64_t level, int64_t& ranks) const {
        if (level % tp_ != 0)
            return UserError(
                "recipe.level_divides", "partition",
                fmt::format("{}: its {} ranks are no multiple of parallelism.tensor_parallel_degree = {}, whose ranks "
                            "hold different parts of each parameter; choose a wider level or a lower degree",
                            said, level, tp_));
        ranks = std::min(level / tp_, data_);
        return std::nullopt;
    }

    const Config& config_;
    int64_t tp_, shard_, data_;
};

// The second copy of the weights: 0 where none is asked for, or where it would be what it is a copy of, as on one node.
Objection settle_copy(const Config& config, const Preset& preset, passes::PartitionOptions& o) {
    const Config::Partition& p = config.partition;
    const Over copy = level_of(p.secondary_weights, preset.secondary), weights = level_of(p.weights, preset.weights);
    const char* const key = "partition.secondary_weights";
    const auto no = [&](const std::string& why) {
        return UserError(
            "recipe.secondary_weights", key,
            fmt::format("{}{} over {} data rank{}: {}", config.where(key), key, o.secondary, o.secondary == 1 ? "" : "s", why));
    };
    if (copy == Over::Package || copy == Over::Node) o.secondary = std::min(o.secondary, o.weights);
    if (copy != Over::One && weights == Over::One)
        return no("partition.weights = none leaves nothing to copy; leave it out, or say partition.weights");
    if (copy == Over::One || o.secondary == o.weights) {
        o.secondary = 0;
        return std::nullopt;
    }
    if (o.weights % o.secondary != 0) return no(fmt::format("must divide the {} data ranks of partition.weights", o.weights));
    if (o.secondary == 1)
        return no(
            "each rank would keep all weights; say parallelism.fsdp_reshard_after_forward = never, or choose a wider level");
    return std::nullopt;
}

// Bits of an element.
int64_t bits_of(Quantized own, int64_t of_preset) {
    switch (own) {
        case Quantized::Default: return of_preset;
        case Quantized::None: return 0;
        case Quantized::Int8: return 8;
        case Quantized::Int4: return 4;
    }
    throw InternalError("layout: a number of bits of no kind");
}

// What crosses ranks quantized.
Objection settle_quantization(const Config& config, const Preset& preset, passes::PartitionOptions& o) {
    const Config::Partition& p = config.partition;
    o.quantized_weights = bits_of(p.quantized_weights, preset.quantized_weights);
    o.quantized_gradients = bits_of(p.quantized_gradients, preset.quantized_gradients);
    o.round_at_random =
        p.gradient_rounding == Rounding::Stochastic || (p.gradient_rounding == Rounding::Default && o.quantized_gradients == 4);
    if (p.quantized_weights == Quantized::Int4)
        return UserError(
            "recipe.quantized_weights", "partition.quantized_weights",
            fmt::format("{}partition.quantized_weights = int4: weights of 15 values are too coarse to train with; say "
                        "int8. Gradients may be int4 (partition.quantized_gradients)",
                        config.where("partition.quantized_weights")));
    if (o.quantized_weights != 0 && level_of(p.weights, preset.weights) == Over::One)
        return UserError("recipe.quantized_weights", "partition.quantized_weights",
                         fmt::format("{}partition.quantized_weights = int8: partition.weights = none, so that no weights are "
                                     "gathered; leave it out, or split them",
                                     config.where("partition.quantized_weights")));
    return std::nullopt;
}

Objection set_partition(const Config& config, const mesh::Degrees& degrees, passes::PartitionOptions& o, Cuts& cuts) {
    const Config::Partition& p = config.partition;
    const Preset& preset = preset_of(p);
    const Splits splits(config, degrees);
    if (Objection no = splits.set("partition.weights", p.weights, preset.weights, o.weights)) return no;
    if (Objection no = splits.set("partition.secondary_weights", p.secondary_weights, preset.secondary, o.secondary)) return no;
    if (Objection no = splits.set("partition.gradients", p.gradients, preset.gradients, o.gradients)) return no;
    if (Objection no = splits.set("partition.optimizer", p.optimizer, preset.optimizer, o.states)) return no;
    if (Objection no = settle_copy(config, preset, o)) return no;
    if (Objection no = settle_quantization(config, preset, o)) return no;
    if (p.preset == PartitionPreset::Hsdp && config.parallelism.data_parallel_replicate_degree == 1)
        return UserError("recipe.hsdp", "partition.preset",
                         fmt::format("{}partition.preset = hsdp: nothing is replicated with "
                                     "parallelism.data_parallel_replicate_degree = 1; raise it, or say zero3",
                                     config.where("partition.preset")));
    const std::pair<const char*, int64_t> ranks_of[] = {{"partition.secondary_weights", std::max<int64_t>(o.secondary, 1)},
                                                        {"partition.weights", o.weights},
                                                        {"partition.gradients", o.gradients},
                                                        {"partition.optimizer", o.states}};
    for (const auto& [key, n] : ranks_of) {
        if (cut_for(n, degrees, cuts)) continue;
        return UserError("recipe.split_divides", key,
                         fmt::format("{} = {}: must divide {} or be a multiple of it that divides the {} data ranks", key, n,
                                     splits.text(), splits.data()));
    }
    if (o.gradients % o.weights != 0 || o.states % o.gradients != 0)
        return UserError("recipe.partition_order", "partition.optimizer",
                         fmt::format("weights are split over {} data ranks, gradients over {}, optimizer states over {}: each "
                                     "must be a multiple of the one before",
                                     o.weights, o.gradients, o.states));
    const Config::Optimizer& of = config.optimizer;
    const Types types = types_of(config);
    o.optimizer = passes::optimizer_called({of.name, of.beta1, of.beta2, of.eps, of.weight_decay, of.momentum, of.nesterov,
                                            of.muon_ns_steps, of.muon_adjust_lr_fn == MuonAdjustLr::MatchRmsAdamW,
                                            types.moments != types.master, config.debug.seed});
    o.max_norm = config.training.max_norm;
    o.compute = types.precision.narrow, o.master = types.master, o.reduce = types.reduce;
    const NarrowWeights narrow = config.training.mixed_precision_weights;
    o.keeps_narrow = narrow == NarrowWeights::Kept || (narrow == NarrowWeights::Auto && o.weights == 1);
    if (types.loss_scaling) o.least_loss_scale = types.loss_scaling->least;
    o.snapshot = config.checkpoint.async_mode != AsyncMode::Disabled && config.checkpoint.saves();
    o.reduces_into = config.comm.reductions == Reductions::Exact;
    return std::nullopt;
}

// How islands meet.
Objection set_meetings(const Config& config, passes::PartitionOptions& o) {
    const Config::FaultTolerance& f = config.fault_tolerance;
    const auto no = [&](const char* key, const std::string& what) {
        const std::string name = std::string("fault_tolerance.") + key;
        return UserError("recipe.fault_tolerance", name, config.where(name) + name + what);
    };
    if (!f.enable) return std::nullopt;
    const bool diloco = f.semi_sync_method == SemiSyncMethod::DiLoCo;
    if (f.semi_sync_method == SemiSyncMethod::None)
        return no(
            "enable",
            " = true without fault_tolerance.semi_sync_method: replicas that meet each step and may be lost are not in this "
            "version; say diloco or local_sgd, or leave it out");
    if (f.group_size < 2)
        return no("group_size", fmt::format(" = {}: it is the number of islands that meet, 2 at least", f.group_size));
    if (f.replica_id >= f.group_size)
        return no("replica_id", fmt::format(" = {}: islands have the numbers 0 to {}", f.replica_id, f.group_size - 1));
    if (f.sync_steps % f.num_fragments != 0)
        return no("sync_steps",
                  fmt::format(" = {} is not divisible by fault_tolerance.num_fragments = {}, whose parts of the model "
                              "meet one after the other: change one of them",
                              f.sync_steps, f.num_fragments));
    for (const char* key : {"outer_lr", "outer_momentum"}) {
        if (!diloco && config.is_set(std::string("fault_tolerance.") + key))
            return no(key, " acts only with fault_tolerance.semi_sync_method = diloco: leave it out");
    }
    const int64_t blocks = config.model.size("n_layers") + 2;  // with embedding and head
    if (f.num_fragments > blocks)
        return no("num_fragments", fmt::format(" = {}: the model has {} blocks; lower it", f.num_fragments, blocks));
    o.outer = passes::OuterOptions{diloco ? f.outer_lr : 1,
                                   diloco ? f.outer_momentum : 0,
                                   f.fragment_update_alpha,
                                   f.should_quantize,
                                   f.num_fragments,
                                   f.group_size,
                                   f.is_job()};
    return std::nullopt;
}

}  // namespace

Windows windows_of(const Config& config, bool pipeline) {
    constexpr int64_t kAll = 1 << 30, kActive = 3;  // PyTorch keeps three stages of a rank that has more
    using passes::ReduceGradients;
    Windows out;
    switch (config.parallelism.fsdp_reshard_after_forward) {
        case ReshardAfterForward::Default: out.resident_stages = pipeline ? kActive : 0; break;
        case ReshardAfterForward::Always: out.resident_stages = 0; break;
        case ReshardAfterForward::Never: out.resident_stages = kAll; break;
    }
    switch (config.partition.reduce_gradients) {
        case ReduceWhen::Default:
            out.reduce_gradients = pipeline ? ReduceGradients::OnceAStep : ReduceGradients::EachMicrobatch;
            break;
        case ReduceWhen::Step: out.reduce_gradients = ReduceGradients::OnceAStep; break;
        case ReduceWhen::Microbatch: out.reduce_gradients = ReduceGradients::EachMicrobatch; break;
    }
    return out;
}

namespace {

// How context ranks meet the keys of others, and where the axis is cut for it.
Objection set_context(const Config& config, const std::vector<ir::Dim>& dims, Layout& l, Cuts& cuts) {
    const Config::Parallelism& p = config.parallelism;
    const int64_t cp = p.context_parallel_degree;
    if (cp == 1) return std::nullopt;
    const char* const key = "parallelism.context_parallel_head_degree";
    const bool ulysses = p.context_parallel_rotate_method == RotateMethod::Ulysses;
    const int64_t on_heads = p.context_parallel_head_degree > 0 ? p.context_parallel_head_degree : ulysses ? cp : 1;
    if (cp % on_heads != 0 || (ulysses && on_heads != cp))
        return UserError(
            "recipe.context_parallel", key,
            fmt::format("{}{} = {} {} parallelism.context_parallel_degree = {}: change one of them{}", config.where(key), key,
                        on_heads, ulysses ? "is not" : "does not divide", cp,
                        ulysses ? ", or say allgather or alltoall in parallelism.context_parallel_rotate_method" : ""));
    const int64_t kv_heads = size_of(dims, ir::DimRole::KvHeads), heads = kv_heads * size_of(dims, ir::DimRole::Group);
    if (on_heads > 1 && heads % (p.tensor_parallel_degree * on_heads) != 0) {
        const char* const degree = p.context_parallel_head_degree > 0 ? key : "parallelism.context_parallel_degree";
        return UserError(
            "recipe.heads_divide", degree,
            fmt::format("{}{} = {}: {} heads cannot be split evenly over {} ranks{}: choose another degree, or allgather "
                        "or alltoall in parallelism.context_parallel_rotate_method",
                        config.where(degree), degree, on_heads, heads, p.tensor_parallel_degree * on_heads,
                        p.tensor_parallel_degree == 1
                            ? ""
                            : fmt::format(" with parallelism.tensor_parallel_degree = {}", p.tensor_parallel_degree)));
    }
    l.context = {.on_heads = on_heads, .ring = p.context_parallel_rotate_method == RotateMethod::Alltoall && on_heads < cp};
    if (p.context_parallel_load_balancer == LoadBalancer::HeadTail) l.head_tail = cp / on_heads;
    const int64_t of_tp = std::gcd(kv_heads, p.tensor_parallel_degree);
    const int64_t of_kv_heads = of_tp == p.tensor_parallel_degree ? std::gcd(kv_heads / of_tp, on_heads) : 1;
    std::vector<int64_t>& of_context = cuts[Axis::cp];
    of_context.insert(of_context.end(), {cp / on_heads, cp / on_heads * of_kv_heads});
    std::vector<int64_t> chain = of_context;
    std::sort(chain.begin(), chain.end());
    for (size_t i = 1; i < chain.size(); ++i) {
        if (chain[i] % chain[i - 1] == 0) continue;
        return UserError(
            "recipe.context_cuts", key,
            fmt::format("{}{} and [partition] cut the {} context ranks into groups of {} and of {}, and neither divides "
                        "the other: change the key, or the level in [partition]",
                        config.where(key), key, cp, cp / chain[i - 1], cp / chain[i]));
    }
    return std::nullopt;
}

// Which key makes the dim too small for `ranks`.
UserError indivisible(const Config& config, const ir::Dim& dim, int64_t ranks, const std::vector<ir::Dim>& dims) {
    const char* const degree = "parallelism.tensor_parallel_degree";
    const int64_t tp = config.parallelism.tensor_parallel_degree, cp = config.parallelism.context_parallel_degree;
    switch (dim.role) {
        case ir::DimRole::Seq:
            if (cp > 1)
                return UserError(
                    "recipe.divides", "training.seq_len",
                    fmt::format("{}training.seq_len = {} is not divisible by parallelism.context_parallel_degree = {}{} = {}: "
                                "change one of them{}",
                                config.where("training.seq_len"), dim.size, cp,
                                ranks == cp ? "" : fmt::format(" x {} = {}", degree, tp), ranks,
                                ranks == cp ? "" : ", or set parallelism.sequence_parallel = false"));
            return UserError(
                "recipe.divides", "training.seq_len",
                fmt::format("training.seq_len = {} is not divisible by {} = {}: change one of them", dim.size, degree, ranks));
        case ir::DimRole::Group: {
            const int64_t kv_heads = size_of(dims, ir::DimRole::KvHeads);
            return UserError("recipe.heads_divide", degree,
                             fmt::format("{} = {}: {} heads in {} groups cannot be split evenly; choose a degree that divides "
                                         "model.n_heads",
                                         degree, tp, kv_heads * dim.size, kv_heads));
        }
        case ir::DimRole::Ffn:
            return UserError("recipe.divides", "model.ffn_dim",
                             fmt::format("the feed-forward width {} is not divisible by {} = {}: change model.ffn_dim or the "
                                         "degree",
                                         dim.size, degree, ranks));
        default: throw InternalError(fmt::format("no key makes the dim {} of {} divisible by {}", dim.name, dim.size, ranks));
    }
}

// Every dim is a multiple of the ranks over which the sharding table may split it.
Objection check_divisible(const Config& config, const Layout& l, const std::vector<ir::Dim>& dims) {
    const passes::ShardingTable table(l.mesh, size_of(dims, ir::DimRole::KvHeads), l.sequence_parallel, l.context);
    for (const ir::Dim& of_model : dims) {
        const ir::Dim dim = passes::bound(of_model, l.sizes());
        const int64_t ranks = l.mesh.size(table.most(dim.role));
        if (dim.size % ranks != 0) return indivisible(config, dim, ranks, dims);
    }
    if (l.head_tail == 1 || l.seq_len % (2 * l.head_tail) == 0) return std::nullopt;
    return UserError(
        "recipe.divides", "training.seq_len",
        fmt::format(
            "{}training.seq_len = {} is not divisible by {}, as each of {} context ranks has two pieces of it: change it or "
            "parallelism.context_parallel_degree, or set parallelism.context_parallel_load_balancer = \"none\"",
            config.where("training.seq_len"), l.seq_len, 2 * l.head_tail, l.head_tail));
}

}  // namespace

int64_t loss_chunk_tokens(const Config& config, const ops::KernelCatalog& catalog) {
    return config.training.loss_chunk_tokens > 0 ? config.training.loss_chunk_tokens : catalog.loss_chunk_tokens;
}

bool Config::Partition::names_levels() const {
    const Preset& preset = preset_of(*this);
    const Over levels[] = {level_of(weights, preset.weights), level_of(secondary_weights, preset.secondary),
                           level_of(gradients, preset.gradients), level_of(optimizer, preset.optimizer)};
    return std::any_of(std::begin(levels), std::end(levels), [](Over s) { return s == Over::Package || s == Over::Node; });
}

OrRefusal<Layout> layout_of(const Config& config, const std::vector<ir::Dim>& dims) {
    Layout l;
    mesh::Degrees degrees;
    if (Objection o = set_meetings(config, l.partition)) return *o;
    if (Objection o = set_degrees(config, degrees, l)) return *o;
    if (Objection o = set_batch(config, l)) return *o;
    const int64_t tp = config.parallelism.tensor_parallel_degree;
    l.sequence_parallel = config.parallelism.sequence_parallel && tp > 1;
    l.vocab_multiple = tp;
    Cuts cuts;
    if (Objection o = set_partition(config, degrees, l.partition, cuts)) return *o;
    if (l.partition.outer) l.sync_steps = config.fault_tolerance.sync_steps;
    if (config.fault_tolerance.is_job()) l.jobs = config.fault_tolerance.group_size, l.job = config.fault_tolerance.replica_id;
    cuts[Axis::tp] = {std::gcd(size_of(dims, ir::DimRole::KvHeads), tp)};
    if (Objection o = set_context(config, dims, l, cuts)) return *o;
    l.mesh = mesh::Mesh::build(degrees, cuts);
    if (Objection o = check_divisible(config, l, dims)) return *o;
    if (Objection o = set_scales(config, l)) return *o;
    l.windows = windows_of(config, l.mesh.degree(Axis::pp) > 1);
    return l;
}

std::vector<ir::Dim> dims_of(const Config& config) {
    return models::find_model(config.model.name)->dims(config.model.shape, config.training.seq_len);
}

Layout layout_of(const Config& config) { return or_throw(layout_of(config, dims_of(config))); }

}  // namespace lockstep::compile
