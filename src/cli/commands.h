// The subcommands, one .cpp each. They take parsed flags, return the exit code and throw UserError and other errors to app.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"

namespace lockstep::cli {

// 0 done, 1 refused, 2 usage, 3 failed while running, 4 stopped on request with a checkpoint.
enum ExitCode { kDone = 0, kRefused = 1, kUsage = 2, kFailed = 3, kStopped = 4 };

// What every command that reads a recipe has: its path, --section.key value pairs, --ranks.
struct RecipeArgs {
    std::string path;
    std::vector<std::pair<std::string, std::string>> settings;
    int64_t ranks = 0;
};

struct TrainArgs {
    RecipeArgs recipe;
    std::vector<std::string> watch;
    bool json = false;
};
struct CheckArgs {
    RecipeArgs recipe;
    bool json = false;
};
struct ShowArgs {
    RecipeArgs recipe;
    std::string after, against;
    std::vector<std::string> skip;
    bool passes = false, json = false;
};
struct DiffArgs {
    RecipeArgs recipe;
    std::string other;
    int64_t steps = 1;
    double tolerance = 0;
    bool json = false;
};
struct EvalArgs {
    RecipeArgs checkpoint;  // path: of a checkpoint
    std::string data, tokens, split = "heldout";
    int64_t steps = 0;  // 0: all
    bool json = false;
};
struct SampleArgs {
    RecipeArgs checkpoint;  // path: of a checkpoint
    std::vector<std::string> prompts, prompt_files, prompt_tokens, stops;
    std::string tokenizer, logits;
    int64_t max_tokens = 128, top_k = 0;
    double temperature = 1, top_p = 1;
    uint64_t seed = 0;
    bool json = false;
};
struct PrepareArgs {
    std::vector<std::string> inputs;
    std::string out, tokenizer = "bpe";
    int vocab = 0;
    double heldout = 0.01;
    bool overwrite = false, json = false;
};
struct ExplainArgs {
    std::string key;
    bool json = false;
};

int train(const TrainArgs& args);
int check(const CheckArgs& args);
int show(const ShowArgs& args);
int diff(const DiffArgs& args);
int eval(const EvalArgs& args);
int sample(const SampleArgs& args);
int prepare(const PrepareArgs& args);
int explain(const ExplainArgs& args);

// Reads the recipe and applies the flags; what is ignored is said on standard error.
compile::Recipe read_recipe(const RecipeArgs& args);
// The vocabulary of the prepared data where the recipe names none. Where the data is not prepared yet, commands that do not
// train go on with the model's own and say so.
enum class MissingData { Refuse, Assume };
void take_vocabulary(compile::Recipe& recipe, MissingData missing);
// The catalog of runtime.kernels, and passes to skip.
compile::CompileOptions compile_options(const compile::Recipe& recipe);
// Proves the program that `options` compiled, and holds it against the memory of a rank. UserError check.* where it would not
// run.
void require_runnable(const compile::Recipe& recipe, const compile::CompileOptions& options, const compile::Compiled& compiled);
// Bytes that one rank may use: cluster.memory_gib_per_rank, else this machine's share.
int64_t capacity_per_rank(const compile::Recipe& recipe, const compile::Compiled& compiled);
std::string gib(int64_t bytes);

}  // namespace lockstep::cli
