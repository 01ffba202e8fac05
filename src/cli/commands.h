// The subcommands, one .cpp each, and what those that read a recipe share (common.cpp). Errors go to app.cpp.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instruction_sets.h"
#include "comm/crew.h"
#include "compile/compile.h"
#include "telemetry/console.h"

namespace CLI {
class App;
}

namespace lockstep::cli {

// 0 done, 1 refused, 2 usage, 3 failed while running, 4 stopped on request with a checkpoint.
enum ExitCode { kDone = 0, kRefused = 1, kUsage = 2, kFailed = 3, kStopped = 4 };

// What every command that reads a recipe has: its path, --section.key value pairs, --ranks.
struct RecipeArgs {
    std::string path;
    std::vector<std::pair<std::string, std::string>> settings;
    int64_t ranks = 0;
};

// A subcommand of `lockstep`: its flags, and what runs when it is chosen.
struct Command {
    CLI::App* app = nullptr;
    std::function<int(comm::Crew&)> run;  // returns the exit code; throws UserError and other errors
    RecipeArgs* recipe = nullptr;         // where --section.key flags go; null: the command takes none
    bool in_every_process = false;        // of mpirun or srun; else the first process runs it alone
    bool catches_signals = false;         // a signal to stop is remembered (stopping.h) and does not end the process
    // Takes the words behind "--", which are another command line; null: there are none.
    std::function<void(std::vector<std::string>)> take_words = nullptr;
};

// One line on standard output. Bytes that are no UTF-8 (of a path, say) stand as U+FFFD.
void print_json(const nlohmann::ordered_json& value);

// Each declares its flags on `app`. The definitions stand at the end of each command's file.
Command add_train(CLI::App& app);
Command add_check(CLI::App& app);
Command add_plan(CLI::App& app);
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
Command add_completion(CLI::App& app);
Command add_man(CLI::App& app);

// For commands that read a recipe, or a checkpoint with its recipe: the positional argument, --ranks, and --section.key flags.
void add_recipe_flags(CLI::App& command, RecipeArgs& args);
void add_checkpoint_flags(CLI::App& command, RecipeArgs& args);
// --quiet and --log-format, which every command has.
void add_console_flags(CLI::App& command, telemetry::ConsoleOptions& options);
// The --section.key flags that `command` was given, into args.settings. Throws CLI::ParseError for anything else that is left.
void take_settings(const CLI::App& command, RecipeArgs& args);

// Reads the recipe and applies the flags; what is ignored is said on standard error.
compile::Recipe read_recipe(const RecipeArgs& args);
// runtime.instruction_set; none: the best one.
std::optional<Isa> isa_of(const compile::Config& config);
// All kernels of this process use runtime.instruction_set from now on; commands that run kernels or compile for this machine call
// it. UserError recipe.instruction_set: this processor has none such.
void use_instruction_set(const compile::Config& config);
// Where a recipe leaves the number of ranks open, a crew of several processes has one each.
void take_ranks(compile::Recipe& recipe, const comm::Crew& crew);
// For the machines of a crew, with this build's kernels for this processor; none: this machine.
compile::CompileOptions compile_options(const compile::Config& config, const comm::Crew* crew = nullptr);
// All processes have compiled the same programs. UserError job.other_program.
void require_same_programs(const compile::Compiled& compiled, comm::Crew& crew);
// "dp_replicate 1 x dp_shard 2 x tp 2", with pp before it where there is a pipeline.
std::string degrees_text(const mesh::Mesh& mesh);
std::string gib(int64_t bytes);

}  // namespace lockstep::cli
