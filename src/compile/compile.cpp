#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/parallel.h"
#include "compile/conversion.h"
#include "compile/limits.h"
#include "compile/recompute_budget.h"
#include "compile/runner.h"
#include "compile/types.h"
#include "models/model.h"
#include "passes/assign_stages.h"
#include "passes/async_tensor_parallel.h"
#include "passes/attach_objective.h"
#include "passes/bind_sizes.h"
#include "passes/cache_keys.h"
#include "passes/differentiate.h"
#include "passes/float8_products.h"
#include "passes/fuse_loss.h"
#include "passes/keep_preactivations.h"
#include "passes/mark_one_document.h"
#include "passes/overlap.h"
#include "passes/pack_attention.h"
#include "passes/pack_products.h"
#include "passes/part_routines.h"
#include "passes/partition_parameters.h"
#include "passes/plan_memory.h"
#include "passes/recompute.h"
#include "passes/ring_attention.h"
#include "passes/schedule.h"
#include "passes/select_kernels.h"
#include "passes/set_precision.h"
#include "passes/shard.h"
#include "passes/split_backward.h"

namespace lockstep::compile {
namespace {

using ir::EntryKind;
using P = ir::Program;

std::vector<EntryKind> entries_of(const Config& config, const CompileOptions& options) {
    if (!options.entries.empty()) return options.entries;
    if (config.validation.enable) return {EntryKind::Train, EntryKind::Eval};
    return {EntryKind::Train};
}

bool generates(const CompileOptions& options) {
    return std::find(options.entries.begin(), options.entries.end(), EntryKind::Prefill) != options.entries.end();
}

std::optional<UserError> generates_in_a_pipeline(const Config& config, const CompileOptions& options) {
    if (!generates(options) || config.parallelism.pipeline_parallel_degree == 1) return std::nullopt;
    return UserError("pipeline.generation", "parallelism.pipeline_parallel_degree",
                     "generation runs without a pipeline: set parallelism.pipeline_parallel_degree to 1, and use tensor "
                     "parallelism if the model does not fit");
}

// No product of a model's sizes leaves 64 bits: neither a tensor's, nor the sum of all over layers and microbatches.
std::optional<UserError> too_large(const P& unbound, const Layout& layout) {
    double all = 0;
    for (const ir::Routine& r : unbound.routines) {
        if (r.kind != ir::RoutineKind::Forward || r.entry != unbound.routines.front().entry) continue;
        std::vector<ir::Dim> dims;
        for (const ir::Dim& d : r.dims) dims.push_back(passes::bound(d, layout.sizes()));
        const double times = static_cast<double>(unbound.block(r.block)->count) * static_cast<double>(layout.microbatches);
        for (const ir::Tensor& t : r.tensors) {
            double elements = 1;
            for (const ir::DimId d : t.dims) elements *= static_cast<double>(dims[static_cast<size_t>(d)].size);
            all += 8 * elements * times;
            if (elements <= kMostElements && all <= kMostBytes) continue;
            std::string sizes;
            for (const ir::DimId d : t.dims) {
                const ir::Dim& dim = dims[static_cast<size_t>(d)];
                sizes += fmt::format("{}{} {}", sizes.empty() ? "" : " x ", dim.name, dim.size);
            }
            return UserError("recipe.too_large", "model",
                             fmt::format("{} of {} has {} = {:.3g} elements over all ranks, {} times in a step: at most {:.3g} "
                                         "elements of a tensor and {:.3g} bytes of all can be planned; lower one of these sizes",
                                         t.name, r.block, sizes, elements, times, kMostElements, kMostBytes));
        }
    }
    return std::nullopt;
}

// Do both have the same prefix?
bool same_prefix(const Config& a, const Config& b) {
    const auto read = [](const Config& c) {
        const Config::Training& t = c.training;
        return std::tie(c.model, c.linear_float8, c.linear_mx, c.quantize, c.validation.enable, t.seq_len, t.dtype,
                        t.mixed_precision_param, t.mixed_precision_norm, t.logits, t.fp32_residual_connection, t.pack_products,
                        t.loss_scale, t.initial_loss_scale, t.min_loss_scale, t.loss_scale_window);
    };
    return read(a) == read(b);
}

bool keeps_groups_whole(const Config& config, const std::vector<ir::Dim>& dims) {
    const auto is_kv_heads = [](const ir::Dim& d) { return d.role == ir::DimRole::KvHeads; };
    const auto heads = std::find_if(dims.begin(), dims.end(), is_kv_heads);
    return heads == dims.end() || heads->size % std::max<int64_t>(config.parallelism.tensor_parallel_degree, 1) == 0;
}

// Does a product with GELU and its bias have a kernel, in the type of activations? Where asynchronous tensor parallelism cuts
// products into blocks, no product makes GELU's operand.
bool fuses_gelu(const Config& config, const ops::KernelCatalog& catalog) {
    if (config.parallelism.enable_async_tensor_parallel && config.parallelism.tensor_parallel_degree > 1) return false;
    const Dtype stored = types_of(config).precision.narrow;
    return std::any_of(catalog.entries.begin(), catalog.entries.end(),
                       [&](const ops::KernelEntry& e) { return e.op == "linear_gelu" && e.dtype == stored; });
}

// All that a prefix reads of a layout or of a catalog.
PrefixAnswers answers_of(const Config& config, const std::vector<ir::Dim>& dims, const ops::KernelCatalog& catalog) {
    return {keeps_groups_whole(config, dims), config.parallelism.context_parallel_degree > 1, fuses_gelu(config, catalog)};
}

using SaveLists = std::vector<passes::SaveList>;

// What the passes behind the choice of save lists read, apart from the program.
struct Inputs {
    const Config& config;
    const CompileOptions& options;
    const Layout& layout;
    const StagePlan& plan;
    bool names_buffers = options.place_buffers;
};

// The passes from `recompute` on. The search for save lists runs them, too. Returns the stages of the programs.
Stages lower(Runner& run, const Inputs& in, const SaveLists& save_lists) {
    const Config& config = in.config;
    const CompileOptions& options = in.options;
    const Layout& layout = in.layout;
    const StagePlan& plan = in.plan;
    const Backwards backwards = backwards_of(plan.table);
    const ops::KernelCatalog& catalog = options.catalog;
    Stages stages;

    run("recompute", [&](P p) { return passes::recompute(std::move(p), save_lists); });
    run("split_backward", [&](P p) {
        if (!backwards.in_parts) return p;
        return passes::split_backward(std::move(p), backwards.whole ? passes::WholeBackward::Keep : passes::WholeBackward::Drop);
    });
    run("ring_attention", [](P p) { return passes::ring_attention(std::move(p)); });
    run("async_tensor_parallel",
        [&](P p) { return config.parallelism.enable_async_tensor_parallel ? passes::async_tensor_parallel(std::move(p)) : p; });
    run("part_routines", [](P p) { return passes::part_routines(std::move(p)); });
    run("select_kernels", [&](P p) {
        if (!config.runtime.deterministic) p = passes::allow_any_order(std::move(p));
        return passes::select_kernels(std::move(p), catalog);
    });
    if (run.reaches("assign_stages")) stages = stages_of(plan, run.whole());
    run("assign_stages",
        [&](P whole) { return passes::assign_stages(std::move(whole), stages.cut, catalog, options.only_pipeline_rank); });
    run("partition_parameters", [&](P p) { return passes::partition_parameters(std::move(p), layout.partition, catalog); });
    run("schedule", [&](P p) {
        passes::ScheduleOptions o{{}, layout.windows.reduce_gradients, layout.windows.resident_stages};
        o.names_buffers = in.names_buffers;
        const bool trains = p.routine(ir::RoutineKind::Stats, "") != nullptr;
        if (trains && layout.partition.outer) o.fragments = layout.partition.outer->fragments;
        if (!stages.rows.empty()) o.rows = stages.rows[static_cast<size_t>(p.pipeline_rank)];
        return passes::schedule(std::move(p), o);
    });
    run("overlap", [&](P p) { return passes::overlap(std::move(p), {config.parallelism.prefetch}); });
    run("route", [&](P p) { return passes::route(std::move(p), options.route); });
    run("plan_memory",
        [&](P p) { return options.place_buffers ? passes::plan_memory(std::move(p)) : passes::size_memory(std::move(p)); });
    return stages;
}

// Of a program with fewer microbatches than the step: with the inputs of all.
int64_t arena_of(const P& program, ComputesIn memory, int64_t microbatches) {
    int64_t inputs = 0;
    for (const ir::Buffer& b : program.buffers) inputs += b.kind == ir::MemoryKind::Input && b.resident ? b.bytes : 0;
    return bytes_computed_in(program, memory) + inputs / program.microbatches * (microbatches - program.microbatches);
}

// The programs of all pipeline ranks that some save lists lead to.
struct Lowered {
    SaveLists save_lists;
    Stages stages;
    Programs programs;
    std::vector<PassReport> passes;
};

std::vector<size_t> fullest_first(const std::vector<int64_t>& bytes) {
    std::vector<size_t> order(bytes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
    return order;
}

// Gives programs without offsets theirs, those of the fullest first, a few at a time; none are needed once a program exceeds
// `enough_bytes`. Returns the arenas.
std::vector<int64_t> place_until(Programs& programs, std::optional<int64_t> enough_bytes,
                                 const std::function<int64_t(const P&)>& bytes_of) {
    constexpr size_t kAtATime = 4;  // the same everywhere, as the result depends on it
    std::vector<int64_t> bytes;
    for (const P& p : programs) bytes.push_back(bytes_of(p));
    const std::vector<size_t> order = fullest_first(bytes);
    const auto exceeds = [&](int64_t b) { return enough_bytes && b > *enough_bytes; };
    for (size_t first = 0; first < order.size() && std::none_of(bytes.begin(), bytes.end(), exceeds); first += kAtATime) {
        parallel_for(std::min(kAtATime, order.size() - first), [&](size_t i) {
            P& p = programs[order[first + i]];
            p = passes::place_buffers(std::move(p));
            bytes[order[first + i]] = bytes_of(p);
        });
    }
    return bytes;
}

// What activation_checkpoint asks for; with a budget, by planning the memory of each choice. `of_step` has all microbatches.
// `last`: of the last lists that were planned exactly for all pipeline ranks.
OrRefusal<SaveLists> choose_save_lists(const P& placed, const Inputs& in, const Layout& of_step, std::optional<Lowered>& last) {
    Layout fewer = in.layout;
    std::optional<StagePlan> plan_of_fewer;  // once a budget asks
    const bool plans_memory = in.options.stop_after.empty() || in.options.stop_after == pass_names().back();
    const auto arena_bytes = [&](const SaveLists& lists, const Sizing& sizing) {
        if (!sizing.exact && !plan_of_fewer) {
            fewer.microbatches = count_of(Microbatches::Fullest, in.config, of_step, placed.blocks);
            plan_of_fewer = or_throw(plan_stages(in.config, fewer, placed.blocks));
        }
        if (sizing.exact && !sizing.pipeline_rank) last.reset();
        const Layout& layout = sizing.exact ? in.layout : fewer;
        CompileOptions quiet = in.options;
        quiet.verify = quiet.report = quiet.place_buffers = false;
        quiet.only_pipeline_rank = sizing.pipeline_rank;
        Programs programs(1, placed);
        programs[0].microbatches = layout.microbatches;
        Runner run(quiet, std::move(programs));
        Lowered lowered{lists, {}, {}, {}};
        lowered.stages = lower(
            run, {in.config, quiet, layout, sizing.exact ? in.plan : *plan_of_fewer, sizing.exact && in.options.place_buffers},
            lists);
        lowered.programs = run.take_programs(), lowered.passes = run.take_reports();
        const auto bytes_of = [&](const P& p) { return arena_of(p, in.options.memory, of_step.microbatches); };
        std::vector<int64_t> out;
        if (sizing.exact && in.options.place_buffers && plans_memory)
            out = place_until(lowered.programs, sizing.enough_bytes, bytes_of);
        else std::transform(lowered.programs.begin(), lowered.programs.end(), std::back_inserter(out), bytes_of);
        if (sizing.exact && !sizing.pipeline_rank) last = std::move(lowered);
        return out;
    };
    passes::OpSeconds time_s = passes::Rates{};
    if (in.options.catalog.costs) {
        time_s = [&](const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
            return passes::expected_s(mesh, r, op, in.options.catalog);
        };
    }
    return save_lists(in.config.activation_checkpoint, placed, arena_bytes, time_s);
}

std::optional<UserError> does_not_fit(const Compiled& compiled, const CompileOptions& options) {
    const int64_t needed = compiled.arena_bytes();
    if (!options.capacity_bytes || needed <= *options.capacity_bytes) return std::nullopt;
    return UserError("check.does_not_fit", "training.local_batch_size",
                     fmt::format("a rank needs {} bytes and has {}", needed, *options.capacity_bytes));
}

}  // namespace

P build_blocks(const Config& config) {
    models::Model model = models::find_model(config.model.name)->build(config.model.shape, config.training.seq_len);
    P program;
    program.blocks = std::move(model.blocks);
    program.params = std::move(model.params);
    program.routines = std::move(model.routines);
    const std::optional<Float8> float8 = config.float8();
    return float8 ? convert(std::move(program), *float8, config.training.pack_products) : program;
}

int64_t bytes_computed_in(const ir::Program& program, ComputesIn memory) {
    return program.arena_bytes[Place::Device] + (memory == ComputesIn::HostMemory ? program.arena_bytes[Place::Host] : 0);
}
int64_t bytes_beside(const ir::Program& program, ComputesIn memory) {
    return memory == ComputesIn::HostMemory ? 0 : program.arena_bytes[Place::Host];
}

const std::vector<std::string>& pass_names() {
    static const std::vector<std::string> names = {"build_blocks",
                                                   "pack_products",
                                                   "keep_preactivations",
                                                   "attach_objective",
                                                   "cache_keys",
                                                   "differentiate",
                                                   "set_precision",
                                                   "bind_sizes",
                                                   "float8_products",
                                                   "shard",
                                                   "mark_one_document",
                                                   "pack_attention",
                                                   "fuse_loss",
                                                   "recompute",
                                                   "split_backward",
                                                   "ring_attention",
                                                   "async_tensor_parallel",
                                                   "part_routines",
                                                   "select_kernels",
                                                   "assign_stages",
                                                   "partition_parameters",
                                                   "schedule",
                                                   "overlap",
                                                   "route",
                                                   "plan_memory"};
    return names;
}

const std::vector<std::string>& optional_passes() {
    static const std::vector<std::string> names = {
        "pack_products",  "keep_preactivations", "float8_products", "mark_one_document",
        "pack_attention", "fuse_loss",           "recompute",       "overlap"};
    return names;
}

Prefix compile_prefix(const Config& config, const CompileOptions& options) {
    Prefix prefix;
    prefix.config = config;
    prefix.dims = dims_of(config);
    prefix.answers = answers_of(config, prefix.dims, options.catalog);
    Runner run(options, Programs(1));
    // A scale of a tensor depends on all its tokens, so that a token which is decoded alone would have another one.
    Config of_blocks = config;
    if (generates(options)) of_blocks.model.converters.clear();
    run("build_blocks", [&](P) { return build_blocks(of_blocks); });
    Types types = types_of(config);
    if (!options.is_narrow_by_default && !config.training.logits) types.precision.narrow_logits = false;
    types.precision.wide_key_gradients = prefix.answers.shares_keys;
    run("pack_products", [&](P p) {
        return config.training.pack_products ? passes::pack_products(std::move(p), {prefix.answers.keeps_groups_whole}) : p;
    });
    run("keep_preactivations", [&](P p) { return prefix.answers.fuses_gelu ? passes::keep_preactivations(std::move(p)) : p; });
    run("attach_objective", [&](P p) {
        return passes::attach_objective(std::move(p), {entries_of(config, options), types.loss_scaling});
    });
    run("cache_keys", [&](P p) { return passes::cache_keys(std::move(p), {}); });
    run("differentiate", [&](P p) { return passes::differentiate(std::move(p)); });
    run("set_precision", [&](P p) { return passes::set_precision(std::move(p), types.precision); });
    prefix.stopped = run.has_stopped();
    prefix.program = std::move(run.take_programs()[0]);
    prefix.passes = run.take_reports();
    return prefix;
}

const Prefix& Prefixes::of(const Config& config) {
    const PrefixAnswers answers = answers_of(config, first_.dims, options_.catalog);
    if (answers == first_.answers) return first_;
    const std::lock_guard lock(mutex_);
    const auto known = others_.find(answers);
    return known != others_.end() ? known->second : others_.emplace(answers, compile_prefix(config, options_)).first->second;
}

OrRefusal<Compiled> compile(const Prefix& prefix, const Config& config, const CompileOptions& options) {
    ensure(same_prefix(prefix.config, config), "compile: the prefix is of another model, sequence length or element types");
    OrRefusal<Layout> legal = layout_of(config, prefix.dims);
    if (const UserError* refusal = refusal_of(legal)) return *refusal;
    Compiled out;
    out.memory = options.memory;
    out.layout = std::get<Layout>(std::move(legal));
    if (!options.is_narrow_by_default && config.training.mixed_precision_weights == NarrowWeights::Auto)
        out.layout.partition.keeps_narrow = false;
    Layout layout = out.layout;
    layout.microbatches = count_of(options.microbatches, config, layout, prefix.program.blocks);
    OrRefusal<StagePlan> plan = plan_stages(config, layout, prefix.program.blocks);
    if (const UserError* refusal = refusal_of(plan)) return *refusal;
    if (const auto refusal = generates_in_a_pipeline(config, options)) return *refusal;
    if (const auto refusal = too_large(prefix.program, layout)) return *refusal;
    if (const auto refusal = cuts_blocks(prefix.program, config, layout)) return *refusal;
    const Inputs in{config, options, layout, std::get<StagePlan>(plan)};

    if (answers_of(config, prefix.dims, options.catalog) != prefix.answers)
        return compile(compile_prefix(config, options), config, options);

    out.passes = prefix.passes;
    if (prefix.stopped) {
        out.programs = {prefix.program};
        return out;
    }
    Runner run(options, {prefix.program});
    run("bind_sizes", [&](P p) { return passes::bind_sizes(std::move(p), layout.sizes()); });
    run("float8_products", [&](P p) {
        if (layout.scale_sequences == 0) return p;
        const Float8 float8 = *config.float8();
        const passes::Float8Options o{float8.recipe,
                                      layout.scale_sequences,
                                      layout.scale_context_blocks,
                                      config.training.pack_products,
                                      float8.fsdp_gather,
                                      layout.partition.quantized_weights != 0};
        return passes::float8_products(std::move(p), o);
    });
    run("shard", [&](P p) { return passes::shard(std::move(p), {layout.sequence_parallel, layout.context}); });
    // Without document masks the loader gives windows: one document each (planning/run_data.cpp).
    run("mark_one_document", [&](P p) { return config.training.document_mask ? p : passes::mark_one_document(std::move(p)); });
    run("pack_attention", [&](P p) { return passes::pack_attention(std::move(p), options.catalog); });
    run("fuse_loss", [&](P p) {
        return config.training.fuse_loss ? passes::fuse_loss(std::move(p), {loss_chunk_tokens(config, options.catalog)}) : p;
    });
    OrRefusal<SaveLists> lists;
    std::optional<Lowered> last;
    if (run.reaches("recompute")) lists = choose_save_lists(run.whole(), in, out.layout, last);
    if (const UserError* refusal = refusal_of(lists)) return *refusal;
    const bool are_lowered = last && last->save_lists == std::get<SaveLists>(lists) && !options.verify && !options.report &&
                             !options.only_pipeline_rank;
    if (are_lowered) out.stages = std::move(last->stages);
    else last.reset(), out.stages = lower(run, in, std::get<SaveLists>(lists));

    out.programs = are_lowered ? std::move(last->programs) : run.take_programs();
    for (PassReport& report : run.take_reports()) out.passes.push_back(std::move(report));
    if (are_lowered) std::move(last->passes.begin(), last->passes.end(), std::back_inserter(out.passes));
    if (const auto refusal = does_not_fit(out, options)) return *refusal;
    return out;
}

void place_fullest(Compiled& compiled) {
    constexpr size_t kAtATime = 2;      // the same everywhere, as the result depends on it
    constexpr double kMoreGaps = 0.02;  // of a rank's bytes: what may be lost to gaps in addition to twice what others lose
    std::vector<int64_t> least;
    for (const P& p : compiled.programs) least.push_back(compiled.arena_bytes(p));
    const std::vector<size_t> order = fullest_first(least);
    int64_t most = 0;
    double gaps = 0;
    for (size_t first = 0; first < order.size(); first += kAtATime) {
        const auto next = static_cast<double>(least[order[first]]);
        if ((1 + kMoreGaps + 2 * gaps) * next < static_cast<double>(most)) return;
        const size_t end = std::min(first + kAtATime, order.size());
        parallel_for(end - first, [&](size_t i) {
            P& p = compiled.programs[order[first + i]];
            p = passes::place_buffers(std::move(p));
        });
        for (size_t i = first; i < end; ++i) {
            const int64_t bytes = compiled.arena_bytes(compiled.programs[order[i]]);
            most = std::max(most, bytes);
            gaps = std::max(gaps, static_cast<double>(bytes) / static_cast<double>(least[order[i]]) - 1);
        }
    }
}

Compiled compile(const Config& config, const CompileOptions& options) {
    or_throw(layout_of(config, dims_of(config)));  // before the model is differentiated
    return or_throw(compile(compile_prefix(config, options), config, options));
}

Compiled compile(const Recipe& recipe, const CompileOptions& options) { return compile(config_of(recipe), options); }

std::vector<const ir::Program*> Compiled::of_ranks() const {
    std::vector<const ir::Program*> out;
    for (int64_t r = 0; r < layout.ranks; ++r) out.push_back(&of_rank(r));
    return out;
}

double Compiled::microbatches_for_each() const {
    return static_cast<double>(layout.microbatches) / static_cast<double>(programs.at(0).microbatches);
}

int64_t Compiled::arena_bytes(const ir::Program& program) const { return arena_of(program, memory, layout.microbatches); }

int64_t Compiled::arena_bytes() const {
    int64_t most = 0;
    for (const ir::Program& p : programs) most = std::max(most, arena_bytes(p));
    return most;
}

int64_t Compiled::host_bytes() const {
    int64_t most = 0;
    for (const ir::Program& p : programs) most = std::max(most, bytes_beside(p, memory));
    return most;
}

int64_t Compiled::all_arena_bytes() const {
    int64_t bytes = 0;
    for (const ir::Program& p : programs) bytes += arena_bytes(p) * layout.mesh.ranks() * layout.mesh.islands();
    return bytes;
}

}  // namespace lockstep::compile
