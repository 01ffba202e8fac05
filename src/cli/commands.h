// The subcommands, one .cpp each, and what those that read a recipe share (common.cpp). Errors go to app.cpp.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/process_group.h"
#include "job/exit_code.h"
#include "planning/recipe_args.h"
#include "telemetry/console.h"

namespace CLI {
class App;
}

namespace lockstep::cli {

using job::kDone, job::kRefused, job::kUsage, job::kFailed, job::kStopped;

// A subcommand of `lockstep`: its flags, and what runs when it is chosen.
struct Command {
    CLI::App* app = nullptr;
    std::function<int(comm::ProcessGroup&)> run;  // returns the exit code; throws UserError and other errors
    planning::RecipeArgs* recipe = nullptr;       // where --section.key flags go; null: the command takes none
    bool in_every_process = false;                // of mpirun or srun; else only the first process runs it
    bool catches_signals = false;                 // a signal to stop is remembered (stopping.h) and does not end the process
    // Takes the words behind "--", which are another command line; null: there are none.
    std::function<void(std::vector<std::string>)> take_words = nullptr;
};

// One line on standard output. Bytes that are no UTF-8 (of a path, say) are printed as U+FFFD.
void print_json(const nlohmann::ordered_json& value);

// With "from": what became of another system's file; unchanged where the recipe is one of Lockstep's.
nlohmann::ordered_json with_source(nlohmann::ordered_json value, const interop::Reading& reading);

// Each declares its flags on `app`. The definitions are at the end of each command's file.
Command add_train(CLI::App& app);
Command add_check(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_calibrate(CLI::App& app);
Command add_tune(CLI::App& app);
Command add_show(CLI::App& app);
Command add_schedule(CLI::App& app);
Command add_diff(CLI::App& app);
Command add_eval(CLI::App& app);
Command add_sample(CLI::App& app);
Command add_convert(CLI::App& app);
Command add_data(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_launch(CLI::App& app);
Command add_report(CLI::App& app);
Command add_checkpoints(CLI::App& app);
Command add_recipe(CLI::App& app);
Command add_new(CLI::App& app);
Command add_clusters(CLI::App& app);
Command add_help(CLI::App& app);
Command add_completion(CLI::App& app);
Command add_man(CLI::App& app);

// For commands that read a recipe, or a checkpoint with its recipe: the positional argument, --ranks, and --section.key flags.
void add_recipe_flags(CLI::App& command, planning::RecipeArgs& args);
void add_checkpoint_flags(CLI::App& command, planning::RecipeArgs& args);
// --quiet and --log-format, which every command has.
void add_console_flags(CLI::App& command, telemetry::ConsoleOptions& options);
// The --section.key flags that `command` was given, into args.settings. Throws CLI::ParseError for anything else that is left.
void take_settings(const CLI::App& command, planning::RecipeArgs& args);

}  // namespace lockstep::cli
