#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>

#include "base/error.h"
#include "base/parallel.h"
#include "compile/limits.h"
#include "compile/rules.h"
#include "compile/save_lists.h"
#include "models/model.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "passes/assign_stages.h"
#include "passes/attach_objective.h"
#include "passes/cache_keys.h"
#include "passes/differentiate.h"
#include "passes/fuse_loss.h"
#include "passes/overlap.h"
#include "passes/partition_parameters.h"
#include "passes/plan_memory.h"
#include "passes/recompute.h"
#include "passes/schedule.h"
#include "passes/select_kernels.h"
#include "passes/set_precision.h"
#include "passes/shard.h"
#include "passes/split_backward.h"

namespace lockstep::compile {
namespace {

using ir::EntryKind;
using Programs = std::vector<ir::Program>;  // by pipeline rank

// Makes another of each program, by itself; before that, if it has `all`, of all of them at once.
struct Pass {
    const char* name;
    std::function<ir::Program(ir::Program)> each;
    std::function<Programs(Programs)> all;

    bool is_skipped(const CompileOptions& options) const {
        return std::find(options.skip.begin(), options.skip.end(), name) != options.skip.end();
    }
    // The programs after it, in their one canonical form.
    Programs operator()(Programs programs) const {
        if (all) programs = all(std::move(programs));
        parallel_for(programs.size(), [&](size_t i) {
            if (each) programs[i] = each(std::move(programs[i]));
            for (ir::Routine& r : programs[i].routines) ops::renumber(r);
        });
        return programs;
    }
};

Pass each(const char* name, std::function<ir::Program(ir::Program)> run) { return {name, std::move(run), {}}; }

// How a pass becomes part of the result: timed, and the programs verified.
class Runner {
public:
    Runner(const CompileOptions& options, std::vector<PassReport>& reports) : options_(options), reports_(reports) {}

    void operator()(const Pass& pass, Programs& programs) {
        if (stopped_) return;
        PassReport report;
        report.name = pass.name;
        report.skipped = pass.is_skipped(options_);
        if (!report.skipped) {
            const auto start = std::chrono::steady_clock::now();
            Programs before(programs.size());
            parallel_for(programs.size(), [&](size_t i) { before[i] = programs[i]; });
            programs = pass(std::move(programs));
            std::atomic<bool> changed = programs.size() != before.size();
            parallel_for(programs.size(), [&](size_t i) {
                if (const auto violation = ops::verify(programs[i])) {
                    throw InternalError(
                        fmt::format("pass {} broke the invariant '{}': {}", pass.name, violation->invariant, violation->message));
                }
                if (i >= before.size() || programs[i] != before[i]) changed = true;
                if (i < before.size()) before[i] = {};  // here, where others free theirs too
            });
            report.changed = changed;
            report.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        for (const ir::Program& p : programs) {
            for (const ir::Routine& r : p.routines) report.ops += static_cast<int64_t>(r.ops.size());
        }
        reports_.push_back(report);
        stopped_ = options_.stop_after == pass.name;
    }

private:
    const CompileOptions& options_;
    std::vector<PassReport>& reports_;
    bool stopped_ = false;
};

// No product of a model's sizes leaves 64 bits: neither a tensor's, nor the sum of all over layers and microbatches.
void require_sizes(const models::Model& model, const Layout& layout) {
    double all = 0;
    for (const ir::Routine& r : model.routines) {
        const auto block =
            std::find_if(model.blocks.begin(), model.blocks.end(), [&](const ir::Block& b) { return b.name == r.block; });
        const double times = static_cast<double>(block->count) * static_cast<double>(layout.microbatches);
        for (const ir::Tensor& t : r.tensors) {
            double elements = 1;
            std::string sizes;
            for (const ir::DimId d : t.dims) {
                elements *= static_cast<double>(r.dims[d].size);
                sizes += fmt::format("{}{} {}", sizes.empty() ? "" : " x ", r.dims[d].name, r.dims[d].size);
            }
            all += 8 * elements * times;
            if (elements > kMostElements || all > kMostBytes)
                throw UserError(
                    "recipe.too_large", "model",
                    fmt::format("{} of {} has {} = {:.3g} elements over all ranks, {} times in a step: at most {:.3g} "
                                "elements of a tensor and {:.3g} bytes of all can be planned; lower one of these sizes",
                                t.name, r.block, sizes, elements, times, kMostElements, kMostBytes));
        }
    }
}

ir::Program build_blocks(const Recipe& recipe, const Layout& layout) {
    const auto& all = models::all_models();
    const ir::Attrs shape = recipe.model_shape();
    const auto spec =
        std::find_if(all.begin(), all.end(), [&](const models::ModelSpec& m) { return m.name == recipe.text("model.name"); });
    models::Model model =
        spec->build(shape, {layout.local_batch * layout.data_ranks, layout.seq_len, layout.mesh.degree(mesh::Axis::tp)});
    require_sizes(model, layout);
    ir::Program program;
    program.mesh = layout.mesh;
    program.microbatches = layout.microbatches;
    program.blocks = std::move(model.blocks);
    program.params = std::move(model.params);
    program.routines = std::move(model.routines);
    for (const ir::Routine& r : program.routines) {
        if (const ir::DimId ffn = r.dim(ir::DimRole::Ffn);
            ffn >= 0 && r.dims[ffn].size % layout.mesh.degree(mesh::Axis::tp) != 0) {
            throw UserError("recipe.divides", "model.ffn_dim",
                            fmt::format("the feed-forward width {} is not divisible by parallelism.tensor_parallel_degree = {}: "
                                        "change model.ffn_dim or the degree",
                                        r.dims[ffn].size, layout.mesh.degree(mesh::Axis::tp)));
        }
    }
    return program;
}

int64_t largest_arena(const Programs& programs) {
    int64_t most = 0;
    for (const ir::Program& p : programs) most = std::max(most, p.arena_bytes);
    return most;
}

std::vector<ir::EntryKind> entries_of(const Recipe& recipe, const CompileOptions& options) {
    const bool generates = std::find(options.entries.begin(), options.entries.end(), EntryKind::Prefill) != options.entries.end();
    if (generates && recipe.integer("parallelism.pipeline_parallel_degree") > 1) {
        throw UserError("pipeline.generation", "parallelism.pipeline_parallel_degree",
                        "generation runs without a pipeline: set parallelism.pipeline_parallel_degree to 1, and use tensor "
                        "parallelism if the model does not fit");
    }
    if (!options.entries.empty()) return options.entries;
    if (recipe.flag("validation.enable")) return {EntryKind::Train, EntryKind::Eval};
    return {EntryKind::Train};
}

}  // namespace

const std::vector<std::string>& pass_names() {
    static const std::vector<std::string> names = {
        "build_blocks", "attach_objective", "cache_keys",     "differentiate",  "set_precision", "shard",
        "fuse_loss",    "recompute",        "split_backward", "select_kernels", "assign_stages", "partition_parameters",
        "schedule",     "overlap",          "route",          "plan_memory"};
    return names;
}

const std::vector<std::string>& optional_passes() {
    static const std::vector<std::string> names = {"fuse_loss", "recompute", "overlap"};
    return names;
}

Compiled compile(const Recipe& recipe, const CompileOptions& options) {
    Compiled out;
    require_consistent(recipe);
    out.layout = layout_of(recipe);
    Layout layout = out.layout;
    if (options.few_microbatches) layout.microbatches = representative_microbatches(recipe, layout);
    const passes::FuseLossOptions fuse{recipe.integer("training.loss_chunk_tokens")};
    passes::OverlapOptions overlap;
    overlap.prefetch = recipe.integer("parallelism.prefetch");
    const bool fuse_loss = recipe.flag("training.fuse_loss");
    using P = ir::Program;

    const auto build = [&](P) {
        P whole = build_blocks(recipe, layout);
        out.stages.table = table_of(recipe, layout, whole);
        return whole;
    };
    const std::vector<Pass> before = {
        each("build_blocks", build),
        each("attach_objective",
             [&](P p) {
                 return passes::attach_objective(std::move(p), {entries_of(recipe, options), layout.loss_scaling});
             }),
        each("cache_keys", [&](P p) { return passes::cache_keys(std::move(p), {}); }),
        each("differentiate", [&](P p) { return passes::differentiate(std::move(p)); }),
        each("set_precision", [&](P p) { return passes::set_precision(std::move(p), layout.precision); }),
        each("shard", [&](P p) { return passes::shard(std::move(p), {layout.sequence_parallel}); }),
        each("fuse_loss", [&](P p) { return fuse_loss ? passes::fuse_loss(std::move(p), fuse) : p; }),
    };
    const auto assign_stages = [&](Programs whole) {
        out.stages = stages_of(recipe, out.stages.table, whole[0]);
        return passes::assign_stages(std::move(whole[0]), out.stages.cut, options.catalog);
    };
    const auto schedule = [&](P p) {
        passes::ScheduleOptions o{{}, layout.reduce_gradients, layout.resident_stages};
        if (!out.stages.rows.empty()) o.rows = out.stages.rows[static_cast<size_t>(p.pipeline_rank)];
        return passes::schedule(std::move(p), o);
    };
    const auto split = [&](P p) {
        const Backwards backwards = backwards_of(out.stages.table);
        if (!backwards.in_parts) return p;
        return passes::split_backward(std::move(p), backwards.whole ? passes::WholeBackward::Keep : passes::WholeBackward::Drop);
    };
    const std::vector<Pass> after = {
        each("split_backward", split),
        each("select_kernels", [&](P p) { return passes::select_kernels(std::move(p), options.catalog); }),
        {"assign_stages", {}, assign_stages},
        each("partition_parameters",
             [&](P p) { return passes::partition_parameters(std::move(p), layout.partition, options.catalog); }),
        each("schedule", schedule),
        each("overlap", [&](P p) { return passes::overlap(std::move(p), overlap); }),
        each("route", [&](P p) { return passes::route(std::move(p), options.route); }),
        each("plan_memory", [&](P p) { return passes::plan_memory(std::move(p)); }),
    };
    const auto recompute = [&](P placed) {
        const auto total_bytes = [&](const std::vector<passes::SaveList>& lists) {
            Programs programs = {passes::recompute(placed, lists)};
            for (const Pass& pass : after) {
                if (!pass.is_skipped(options)) programs = pass(std::move(programs));
            }
            return largest_arena(programs);
        };
        passes::OpSeconds time_s = passes::Rates{};
        if (options.catalog.costs) {
            time_s = [&](const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
                return passes::expected_s(mesh, r, op, options.catalog);
            };
        }
        return passes::recompute(placed, save_lists(recipe, placed, total_bytes, time_s));
    };

    Runner run(options, out.passes);
    out.programs.emplace_back();
    for (const Pass& pass : before) run(pass, out.programs);
    run(each("recompute", recompute), out.programs);
    for (const Pass& pass : after) run(pass, out.programs);
    return out;
}

std::vector<const ir::Program*> Compiled::of_ranks() const {
    std::vector<const ir::Program*> out;
    for (int64_t r = 0; r < layout.ranks; ++r) out.push_back(&of_rank(r));
    return out;
}

double Compiled::microbatches_for_each() const {
    return static_cast<double>(layout.microbatches) / static_cast<double>(programs.at(0).microbatches);
}

int64_t Compiled::arena_bytes(const ir::Program& program) const {
    int64_t inputs = 0;
    for (const ir::Buffer& b : program.buffers) inputs += b.kind == ir::MemoryKind::Input && b.resident ? b.bytes : 0;
    return program.arena_bytes + inputs / program.microbatches * (layout.microbatches - program.microbatches);
}

int64_t Compiled::arena_bytes() const {
    int64_t most = 0;
    for (const ir::Program& p : programs) most = std::max(most, arena_bytes(p));
    return most;
}

int64_t Compiled::all_arena_bytes() const {
    int64_t bytes = 0;
    for (const ir::Program& p : programs) bytes += arena_bytes(p) * layout.mesh.ranks();
    return bytes;
}

}  // namespace lockstep::compile
