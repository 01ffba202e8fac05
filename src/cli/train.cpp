#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/number_flags.h"
#include "job/training.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct TrainArgs {
    planning::RecipeArgs recipe;
    std::vector<std::string> watch;
    job::ObserveArgs observe;
    bool json = false;
};

using Json = nlohmann::ordered_json;

struct Row {
    std::string op, thread;
    compile::TimeSpent spent;
};

std::vector<Row> rows_of(const compile::Breakdown& b) {
    std::vector<Row> rows;
    for (const auto& [name, spent] : b.ops) rows.push_back({name, "compute", spent});
    std::stable_sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.spent.time_s > y.spent.time_s; });
    const auto middle = rows.size();
    for (const auto& [name, spent] : b.beside) rows.push_back({name, "communication", spent});
    std::stable_sort(rows.begin() + static_cast<long>(middle), rows.end(),
                     [](const Row& x, const Row& y) { return x.spent.time_s > y.spent.time_s; });
    return rows;
}

void print(const job::Profile& p) {
    const compile::Breakdown& b = p.breakdown;
    const double flops_roof = p.flops_roof, bytes_roof = p.bytes_roof;
    fmt::print("a step of {:.3f} ms (mean over {} steps and all ranks; roofs of a rank: {:.1f} GFLOP/s, {:.1f} GB/s)\n",
               1e3 * b.step_s, p.steps, flops_roof / 1e9, bytes_roof / 1e9);
    fmt::print("  {:<26}{:>8}{:>12}{:>8}{:>10}{:>7}{:>9}{:>7}\n", "op", "count", "ms", "%", "GFLOP/s", "roof", "GB/s", "roof");
    bool has_communication = false;
    const auto share = [&](double time_s) { return 100 * time_s / b.step_s; };
    const auto line = [&](const char* name, double time_s) {
        fmt::print("  {:<26}{:>8}{:>12.3f}{:>8.1f}\n", name, "", 1e3 * time_s, share(time_s));
    };
    for (const Row& row : rows_of(b)) {
        if (row.thread == "communication" && !has_communication) {
            line("waiting", b.waiting_s), line("data", b.data_s), line("executor", b.remainder_s);
            has_communication = true;
            fmt::print("  at the same time, on communication threads\n");
        }
        const compile::TimeSpent& s = row.spent;
        const double flops = s.flops / s.time_s, bytes = s.bytes / s.time_s;
        const bool computes = flops > 0.02 * flops_roof;
        fmt::print("  {:<26}{:>8.0f}{:>12.3f}{:>8.1f}{:>10}{:>7}{:>9.1f}{:>6.0f}%\n", row.op, s.count, 1e3 * s.time_s,
                   share(s.time_s), computes ? fmt::format("{:.1f}", flops / 1e9) : "",
                   computes ? fmt::format("{:.0f}%", 100 * flops / flops_roof) : "", bytes / 1e9, 100 * bytes / bytes_roof);
    }
    if (!has_communication) line("waiting", b.waiting_s), line("data", b.data_s), line("executor", b.remainder_s);
}

Json to_json(const job::Profile& p) {
    const compile::Breakdown& b = p.breakdown;
    Json ops = Json::array();
    for (const Row& row : rows_of(b)) {
        const compile::TimeSpent& s = row.spent;
        ops.push_back({{"op", row.op},
                       {"thread", row.thread},
                       {"count", s.count},
                       {"time_s", s.time_s},
                       {"flops_per_s", s.flops / s.time_s},
                       {"bytes_per_s", s.bytes / s.time_s}});
    }
    return {{"steps", p.steps},
            {"step_time_s", b.step_s},
            {"waiting_s", b.waiting_s},
            {"data_s", b.data_s},
            {"executor_s", b.remainder_s},
            {"roof_flops_per_s", p.flops_roof},
            {"roof_bytes_per_s", p.bytes_roof},
            {"ops", ops}};
}

int train(const TrainArgs& args, comm::ProcessGroup& group) {
    const job::TrainOptions options{.watch = args.watch,
                                    .observe = args.observe,
                                    .announces_signals = true,
                                    .invitation = variable(comm::islands::kInvitation)};
    const job::TrainResult result = job::train(planning::announced_for_training(args.recipe).recipe, options, group);
    if (!group.is_first()) return result.code;
    const job::TrainSummary& summary = result.summary;
    if (args.json) {
        Json out = job::to_json(summary);
        if (result.profile) out["profile"] = to_json(*result.profile);
        print_json(out);
        return result.code;
    }
    if (result.profile) print(*result.profile);
    telemetry::info(fmt::format("memory of all ranks: planned {}, resident {}", telemetry::gib(summary.planned_bytes),
                                telemetry::gib(summary.resident_bytes)));
    if (summary.heldout) {
        const auto entropy = summary.unigram_entropy_nats;
        telemetry::info(fmt::format("held-out loss {:.4f} nats{}", summary.heldout->loss,
                                    entropy ? fmt::format("; token frequencies alone give {:.4f}", *entropy) : ""));
    }
    telemetry::info(fmt::format("written: {}", summary.dump_folder));
    return result.code;
}

}  // namespace

Command add_train(CLI::App& app) {
    const auto args = std::make_shared<TrainArgs>();
    CLI::App* command = app.add_subcommand(
        "train", "train a recipe; ranks are threads of this process, or of all processes that mpirun or srun started");
    add_recipe_flags(*command, args->recipe);
    command->add_option(
        "--watch", args->watch,
        "a tensor, such as layer[0].forward.o or embed.forward.y; its values are written in global order under the dump folder");
    auto* trace = command->add_option("--trace", args->observe.trace,
                                      "write the timeline of one step to this file, for chrome://tracing or Perfetto");
    command->add_option("--trace-step", args->observe.trace_step, "step of this run to trace (default: the third)")
        ->needs(trace)
        ->check(positive_number());
    command->add_flag("--profile", args->observe.profile,
                      "print the time by kind of op, next to this machine's roofs, which are measured after the run");
    command->add_option("--cluster", args->observe.cluster,
                        "cluster file of this machine: the step time is planned on it, and MFU and --profile take its roofs "
                        "instead of measuring them");
    command->add_flag("--json", args->json, "one JSON object on standard output at the end");
    command->footer("Example: lockstep train recipes/demo.toml --training.steps 100");
    return {.app = command,
            .run = [args](comm::ProcessGroup& group) { return train(*args, group); },
            .recipe = &args->recipe,
            .in_every_process = true,
            .catches_signals = true};
}

}  // namespace lockstep::cli
