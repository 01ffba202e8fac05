#include "compile/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/round.h"
#include "compile/limits.h"

namespace lockstep::compile {
namespace {

// A split by name or number, as a number of data ranks.
int64_t split(const Recipe& recipe, const char* key, int64_t preset, int64_t shard, int64_t data) {
    const std::string& text = recipe.text(key);
    if (text.empty()) return preset;
    if (text == "none") return 1;
    if (text == "shard") return shard;
    if (text == "world") return data;
    const int64_t n = std::stoll(text);
    const bool fits = n <= shard ? shard % n == 0 : n % shard == 0 && data % n == 0;
    if (!fits) {
        throw UserError(
            "recipe.split_divides", key,
            fmt::format(
                "{} = {}: must divide data_parallel_shard_degree ({}) or be a multiple of it that divides the {} data ranks", key,
                n, shard, data));
    }
    return n;
}

passes::PartitionOptions partition_of(const Recipe& r, int64_t replicate, int64_t shard) {
    passes::PartitionOptions o;
    const std::string& preset = r.text("partition.preset");
    const int64_t data = replicate * shard;
    if (preset == "default" || preset == "zero3") o.weights = o.gradients = o.states = shard;
    else if (preset == "zero2") o.gradients = o.states = shard;
    else if (preset == "zero1") o.states = shard;
    o.weights = split(r, "partition.weights", o.weights, shard, data);
    o.gradients = split(r, "partition.gradients", o.gradients, shard, data);
    o.states = split(r, "partition.optimizer", o.states, shard, data);
    if (o.gradients % o.weights != 0 || o.states % o.gradients != 0) {
        throw UserError("recipe.partition_order", "partition.optimizer",
                        fmt::format("weights are split over {} data ranks, gradients over {}, optimizer states over {}: each "
                                    "must be a multiple of the one before",
                                    o.weights, o.gradients, o.states));
    }
    passes::OptimizerOptions of;
    of.name = r.text("optimizer.name");
    of.beta1 = r.number("optimizer.beta1"), of.beta2 = r.number("optimizer.beta2");
    of.eps = r.number("optimizer.eps"), of.weight_decay = r.number("optimizer.weight_decay");
    of.momentum = r.number("optimizer.momentum"), of.nesterov = r.flag("optimizer.nesterov");
    of.ns_steps = r.integer("optimizer.muon_ns_steps");
    of.match_rms_adamw = r.text("optimizer.muon_adjust_lr_fn") == "match_rms_adamw";
    o.optimizer = passes::optimizer_called(of);
    o.max_norm = r.number("training.max_norm");
    return o;
}

template <class Value>
using Named = std::vector<std::pair<std::string_view, Value>>;

// What the key's text names. The table of keys knows the same words.
template <class Value>
Value choice(const Recipe& r, const char* key, const Named<Value>& known) {
    const auto it = std::find_if(known.begin(), known.end(), [&](const auto& named) { return named.first == r.text(key); });
    ensure(it != known.end(), key);
    return it->second;
}

// training.dtype is the type of master weights and moments, mixed_precision_param that of parameters and activations; sums are in
// float32 at least.
void set_types(const Recipe& r, Layout& l) {
    const char *dtype = "training.dtype", *param = "training.mixed_precision_param", *norm = "training.mixed_precision_norm",
               *reduce = "training.mixed_precision_reduce";
    const Named<Dtype> all = {
        {"float32", Dtype::F32}, {"bfloat16", Dtype::BF16}, {"float16", Dtype::F16}, {"float64", Dtype::F64}};
    const Named<Dtype> between_ranks = {{"float32", Dtype::F32}, {"bfloat16", Dtype::BF16}, {"float16", Dtype::F16}};
    const Dtype master = choice(r, dtype, all);
    l.precision.wide = master == Dtype::F64 ? Dtype::F64 : Dtype::F32;
    l.precision.narrow = r.text(param).empty() ? master : choice(r, param, all);
    if (bytes_of(l.precision.narrow) > bytes_of(master))
        throw UserError(
            "recipe.mixed_precision", param,
            fmt::format(
                "{} = \"{}\" is wider than {} = \"{}\", the type of the master weights: lower the first or raise the second",
                param, r.text(param), dtype, r.text(dtype)));
    l.partition.compute = l.precision.narrow, l.partition.master = master;
    const Dtype of_norms = r.text(norm).empty() ? l.precision.narrow : choice(r, norm, all);
    if (of_norms != l.precision.narrow && of_norms != master)
        throw UserError("recipe.mixed_precision", norm,
                        fmt::format("{} = \"{}\": must be the type of the other parameters ({}) or of the master weights ({})",
                                    norm, r.text(norm), name_of(l.precision.narrow), name_of(master)));
    l.precision.wide_norms = of_norms != l.precision.narrow;
    l.precision.wide_residual = r.flag("training.fp32_residual_connection");
    const Dtype asked = choice(r, reduce, between_ranks);
    l.partition.reduce = asked == Dtype::F32 ? l.precision.wide : asked;
    const double fixed = r.number("training.loss_scale");
    if (l.precision.narrow != Dtype::F16 && fixed == 0) return;
    passes::LossScaling scaling;
    scaling.dynamic = fixed == 0;
    scaling.initial = scaling.dynamic ? r.number("training.initial_loss_scale") : fixed;
    scaling.least = l.partition.least_loss_scale = r.number("training.min_loss_scale");
    scaling.window = r.integer("training.loss_scale_window");
    l.loss_scaling = scaling;
}

// How long parameters stay gathered, and how often gradients are reduced: with a pipeline, as torchtitan does it.
void set_windows(const Recipe& r, Layout& l) {
    const char *reshard = "parallelism.fsdp_reshard_after_forward", *reduce = "partition.reduce_gradients";
    constexpr int64_t kAll = 1 << 30, kActive = 3;  // PyTorch keeps three stages of a rank that has more
    const bool pipeline = l.mesh.degree(mesh::Axis::pp) > 1;
    using passes::ReduceGradients;
    const ReduceGradients each = ReduceGradients::EachMicrobatch, once = ReduceGradients::OnceAStep;
    const Named<int64_t> stages = {{"default", pipeline ? kActive : 0}, {"always", 0}, {"never", kAll}};
    const Named<ReduceGradients> times = {{"default", pipeline ? once : each}, {"step", once}, {"microbatch", each}};
    l.resident_stages = choice(r, reshard, stages);
    l.reduce_gradients = choice(r, reduce, times);
}

// The product of the degrees, before anything is multiplied.
void require_ranks(int64_t pp, int64_t replicate, int64_t shard, int64_t tp) {
    const double ranks =
        static_cast<double>(pp) * static_cast<double>(replicate) * static_cast<double>(shard) * static_cast<double>(tp);
    if (ranks > kMostRanks)
        throw UserError("recipe.too_many_ranks", "parallelism",
                        fmt::format("the degrees of [parallelism] make {} x {} x {} x {} ranks: at most {} can be planned; lower "
                                    "one of them",
                                    pp, replicate, shard, tp, kMostRanks));
}

void require_microbatches(const Recipe& r, const Layout& l, int64_t layers) {
    const int64_t chunks =
        r.flag("training.fuse_loss") ? ceil_div(l.local_batch * l.seq_len, r.integer("training.loss_chunk_tokens")) : 1;
    const double runs = static_cast<double>(l.microbatches) * static_cast<double>(layers + chunks);
    if (l.microbatches <= kMostMicrobatches && runs > kMostRuns)
        throw UserError("recipe.too_many_microbatches", "training.global_batch_size",
                        fmt::format("a step runs {} layers and {} chunks of the loss {} times, once for each microbatch: at most "
                                    "{} runs can be planned; lower training.global_batch_size or training.seq_len, or raise the "
                                    "sequences of a microbatch or training.loss_chunk_tokens",
                                    layers, chunks, l.microbatches, kMostRuns));
    if (l.microbatches <= kMostMicrobatches) return;
    const char* local = r.integer("parallelism.pipeline_parallel_degree") > 1 ? "parallelism.pipeline_parallel_microbatch_size"
                                                                              : "training.local_batch_size";
    throw UserError(
        "recipe.too_many_microbatches", "training.global_batch_size",
        fmt::format("{}training.global_batch_size = {} makes {} microbatches of {} sequences on {} data ranks: at most "
                    "{} can be planned; lower it, or raise {}",
                    r.where("training.global_batch_size"), l.global_batch, l.microbatches, l.local_batch, l.data_ranks,
                    kMostMicrobatches, local));
}

void check_divides(const char* key, int64_t value, int64_t by, const char* by_key) {
    if (value % by != 0)
        throw UserError("recipe.divides", key,
                        fmt::format("{} = {} is not divisible by {} = {}: change one of them", key, value, by_key, by));
}

}  // namespace

Layout layout_of(const Recipe& r) {
    Layout l;
    const int64_t replicate = r.integer("parallelism.data_parallel_replicate_degree"),
                  tp = r.integer("parallelism.tensor_parallel_degree"), pp = r.integer("parallelism.pipeline_parallel_degree");
    int64_t shard = r.integer("parallelism.data_parallel_shard_degree");
    const int64_t ranks = r.integer("cluster.ranks");
    require_ranks(pp, replicate, std::max<int64_t>(shard, 1), tp);
    if (shard == -1) {
        if (ranks > 0 && ranks % (replicate * tp * pp) != 0) {
            throw UserError(
                "recipe.ranks", "cluster.ranks",
                fmt::format("{} ranks are not divisible by pipeline_parallel_degree x data_parallel_replicate_degree x "
                            "tensor_parallel_degree = {}",
                            ranks, pp * replicate * tp));
        }
        shard = ranks > 0 ? ranks / (replicate * tp * pp) : 1;
    }
    l.ranks = pp * replicate * shard * tp;
    l.data_ranks = replicate * shard;
    if (ranks > 0 && ranks != l.ranks) {
        throw UserError(
            "recipe.ranks", "cluster.ranks",
            fmt::format("the degrees make {} x {} x {} x {} = {} ranks, but {} are asked for: change a degree or cluster.ranks",
                        pp, replicate, shard, tp, l.ranks, ranks));
    }
    l.seq_len = r.integer("training.seq_len");
    const int64_t local_batch = r.integer("training.local_batch_size"),
                  micro = r.integer("parallelism.pipeline_parallel_microbatch_size");
    l.local_batch = pp > 1 ? micro : local_batch;
    l.global_batch = r.integer("training.global_batch_size");
    if (l.global_batch == -1) l.global_batch = local_batch * l.data_ranks;
    l.microbatches = ceil_div(l.global_batch, l.local_batch * l.data_ranks);
    l.sequence_parallel = r.flag("parallelism.sequence_parallel") && tp > 1;
    if (l.sequence_parallel) check_divides("training.seq_len", l.seq_len, tp, "parallelism.tensor_parallel_degree");

    const ir::Attrs shape = r.model_shape();
    const auto integer = [&](const char* key) { return shape.contains(key) ? std::get<int64_t>(shape.at(key)) : 0; };
    const int64_t heads = integer("n_heads"), kv_heads = integer("n_kv_heads") > 0 ? integer("n_kv_heads") : heads;
    require_microbatches(r, l, integer("n_layers"));
    const int64_t kv_part = std::gcd(kv_heads, tp);
    if (heads % kv_heads == 0 && (heads / kv_heads) % (tp / kv_part) != 0) {
        throw UserError("recipe.heads_divide", "parallelism.tensor_parallel_degree",
                        fmt::format("parallelism.tensor_parallel_degree = {}: {} heads in {} groups cannot be split evenly; "
                                    "choose a degree that divides model.n_heads",
                                    tp, heads, kv_heads));
    }
    l.partition = partition_of(r, replicate, shard);
    set_types(r, l);
    const std::string& async = r.text("checkpoint.async_mode");
    l.partition.snapshot = async != "disabled" && r.flag("checkpoint.enable") && !r.flag("checkpoint.load_only");
    std::map<mesh::Axis, std::vector<int64_t>> cuts;
    cuts[mesh::Axis::tp] = {kv_part};
    for (int64_t n : {l.partition.weights, l.partition.gradients, l.partition.states}) {
        if (n <= shard) cuts[mesh::Axis::dp_shard].push_back(shard / n);
        else cuts[mesh::Axis::dp_replicate].push_back(replicate / (n / shard));
    }
    l.mesh = mesh::Mesh::build({pp, replicate, shard, 1, tp}, cuts);
    set_windows(r, l);
    return l;
}

}  // namespace lockstep::compile
