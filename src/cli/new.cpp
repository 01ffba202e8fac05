// `lockstep new`: a first run on a text of the user's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/number_flags.h"
#include "cli/terminal.h"
#include "job/new_run.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct NewArgs {
    job::NewRunOptions options;
    bool json = false;
};

std::vector<std::string> next_commands(const job::NewRun& r) {
    return {"lockstep train " + r.recipe, fmt::format("lockstep sample {} --prompt \"Once\" --max-tokens 100", r.dump_folder),
            "lockstep eval " + r.dump_folder, "lockstep report " + r.dump_folder};
}

void print(const job::NewRun& r) {
    fmt::print("written: {}\n", r.recipe);
    fmt::print("text     {} tokens to train on, a vocabulary of {}\n", telemetry::grouped(r.train_tokens),
               telemetry::grouped(r.vocabulary));
    fmt::print("model    {}: {} parameters, {} layers of width {}, {} heads\n", r.model, telemetry::grouped(r.parameters),
               r.layers, r.dim, r.heads);
    fmt::print("training {} steps of {} tokens on {}: {:.1f} times the text\n", telemetry::grouped(r.steps),
               telemetry::grouped(r.tokens_per_step), telemetry::plural(r.ranks, "rank"), r.epochs());
    fmt::print("planned  {:.3g} s a step, {:.1f} minutes\n", r.step_s, r.minutes());
    fmt::print("next\n");
    for (const std::string& command : next_commands(r)) fmt::print("  {}\n", command);
}

int run_new(NewArgs args) {
    telemetry::ProgressBar bar;
    args.options.preparing = [&](std::string_view stage, int64_t done, int64_t total) { bar.show(done, total, stage); };
    args.options.measuring = [&](const std::string& what, double share) {
        bar.show(static_cast<int64_t>(100 * share), 100, "% of this machine measured: " + what);
    };
    const job::NewRun r = job::new_run(args.options);
    bar.clear();
    if (!args.json) {
        at_terminal_width([&] { print(r); });
        return kDone;
    }
    print_json(nlohmann::ordered_json{
        {"recipe", r.recipe},
        {"data", r.data},
        {"machine", r.machine},
        {"dump_folder", r.dump_folder},
        {"model",
         {{"name", r.model}, {"parameters", r.parameters}, {"dim", r.dim}, {"n_layers", r.layers}, {"n_heads", r.heads}}},
        {"vocab_size", r.vocabulary},
        {"train_tokens", r.train_tokens},
        {"ranks", r.ranks},
        {"steps", r.steps},
        {"tokens_per_step", r.tokens_per_step},
        {"epochs", r.epochs()},
        {"planned_step_time_s", r.step_s},
        {"planned_minutes", r.minutes()},
        {"next", next_commands(r)}});
    return kDone;
}

}  // namespace

Command add_new(CLI::App& app) {
    const auto args = std::make_shared<NewArgs>();
    CLI::App* command = app.add_subcommand("new", "prepare a text, measure this machine and write a recipe that fits both");
    job::NewRunOptions& o = args->options;
    command->add_option("name", o.folder, "folder to create, with the recipe, the data and later the run")->required();
    command->add_option("--data", o.texts, "files and folders of text, JSON Lines or Parquet")->required();
    command->add_option("--minutes", o.minutes, "minutes that the training may take on this machine (default 10)")
        ->check(positive_number());
    command->add_option("--model", o.model, "gpt2 (default) or llama3")->check(CLI::IsMember({"gpt2", "llama3"}));
    command->add_option("--field", o.field, "field of JSON Lines and Parquet with the text (default text)");
    command->add_option("--cluster", o.cluster,
                        "cluster file that `lockstep bench` wrote on this machine (default: it is measured, within seconds)");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep new novels --data novels.txt --minutes 10");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return run_new(*args); }};
}

}  // namespace lockstep::cli
