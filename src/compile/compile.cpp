#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/error.h"
#include "compile/save_lists.h"
#include "models/model.h"
#include "ops/builder.h"
#include "ops/verify.h"
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

namespace lockstep::compile {
namespace {

struct Pass {
    const char* name;
    std::function<ir::Program(ir::Program)> run;

    bool is_skipped(const CompileOptions& options) const {
        return std::find(options.skip.begin(), options.skip.end(), name) != options.skip.end();
    }
    // The program after it, in its one canonical form.
    ir::Program operator()(ir::Program program) const {
        program = run(std::move(program));
        for (ir::Routine& r : program.routines) ops::renumber(r);
        return program;
    }
};

// How a pass becomes part of the result: timed, and the program verified.
class Runner {
public:
    Runner(const CompileOptions& options, std::vector<PassReport>& reports) : options_(options), reports_(reports) {}

    void operator()(const Pass& pass, ir::Program& program) {
        if (stopped_) return;
        PassReport report;
        report.name = pass.name;
        report.skipped = pass.is_skipped(options_);
        if (!report.skipped) {
            const auto start = std::chrono::steady_clock::now();
            const ir::Program before = program;
            program = pass(std::move(program));
            if (const auto violation = ops::verify(program)) {
                throw InternalError(
                    fmt::format("pass {} broke the invariant '{}': {}", pass.name, violation->invariant, violation->message));
            }
            report.changed = program != before;
            report.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        for (const ir::Routine& r : program.routines) report.ops += static_cast<int64_t>(r.ops.size());
        reports_.push_back(report);
        stopped_ = options_.stop_after == pass.name;
    }

private:
    const CompileOptions& options_;
    std::vector<PassReport>& reports_;
    bool stopped_ = false;
};

ir::Program build_blocks(const Recipe& recipe, const Layout& layout) {
    const auto& all = models::all_models();
    const ir::Attrs shape = recipe.model_shape();
    const auto spec =
        std::find_if(all.begin(), all.end(), [&](const models::ModelSpec& m) { return m.name == recipe.text("model.name"); });
    models::Model model =
        spec->build(shape, {layout.local_batch * layout.data_ranks, layout.seq_len, layout.mesh.degree(mesh::Axis::tp)});
    ir::Program program;
    program.mesh = layout.mesh;
    program.microbatches = layout.microbatches;
    program.blocks = std::move(model.blocks);
    program.params = std::move(model.params);
    program.routines = std::move(model.routines);
    for (const ir::Routine& r : program.routines) {
        if (const ir::DimId ffn = r.dim("ffn"); ffn >= 0 && r.dims[ffn].size % layout.mesh.degree(mesh::Axis::tp) != 0) {
            throw UserError("recipe.divides", "model.ffn_dim",
                            fmt::format("the feed-forward width {} is not divisible by parallelism.tensor_parallel_degree = {}: "
                                        "change model.ffn_dim or the degree",
                                        r.dims[ffn].size, layout.mesh.degree(mesh::Axis::tp)));
        }
    }
    return program;
}

std::vector<std::string> entries_of(const Recipe& recipe, const CompileOptions& options) {
    if (!options.entries.empty()) return options.entries;
    if (recipe.flag("validation.enable")) return {"train", "eval"};
    return {"train"};
}

}  // namespace

const std::vector<std::string>& pass_names() {
    static const std::vector<std::string> names = {
        "build_blocks", "attach_objective", "cache_keys",           "differentiate", "set_precision", "shard",      "fuse_loss",
        "recompute",    "select_kernels",   "partition_parameters", "schedule",      "overlap",       "plan_memory"};
    return names;
}

const std::vector<std::string>& optional_passes() {
    static const std::vector<std::string> names = {"fuse_loss", "recompute", "overlap"};
    return names;
}

Compiled compile(const Recipe& recipe, const CompileOptions& options) {
    Compiled out;
    const Layout& layout = out.layout = layout_of(recipe);
    const passes::FuseLossOptions fuse{recipe.integer("training.loss_chunk_tokens")};
    passes::OverlapOptions overlap;
    overlap.prefetch = recipe.integer("parallelism.prefetch");
    const bool fuse_loss = recipe.flag("training.fuse_loss");
    using P = ir::Program;

    const std::vector<Pass> before = {
        {"build_blocks", [&](P) { return build_blocks(recipe, layout); }},
        {"attach_objective", [&](P p) { return passes::attach_objective(std::move(p), {entries_of(recipe, options)}); }},
        {"cache_keys", [&](P p) { return passes::cache_keys(std::move(p), {}); }},
        {"differentiate", [&](P p) { return passes::differentiate(std::move(p)); }},
        {"set_precision", [&](P p) { return passes::set_precision(std::move(p), layout.precision); }},
        {"shard", [&](P p) { return passes::shard(std::move(p), {layout.sequence_parallel}); }},
        {"fuse_loss", [&](P p) { return fuse_loss ? passes::fuse_loss(std::move(p), fuse) : p; }},
    };
    const std::vector<Pass> after = {
        {"select_kernels", [&](P p) { return passes::select_kernels(std::move(p), options.catalog); }},
        {"partition_parameters",
         [&](P p) { return passes::partition_parameters(std::move(p), layout.partition, options.catalog); }},
        {"schedule", [&](P p) { return passes::schedule(std::move(p)); }},
        {"overlap", [&](P p) { return passes::overlap(std::move(p), overlap); }},
        {"plan_memory", [&](P p) { return passes::plan_memory(std::move(p)); }},
    };
    const auto recompute = [&](P placed) {
        const auto total_bytes = [&](const std::vector<passes::SaveList>& lists) {
            P p = passes::recompute(placed, lists);
            for (const Pass& pass : after) {
                if (!pass.is_skipped(options)) p = pass(std::move(p));
            }
            return p.arena_bytes;
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
    for (const Pass& pass : before) run(pass, out.program);
    run({"recompute", recompute}, out.program);
    for (const Pass& pass : after) run(pass, out.program);
    return out;
}

}  // namespace lockstep::compile
