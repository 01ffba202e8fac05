#include "tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedules/schedules.h"

namespace lockstep::tune {

bool is_held(const compile::Config& base, const char* key) {
    const auto it = base.origins.find(key);
    return it != base.origins.end() && it->second.is_flag();
}

namespace {

using compile::Config;
using compile::PartitionPreset;
using compile::RecomputeMode;

std::vector<int64_t> divisors(int64_t n) {
    std::vector<int64_t> out;
    for (int64_t d = 1; d <= n; ++d) {
        if (n % d == 0) out.push_back(d);
    }
    return out;
}

std::string flag(bool on) { return on ? "true" : "false"; }

// Up to two stages a rank are cut by the cost of blocks; more by number of layers, as the key asks for.
constexpr int64_t kMostCutByCost = 2;

class HeldKeys {
public:
    explicit HeldKeys(const Config& base) : base_(base) {}

    template <class T, class U>
    bool allows(const char* key, const T& held, const U& value) const {
        return !is_held(base_, key) || held == value;
    }

private:
    const Config& base_;
};

bool allowed(const Config& base, const Choice& c) {
    const HeldKeys held(base);
    const Config::Parallelism& p = base.parallelism;
    const bool pipeline = c.pipeline > 1;
    return held.allows("parallelism.tensor_parallel_degree", p.tensor_parallel_degree, c.tensor) &&
           held.allows("parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree, c.pipeline) &&
           held.allows("parallelism.sequence_parallel", p.sequence_parallel, c.sequence_parallel || c.tensor == 1) &&
           held.allows("parallelism.enable_async_tensor_parallel", p.enable_async_tensor_parallel, c.async_tensor_parallel) &&
           (!pipeline || held.allows("parallelism.pipeline_parallel_schedule",
                                     schedules::find_schedule(p.pipeline_parallel_schedule).name, c.schedule)) &&
           (pipeline
                ? held.allows("parallelism.pipeline_parallel_microbatch_size", p.pipeline_parallel_microbatch_size, c.microbatch)
                : held.allows("training.local_batch_size", base.training.local_batch_size, c.microbatch)) &&
           held.allows("activation_checkpoint.mode", base.activation_checkpoint.mode, c.recompute);
}

bool allowed_member(const Config& base, const Choice& c) {
    const HeldKeys held(base);
    const Config::Parallelism& p = base.parallelism;
    return held.allows("parallelism.data_parallel_replicate_degree", p.data_parallel_replicate_degree, c.replicate) &&
           (p.data_parallel_shard_degree == -1 ||
            held.allows("parallelism.data_parallel_shard_degree", p.data_parallel_shard_degree, c.shard())) &&
           held.allows("partition.preset", base.partition.preset, c.partition) &&
           held.allows("parallelism.prefetch", p.prefetch, c.prefetch);
}

struct Pipelining {
    std::string schedule = "1F1B";
    int64_t stages_per_rank = 1;
};

// Schedules and stages a rank that `pipeline` ranks, `layers` layers and `microbatches` microbatches can have.
std::vector<Pipelining> pipelinings(int64_t pipeline, int64_t layers, int64_t microbatches) {
    if (pipeline == 1) return {{}};
    std::vector<Pipelining> out;
    for (const schedules::Schedule& s : schedules::schedules()) {
        for (int64_t v = s.min_stages_per_rank; v <= s.max_stages_per_rank && pipeline * v <= layers + 2; ++v) {
            const bool by_default = v == std::min(s.max_stages_per_rank, kMostCutByCost);
            if (!by_default && layers % (pipeline * v) != 0) continue;
            if (!schedules::objection(s.name, {pipeline, v, microbatches})) out.push_back({std::string(s.name), v});
        }
    }
    return out;
}

struct Sharing {
    bool sequence_parallel = true, async_tensor_parallel = false;
};
std::vector<Sharing> sharings(int64_t tensor, bool within_host) {
    if (tensor == 1) return {{true, false}};
    if (!within_host) return {{true, false}, {false, false}};
    return {{true, false}, {true, true}, {false, false}};
}

// Adds the families of these degrees.
void add_families(Space& space, Choice c) {
    const bool within_host = space.ranks_of_host == 0 || c.tensor <= space.ranks_of_host;
    const int64_t of_data_rank = space.global_batch / c.data, layers = space.base.model.size("n_layers");
    for (const int64_t microbatch : divisors(of_data_rank)) {
        c.microbatch = microbatch, c.microbatches = of_data_rank / microbatch;
        for (const Pipelining& p : pipelinings(c.pipeline, layers, c.microbatches)) {
            c.schedule = p.schedule, c.stages_per_rank = p.stages_per_rank;
            for (const Sharing& s : sharings(c.tensor, within_host)) {
                c.sequence_parallel = s.sequence_parallel, c.async_tensor_parallel = s.async_tensor_parallel;
                for (const RecomputeMode mode : {RecomputeMode::None, RecomputeMode::Selective, RecomputeMode::Full}) {
                    c.recompute = mode;
                    if (allowed(space.base, c) && !space.members(c).empty()) space.families.push_back(c);
                }
            }
        }
    }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> settings_of(const Config& c) {
    const Config::Parallelism& p = c.parallelism;
    std::vector<std::pair<std::string, std::string>> out;
    const auto set = [&](const char* key, const std::string& value) { out.emplace_back(key, value); };
    const auto number = [&](const char* key, int64_t value) { set(key, std::to_string(value)); };
    number("cluster.ranks", c.cluster.ranks);
    number("training.global_batch_size", c.training.global_batch_size);
    number("training.local_batch_size", c.training.local_batch_size);
    number("parallelism.data_parallel_replicate_degree", p.data_parallel_replicate_degree);
    number("parallelism.data_parallel_shard_degree", p.data_parallel_shard_degree);
    number("parallelism.tensor_parallel_degree", p.tensor_parallel_degree);
    set("parallelism.sequence_parallel", flag(p.sequence_parallel));
    set("parallelism.enable_async_tensor_parallel", flag(p.enable_async_tensor_parallel));
    number("parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree);
    set("parallelism.pipeline_parallel_schedule", p.pipeline_parallel_schedule);
    number("parallelism.pipeline_parallel_microbatch_size", p.pipeline_parallel_microbatch_size);
    number("parallelism.pipeline_parallel_layers_per_stage", p.pipeline_parallel_layers_per_stage);
    number("parallelism.pipeline_parallel_first_stage_less_layers", p.pipeline_parallel_first_stage_less_layers);
    number("parallelism.pipeline_parallel_last_stage_less_layers", p.pipeline_parallel_last_stage_less_layers);
    number("parallelism.prefetch", p.prefetch);
    set("partition.preset", compile::word_of(c.partition.preset));
    set("partition.quantized_weights", compile::word_of(c.partition.quantized_weights));
    set("partition.quantized_gradients", compile::word_of(c.partition.quantized_gradients));
    set("activation_checkpoint.mode", compile::word_of(c.activation_checkpoint.mode));
    if (c.activation_checkpoint.mode == RecomputeMode::Selective) set("activation_checkpoint.selective_ac_option", "op");
    if (c.activation_checkpoint.mode == RecomputeMode::Budget)
        number("activation_checkpoint.budget_bytes", c.activation_checkpoint.budget_bytes);
    return out;
}

compile::Config with(const Config& base, const Choice& c, int64_t global_batch) {
    Config out = base;
    Config::Parallelism& p = out.parallelism;
    out.cluster.ranks = c.ranks();
    out.training.global_batch_size = global_batch, out.training.local_batch_size = c.microbatch;
    p.data_parallel_replicate_degree = c.replicate, p.data_parallel_shard_degree = c.shard();
    p.tensor_parallel_degree = c.tensor, p.sequence_parallel = c.sequence_parallel;
    p.enable_async_tensor_parallel = c.async_tensor_parallel;
    p.pipeline_parallel_degree = c.pipeline, p.pipeline_parallel_schedule = c.schedule;
    p.pipeline_parallel_schedule_csv.clear(), p.module_fqns_per_model_part.clear();
    p.pipeline_parallel_microbatch_size = c.microbatch, p.prefetch = c.prefetch;
    const int64_t most = schedules::find_schedule(c.schedule).max_stages_per_rank;
    const bool by_cost = c.stages_per_rank == std::min(most, kMostCutByCost);
    p.pipeline_parallel_layers_per_stage =
        by_cost || c.pipeline == 1 ? 0 : base.model.size("n_layers") / (c.pipeline * c.stages_per_rank);
    p.pipeline_parallel_first_stage_less_layers = p.pipeline_parallel_last_stage_less_layers = by_cost ? -1 : 0;
    if (c.partition == PartitionPreset::None) out.partition = {};  // replicated, whatever the recipe splits
    // What a preset quantizes is arithmetic, which stays.
    const bool quantizes = base.partition.preset == PartitionPreset::ZeroPp && c.partition != PartitionPreset::None;
    for (auto [own, of_preset] : {std::pair{&out.partition.quantized_weights, compile::Quantized::Int8},
                                  std::pair{&out.partition.quantized_gradients, compile::Quantized::Int4}})
        if (quantizes && *own == compile::Quantized::Default) *own = of_preset;
    out.partition.preset = c.partition;
    out.activation_checkpoint.mode = c.recompute;
    out.activation_checkpoint.selective_ac_option = {c.recompute == RecomputeMode::Selective ? 0 : 2};
    out.activation_checkpoint.budget_bytes = c.budget_bytes;
    return out;
}

Choice choice_of(const Config& config, const compile::Layout& layout) {
    const Config::Parallelism& p = config.parallelism;
    Choice c;
    c.tensor = layout.mesh.degree(mesh::Axis::tp), c.pipeline = layout.mesh.degree(mesh::Axis::pp);
    c.data = layout.data_ranks, c.replicate = layout.mesh.degree(mesh::Axis::dp_replicate);
    c.microbatch = layout.local_batch, c.microbatches = layout.microbatches;
    if (c.pipeline > 1) c.schedule = std::string(schedules::find_schedule(p.pipeline_parallel_schedule).name);
    c.recompute = config.activation_checkpoint.mode, c.budget_bytes = config.activation_checkpoint.budget_bytes;
    c.partition = c.shard() == 1                                        ? PartitionPreset::None
                  : config.partition.preset == PartitionPreset::Default ? PartitionPreset::Zero3
                                                                        : config.partition.preset;
    c.prefetch = p.prefetch;
    c.sequence_parallel = c.tensor == 1 || p.sequence_parallel, c.async_tensor_parallel = p.enable_async_tensor_parallel;
    return c;
}

std::string text_of(const Choice& c) {
    std::string out = fmt::format("tp {}", c.tensor);
    if (c.tensor > 1 && !c.sequence_parallel) out += " no-sp";
    if (c.async_tensor_parallel) out += " async";
    out += fmt::format(" pp {}", c.pipeline);
    if (c.pipeline > 1) out += " " + c.schedule;
    if (c.stages_per_rank > 1) out += fmt::format(" x{}", c.stages_per_rank);
    out += c.replicate > 1 && c.shard() > 1 ? fmt::format(" dp {}x{}", c.replicate, c.shard()) : fmt::format(" dp {}", c.data);
    if (c.data > 1) out += " " + compile::word_of(c.partition);
    out += fmt::format(" mb {} x {}", c.microbatch, c.microbatches);
    out += " " + compile::word_of(c.recompute);
    if (c.partition == PartitionPreset::Zero3 && c.prefetch != 1) out += fmt::format(" prefetch {}", c.prefetch);
    return out;
}

std::vector<Choice> Space::members(const Choice& family) const {
    std::vector<Choice> out;
    const Config::Partition& p = base.partition;
    const auto names = [](const compile::Split& s) { return s.over != compile::Split::Over::Preset; };
    const bool named = names(p.weights) || names(p.secondary_weights) || names(p.gradients) || names(p.optimizer);
    const bool plain = !named && p.preset != PartitionPreset::ZeroPp && p.quantized_weights == compile::Quantized::Default &&
                       p.quantized_gradients == compile::Quantized::Default;
    const auto add = [&](const Choice& c) {
        const bool of_levels = c.partition > PartitionPreset::Zero3;
        const auto exists = [&] { return !compile::refusal_of(compile::layout_of(with(base, c, global_batch), dims)); };
        if (allowed_member(base, c) && ((plain && !of_levels) || exists())) out.push_back(c);
    };
    if (named) {  // levels that the recipe names leave nothing to choose
        Choice c = family;
        c.partition = p.preset == PartitionPreset::None ? PartitionPreset::Ddp : p.preset;
        for (const int64_t replicate : divisors(family.data)) {
            c.replicate = replicate;
            add(c);
        }
        return out;
    }
    const int64_t node = base.cluster.ranks_per_node / family.tensor;  // data ranks of one
    const bool on_nodes = node > 1 && family.data > node && family.data % node == 0;
    // Gradients of several microbatches in a pipeline are reduced once, with ZeRO-1 as with ZeRO-2, which takes no more bytes.
    const bool zero1_is_zero2 = family.pipeline > 1 && family.microbatches > 1 && !is_held(base, "partition.preset");
    for (const int64_t replicate : divisors(family.data)) {
        Choice c = family;
        c.replicate = replicate;
        if (c.shard() == 1) {
            c.partition = plain ? PartitionPreset::None : PartitionPreset::Zero3;
            add(c);
            continue;
        }
        for (const PartitionPreset preset : {PartitionPreset::Zero1, PartitionPreset::Zero2, PartitionPreset::Zero3}) {
            if (preset == PartitionPreset::Zero1 && zero1_is_zero2) continue;
            c.partition = preset;
            for (const int64_t prefetch : {0, 1, 2}) {  // of gathered weights
                c.prefetch = prefetch;
                if (preset == PartitionPreset::Zero3 || prefetch == 1) add(c);
            }
        }
        c.prefetch = 1;
        const PartitionPreset copied = p.preset == PartitionPreset::ZeroPp ? PartitionPreset::ZeroPp : PartitionPreset::Hpz;
        for (const PartitionPreset preset : {PartitionPreset::Mics, copied, PartitionPreset::ThreeLevel}) {
            c.partition = preset;
            if (on_nodes && replicate == 1) add(c);
        }
    }
    return out;
}

int64_t Space::size() const {
    int64_t out = 0;
    for (const Choice& f : families) out += static_cast<int64_t>(members(f).size());
    return out;
}

Space space_of(const Config& base, int64_t ranks, int64_t global_batch, int64_t ranks_of_host) {
    Space space{base, ranks, global_batch, ranks_of_host, compile::dims_of(base), {}, {}};
    std::map<std::string, int64_t> excluded;
    int64_t batch_divides = 0;
    for (const int64_t tensor : divisors(ranks)) {
        for (const int64_t pipeline : divisors(ranks / tensor)) {
            Choice c;
            c.tensor = tensor, c.pipeline = pipeline, c.data = ranks / tensor / pipeline;
            if (pipeline > base.model.size("n_layers") + 2) {
                ++excluded["more pipeline ranks than blocks"];
                continue;
            }
            if (global_batch % c.data != 0) {
                ++excluded["data ranks that do not divide the global batch"];
                continue;
            }
            c.microbatches = global_batch / c.data;
            const auto layout = compile::layout_of(with(base, c, global_batch), space.dims);
            if (const UserError* refusal = compile::refusal_of(layout)) {
                const bool is_of_batch = refusal->is(compile::kTooManyMicrobatches);
                ++excluded[is_of_batch ? "more microbatches than can be planned"
                                       : "tensor-parallel ranks that do not divide the model"];
                if (!is_of_batch) continue;
            }
            ++batch_divides;
            if (ranks_of_host > 0 && tensor > ranks_of_host)
                ++excluded
                    ["asynchronous tensor parallelism over hosts, whose messages cross a host's link once for each of its "
                     "ranks where a ring crosses it once"];
            add_families(space, c);
        }
    }
    for (const auto& [reason, families] : excluded) space.excluded.push_back({reason, families});
    if (batch_divides == 0)
        throw UserError(kNoneDividesBatch, "training.global_batch_size",
                        fmt::format("no number of data ranks that {} ranks can have divides training.global_batch_size = {}: "
                                    "choose a multiple of {} or of one of its divisors",
                                    ranks, global_batch, ranks));
    if (space.families.empty())
        throw UserError(kNoneHasHeldKeys, "parallelism",
                        fmt::format("no layout of {} ranks with {} sequences a step has the values that the flags hold: leave "
                                    "some of them out, or change --ranks",
                                    ranks, global_batch));
    return space;
}

}  // namespace lockstep::tune
