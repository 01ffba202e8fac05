#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/stage_json.h"

namespace lockstep::cli {
namespace {

nlohmann::ordered_json to_json(const compile::Recipe& recipe, const compile::Compiled& compiled,
                               const compile::StageReport& report) {
    nlohmann::ordered_json mesh;
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = compiled.layout.mesh.degree(a);
    nlohmann::ordered_json stage = {{"stage", 0},
                                    {"bytes", bytes_json(report)},
                                    {"reserve", static_cast<int64_t>(recipe.number("cluster.reserve_gib_per_rank") * (1 << 30))},
                                    {"flops_model", report.flops_model},
                                    {"flops_executed", report.flops_executed}};
    return {{"fits", true}, {"ranks", compiled.layout.ranks}, {"mesh", mesh}, {"stages", nlohmann::ordered_json::array({stage})}};
}

}  // namespace

int check(const CheckArgs& args) {
    compile::Recipe recipe;
    compile::Compiled compiled;
    compile::StageReport report;
    try {
        recipe = read_recipe(args.recipe);
        take_vocabulary(recipe, MissingData::Assume);
        const compile::CompileOptions options = compile_options(recipe);
        compiled = compile::compile(recipe, options);
        report = compile::report_of(compiled.program);
        require_runnable(recipe, options, compiled);
    } catch (const UserError& e) {
        if (!args.json) throw;
        nlohmann::ordered_json refusal = {{"fits", false}};
        if (compiled.layout.ranks > 0 && e.id() == "check.does_not_fit") {
            refusal = to_json(recipe, compiled, report);
            refusal["fits"] = false;
        }
        refusal["error"] = {{"message", e.what()}, {"key", e.key()}, {"id", e.id()}};
        fmt::print("{}\n", refusal.dump());
        return kRefused;
    }
    if (args.json) {
        fmt::print("{}\n", to_json(recipe, compiled, report).dump());
        return kDone;
    }
    const mesh::Mesh& mesh = compiled.layout.mesh;
    fmt::print("ranks        {} = dp_replicate {} x dp_shard {} x tp {}\n", compiled.layout.ranks,
               mesh.degree(mesh::Axis::dp_replicate), mesh.degree(mesh::Axis::dp_shard), mesh.degree(mesh::Axis::tp));
    fmt::print("step         {} sequences of {} tokens in {} microbatches\n", compiled.layout.global_batch,
               compiled.layout.seq_len, compiled.layout.microbatches);
    fmt::print("bytes of a rank (stage 0)\n");
    for (int k = 0; k < ir::kMemoryKinds; ++k) {
        const int64_t b = report.bytes[static_cast<size_t>(k)];
        if (b > 0) fmt::print("  {:<14} {:>16} {:>14}\n", ir::name_of(static_cast<ir::MemoryKind>(k)), b, gib(b));
    }
    fmt::print("  {:<14} {:>16} {:>14}\n", "total", report.total_bytes, gib(report.total_bytes));
    fmt::print("capacity       {:>31}\n", gib(capacity_per_rank(recipe, compiled)));
    fmt::print("FLOPs of a rank and step: model {:.4g}, executed {:.4g}\n", report.flops_model, report.flops_executed);
    fmt::print("runs: no deadlock, no buffer reused too early, every gradient counted once; fits\n");
    return kDone;
}

}  // namespace lockstep::cli
