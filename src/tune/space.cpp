#include "tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "compile/recipe.h"
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
using mesh::Axis;

std::vector<int64_t> divisors(int64_t n) {
    std::vector<int64_t> out;
    for (int64_t d = 1; d <= n; ++d) {
        if (n % d == 0) out.push_back(d);
    }
    return out;
}

// Up to two stages a rank are cut by the cost of blocks; more by number of layers, as the key asks for.
constexpr int64_t kMostCutByCost = 2;

// A key that a search varies.
struct SearchedKey {
    const char* name;
    enum class Of { Family, Member } of;
    void (*put)(Config&, const Choice&);        // the choice's value
    bool (*has)(const Config&, const Choice&);  // is it the configuration's, or does the choice not need the key?
    void (*take)(Choice&, const Config&);       // the configuration's value
};

template <auto of_choice, auto section, auto field>
constexpr SearchedKey searched(const char* name, SearchedKey::Of of) {
    return {name, of, [](Config& c, const Choice& choice) { c.*section.*field = choice.*of_choice; },
            [](const Config& c, const Choice& choice) { return c.*section.*field == choice.*of_choice; },
            [](Choice& choice, const Config& c) { choice.*of_choice = c.*section.*field; }};
}

// A degree comes from the layout, where the configuration may leave it open.
template <Axis axis, auto field>
constexpr SearchedKey degree(const char* name, SearchedKey::Of of) {
    return {name, of, [](Config& c, const Choice& choice) { c.parallelism.*field = choice.degree(axis); },
            [](const Config& c, const Choice& choice) {
                return c.parallelism.*field == -1 || c.parallelism.*field == choice.degree(axis);
            },
            [](Choice&, const Config&) {}};
}

// Says something only where there are context ranks.
template <auto of_choice, auto field>
constexpr SearchedKey of_context(const char* name) {
    return {
        name, SearchedKey::Of::Family,
        [](Config& c, const Choice& choice) {
            if (choice.context() > 1) c.parallelism.*field = choice.*of_choice;
        },
        [](const Config& c, const Choice& choice) { return choice.context() == 1 || c.parallelism.*field == choice.*of_choice; },
        [](Choice& choice, const Config& c) {
            if (choice.context() > 1) choice.*of_choice = c.parallelism.*field;
        }};
}

std::string schedule_of(const Config& c) {
    return std::string(schedules::find_schedule(c.parallelism.pipeline_parallel_schedule).name);
}

void put_stages(Config& out, const Choice& c) {
    Config::Parallelism& p = out.parallelism;
    p.pipeline_parallel_schedule = c.schedule;
    p.pipeline_parallel_schedule_csv.clear(), p.module_fqns_per_model_part.clear();
    const int64_t most = schedules::find_schedule(c.schedule).max_stages_per_rank;
    const bool by_cost = c.stages_per_rank == std::min(most, kMostCutByCost);
    p.pipeline_parallel_layers_per_stage =
        by_cost || c.pipeline() == 1 ? 0 : out.model.size("n_layers") / (c.pipeline() * c.stages_per_rank);
    p.pipeline_parallel_first_stage_less_layers = p.pipeline_parallel_last_stage_less_layers = by_cost ? -1 : 0;
}

void put_partition(Config& out, const Choice& c) {
    const PartitionPreset base = out.partition.preset;
    if (c.partition == PartitionPreset::None) out.partition = {};  // replicated, whatever the recipe splits
    // What a preset quantizes is arithmetic, which stays.
    const bool quantizes = base == PartitionPreset::ZeroPp && c.partition != PartitionPreset::None;
    for (auto [own, of_preset] : {std::pair{&out.partition.quantized_weights, compile::Quantized::Int8},
                                  std::pair{&out.partition.quantized_gradients, compile::Quantized::Int4}})
        if (quantizes && *own == compile::Quantized::Default) *own = of_preset;
    out.partition.preset = c.partition;
}

void put_recompute(Config& out, const Choice& c) {
    out.activation_checkpoint.mode = c.recompute;
    out.activation_checkpoint.selective_ac_option = {c.recompute == RecomputeMode::Selective ? 0 : 2};
    out.activation_checkpoint.budget_bytes = c.budget_bytes;
}

using P = Config::Parallelism;
using enum SearchedKey::Of;

// All keys that a search varies: a new axis, or a new technique, is a row, and a value that add_families or members() tries.
constexpr SearchedKey kSearched[] = {
    degree<Axis::dp_replicate, &P::data_parallel_replicate_degree>("parallelism.data_parallel_replicate_degree", Member),
    degree<Axis::dp_shard, &P::data_parallel_shard_degree>("parallelism.data_parallel_shard_degree", Member),
    degree<Axis::tp, &P::tensor_parallel_degree>("parallelism.tensor_parallel_degree", Family),
    degree<Axis::cp, &P::context_parallel_degree>("parallelism.context_parallel_degree", Family),
    degree<Axis::pp, &P::pipeline_parallel_degree>("parallelism.pipeline_parallel_degree", Family),
    of_context<&Choice::rotate_method, &P::context_parallel_rotate_method>("parallelism.context_parallel_rotate_method"),
    of_context<&Choice::head_degree, &P::context_parallel_head_degree>("parallelism.context_parallel_head_degree"),
    {"parallelism.sequence_parallel", Family,
     [](Config& c, const Choice& choice) { c.parallelism.sequence_parallel = choice.sequence_parallel; },
     [](const Config& c, const Choice& choice) {
         return c.parallelism.sequence_parallel == (choice.sequence_parallel || choice.tensor() == 1);
     },
     [](Choice& choice, const Config& c) { choice.sequence_parallel = choice.tensor() == 1 || c.parallelism.sequence_parallel; }},
    searched<&Choice::async_tensor_parallel, &Config::parallelism, &P::enable_async_tensor_parallel>(
        "parallelism.enable_async_tensor_parallel", Family),
    {"parallelism.pipeline_parallel_schedule", Family, put_stages,
     [](const Config& c, const Choice& choice) { return choice.pipeline() == 1 || schedule_of(c) == choice.schedule; },
     [](Choice& choice, const Config& c) {
         if (choice.pipeline() > 1) choice.schedule = schedule_of(c);
     }},
    // A microbatch has one key with a pipeline, and another without. Its size comes from the layout.
    {"training.local_batch_size", Family,
     [](Config& c, const Choice& choice) { c.training.local_batch_size = choice.microbatch; },
     [](const Config& c, const Choice& choice) {
         return choice.pipeline() > 1 || c.training.local_batch_size == choice.microbatch;
     },
     [](Choice&, const Config&) {}},
    {"parallelism.pipeline_parallel_microbatch_size", Family,
     [](Config& c, const Choice& choice) { c.parallelism.pipeline_parallel_microbatch_size = choice.microbatch; },
     [](const Config& c, const Choice& choice) {
         return choice.pipeline() == 1 || c.parallelism.pipeline_parallel_microbatch_size == choice.microbatch;
     },
     [](Choice&, const Config&) {}},
    {"activation_checkpoint.mode", Family, put_recompute,
     [](const Config& c, const Choice& choice) { return c.activation_checkpoint.mode == choice.recompute; },
     [](Choice& choice, const Config& c) {
         choice.recompute = c.activation_checkpoint.mode, choice.budget_bytes = c.activation_checkpoint.budget_bytes;
     }},
    {"partition.preset", Member, put_partition,
     [](const Config& c, const Choice& choice) { return c.partition.preset == choice.partition; },
     [](Choice& choice, const Config& c) {
         choice.partition = choice.shard() * choice.context() == 1           ? PartitionPreset::None
                            : c.partition.preset == PartitionPreset::Default ? PartitionPreset::Zero3
                                                                             : c.partition.preset;
     }},
    searched<&Choice::prefetch, &Config::parallelism, &P::prefetch>("parallelism.prefetch", Member),
};

// What the rows' values set besides their own keys.
constexpr const char* kFollowing[] = {
    "cluster.ranks",
    "training.global_batch_size",
    "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers",
    "partition.quantized_weights",
    "partition.quantized_gradients",
};

// Has each key that a flag holds the choice's value?
bool is_allowed(const Config& base, const Choice& c, SearchedKey::Of of) {
    return std::ranges::all_of(
        kSearched, [&](const SearchedKey& key) { return key.of != of || !is_held(base, key.name) || key.has(base, c); });
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

// Does the search try this many context ranks? The recipe's number in any case, and others that leave a rank a long sequence:
// of short ones, data ranks take more, and exchange nothing in attention.
bool tries_context(const Config& base, int64_t degree) {
    constexpr int64_t kLong = 8192;  // tokens of a rank
    return degree == 1 || degree == base.parallelism.context_parallel_degree || base.training.seq_len / degree >= kLong;
}

// All degrees of the axes that divide the model, the first axis slowest; the other ranks are data ranks.
std::vector<Choice> choices_of_degrees(const Config& base, int64_t ranks) {
    std::vector<Choice> out = {{}};
    for (const Axis axis : {Axis::tp, Axis::cp, Axis::pp}) {
        std::vector<Choice> further;
        for (const Choice& c : out) {
            for (const int64_t degree : divisors(ranks / c.ranks())) {
                if (axis == Axis::cp && !tries_context(base, degree)) continue;
                further.push_back(c);
                further.back().degree(axis) = degree;
            }
        }
        out = std::move(further);
    }
    for (Choice& c : out) c.degree(Axis::dp_shard) = ranks / c.ranks();
    return out;
}

// How context ranks may meet. Where some are on heads, those are of one host.
struct Meeting {
    compile::RotateMethod method = compile::RotateMethod::Allgather;
    int64_t head_degree = 0;
};
std::vector<Meeting> meetings(const Space& space, const Choice& c) {
    using enum compile::RotateMethod;
    if (c.context() == 1) return {{}};
    std::vector<Meeting> out = {{Allgather, 0}, {Alltoall, 0}, {Ulysses, 0}};
    for (const int64_t heads : divisors(c.context())) {
        const bool within_host = space.ranks_of_host > 0 && c.tensor() * heads == space.ranks_of_host;
        if (heads > 1 && heads < c.context() && within_host) out.push_back({Alltoall, heads});
    }
    std::erase_if(out, [&](const Meeting& m) {
        Choice of = c;
        of.rotate_method = m.method, of.head_degree = m.head_degree;
        return compile::refusal_of(compile::layout_of(with(space.base, of, space.global_batch), space.dims)) != nullptr;
    });
    return out;
}

// Adds the families of these degrees.
void add_families(Space& space, Choice c) {
    const bool within_host = space.ranks_of_host == 0 || c.tensor() <= space.ranks_of_host;
    const int64_t of_data_rank = space.global_batch / c.data(), layers = space.base.model.size("n_layers");
    for (const Meeting& m : meetings(space, c)) {
        c.rotate_method = m.method, c.head_degree = m.head_degree;
        for (const int64_t microbatch : divisors(of_data_rank)) {
            c.microbatch = microbatch, c.microbatches = of_data_rank / microbatch;
            for (const Pipelining& p : pipelinings(c.pipeline(), layers, c.microbatches)) {
                c.schedule = p.schedule, c.stages_per_rank = p.stages_per_rank;
                for (const Sharing& s : sharings(c.tensor(), within_host)) {
                    c.sequence_parallel = s.sequence_parallel, c.async_tensor_parallel = s.async_tensor_parallel;
                    for (const RecomputeMode mode : {RecomputeMode::None, RecomputeMode::Selective, RecomputeMode::Full}) {
                        c.recompute = mode;
                        if (is_allowed(space.base, c, Family) && !space.members(c).empty()) space.families.push_back(c);
                    }
                }
            }
        }
    }
}

}  // namespace

int64_t Choice::ranks() const { return std::accumulate(degrees.begin(), degrees.end(), int64_t{1}, std::multiplies<int64_t>()); }

mesh::Degrees Choice::of_states() const {
    Choice c = *this;
    c.degree(Axis::pp) = 1;
    return c.degrees;
}

mesh::Degrees Choice::of_blocks() const {
    Choice c = *this;
    for (const Axis axis : {Axis::pp, Axis::dp_replicate, Axis::dp_shard}) c.degree(axis) = 1;
    return c.degrees;
}

std::vector<std::pair<std::string, std::string>> settings_of(const Config& c) {
    std::vector<std::pair<std::string, std::string>> out;
    const auto add = [&](const char* name) {
        const compile::Value value = compile::find_key(name)->of(c);
        const std::string* word = std::get_if<std::string>(&value);
        out.emplace_back(name, word ? *word : compile::text_of(value));
    };
    for (const char* name : kFollowing) add(name);
    const bool has_context = c.parallelism.context_parallel_degree > 1;
    for (const SearchedKey& key : kSearched) {
        const bool is_of_context = std::string_view(key.name).starts_with("parallelism.context_parallel");
        if (!is_of_context || has_context || c.is_set(key.name)) add(key.name);
    }
    if (c.activation_checkpoint.mode == RecomputeMode::Selective) add("activation_checkpoint.selective_ac_option");
    if (c.activation_checkpoint.mode == RecomputeMode::Budget) add("activation_checkpoint.budget_bytes");
    return out;
}

compile::Config with(const Config& base, const Choice& c, int64_t global_batch) {
    Config out = base;
    out.cluster.ranks = c.ranks();
    out.training.global_batch_size = global_batch;
    for (const SearchedKey& key : kSearched) key.put(out, c);
    return out;
}

Choice choice_of(const Config& config, const compile::Layout& layout) {
    Choice c;
    c.degrees = layout.mesh.degrees;
    c.degree(Axis::island) = 1;
    c.microbatch = layout.local_batch, c.microbatches = layout.microbatches;
    for (const SearchedKey& key : kSearched) key.take(c, config);
    return c;
}

std::string text_of(const Choice& c) {
    std::string out = fmt::format("tp {}", c.tensor());
    if (c.tensor() > 1 && !c.sequence_parallel) out += " no-sp";
    if (c.async_tensor_parallel) out += " async";
    if (c.context() > 1) out += fmt::format(" cp {} {}", c.context(), compile::word_of(c.rotate_method));
    if (c.head_degree > 0) out += fmt::format(" heads {}", c.head_degree);
    out += fmt::format(" pp {}", c.pipeline());
    if (c.pipeline() > 1) out += " " + c.schedule;
    if (c.stages_per_rank > 1) out += fmt::format(" x{}", c.stages_per_rank);
    out +=
        c.replicate() > 1 && c.shard() > 1 ? fmt::format(" dp {}x{}", c.replicate(), c.shard()) : fmt::format(" dp {}", c.data());
    if (c.holders() > 1) out += " " + compile::word_of(c.partition);
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
        if (is_allowed(base, c, Member) && ((plain && !of_levels) || exists())) out.push_back(c);
    };
    if (named) {  // levels that the recipe names leave nothing to choose
        Choice c = family;
        c.partition = p.preset == PartitionPreset::None ? PartitionPreset::Ddp : p.preset;
        for (const int64_t replicate : divisors(family.data())) {
            c.set_replicate(replicate);
            add(c);
        }
        return out;
    }
    const int64_t node = base.cluster.ranks_per_node / family.tensor();  // ranks of one that hold the same parameters
    const bool on_nodes = node > 1 && family.holders() > node && family.holders() % node == 0;
    // Gradients of several microbatches in a pipeline are reduced once, with ZeRO-1 as with ZeRO-2, which takes no more bytes.
    const bool zero1_is_zero2 = family.pipeline() > 1 && family.microbatches > 1 && !is_held(base, "partition.preset");
    for (const int64_t replicate : divisors(family.data())) {
        Choice c = family;
        c.set_replicate(replicate);
        if (c.shard() * c.context() == 1) {
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
    for (const Choice& degrees : choices_of_degrees(base, ranks)) {
        Choice c = degrees;
        if (c.pipeline() > base.model.size("n_layers") + 2) {
            ++excluded["more pipeline ranks than blocks"];
            continue;
        }
        if (global_batch % c.data() != 0) {
            ++excluded["data ranks that do not divide the global batch"];
            continue;
        }
        c.microbatches = global_batch / c.data();
        const auto layout = compile::layout_of(with(base, c, global_batch), space.dims);
        if (const UserError* refusal = compile::refusal_of(layout)) {
            const bool is_of_batch = refusal->is(compile::kTooManyMicrobatches);
            ++excluded[is_of_batch ? "more microbatches than can be planned"
                                   : "tensor-parallel ranks that do not divide the model"];
            if (!is_of_batch) continue;
        }
        ++batch_divides;
        if (ranks_of_host > 0 && c.tensor() > ranks_of_host)
            ++excluded
                ["asynchronous tensor parallelism over hosts, whose messages cross a host's link once for each of its "
                 "ranks where a ring crosses it once"];
        add_families(space, c);
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
