// The subcommands, one .cpp each. They take parsed flags, return the exit code and throw UserError and other errors to app.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/crew.h"
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

// What a run records of itself (observe.h).
struct ObserveArgs {
    std::string trace;       // file of one step's timeline; empty: none
    int64_t trace_step = 0;  // of this run, counted from 1; 0: the third, or the last if there are fewer
    bool profile = false;
    std::string cluster;  // file with this machine's roofs; empty: they are measured after the run
};
struct TrainArgs {
    RecipeArgs recipe;
    std::vector<std::string> watch;
    ObserveArgs observe;
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
    bool passes = false, schedule = false, json = false;
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
struct ConvertArgs {
    std::string in, out, dtype = "float32";
    int64_t shard_bytes = 5'000'000'000;
    bool json = false;
};
struct PrepareArgs {
    std::vector<std::string> inputs;
    std::string out, tokenizer = "bpe";
    int vocab = 0;
    double heldout = 0.01;
    bool overwrite = false, json = false;
};
struct PlanArgs {
    RecipeArgs recipe;
    std::string cluster, trace;
    bool json = false;
};
struct BenchArgs {
    std::string out = "cluster.toml", machine;
    double seconds = 80;
    bool quick = false, json = false;
};
struct ScheduleArgs {
    std::string name, file;  // one of both; none: the names are listed
    int64_t ranks = 4, stages_per_rank = 0, microbatches = 8;
    bool csv = false, json = false;
};
struct LaunchArgs {
    std::string hosts;         // "n0:2,n1:2"; empty: this one
    int64_t processes = 0;     // without hosts; 0: as many as ranks
    int64_t max_restarts = 3;  // in a row without a new checkpoint
    std::string agent = "ssh";
    std::string mpirun =
        "mpirun --bind-to none -mca mpi_yield_when_idle 1 -mca odls_base_sigkill_timeout 0 -mca oob_tcp_keepalive_time 2 "
        "-mca oob_tcp_keepalive_intvl 1 -mca oob_tcp_keepalive_probes 3";
    std::vector<std::string> command;  // train, recipe, flags
    RecipeArgs recipe;                 // of that; no path: it is no such command
    bool json = false;
};
struct ReportArgs {
    std::string folder;
    int64_t ops = 5;  // of each rank
    bool json = false;
};
struct ExplainArgs {
    std::string key;
    bool json = false;
};

int train(const TrainArgs& args, comm::Crew& crew);
int check(const CheckArgs& args);
int show(const ShowArgs& args);
int diff(const DiffArgs& args);
int eval(const EvalArgs& args, comm::Crew& crew);
int sample(const SampleArgs& args, comm::Crew& crew);
int convert(const ConvertArgs& args);
int prepare(const PrepareArgs& args);
int plan(const PlanArgs& args);
int bench(const BenchArgs& args, comm::Crew& crew);
int schedule(const ScheduleArgs& args);
int report(const ReportArgs& args);
int launch(const LaunchArgs& args);
int explain(const ExplainArgs& args);

// Reads the recipe and applies the flags; what is ignored is said on standard error.
compile::Recipe read_recipe(const RecipeArgs& args);
// The vocabulary of the prepared data where the recipe names none. Where the data is not prepared yet, commands that do not
// train go on with the model's own and say so.
enum class MissingData { Refuse, Assume };
void take_vocabulary(compile::Recipe& recipe, MissingData missing);
// Where a recipe leaves the number of ranks open, a crew of several processes has one each.
void take_ranks(compile::Recipe& recipe, const comm::Crew& crew);
// The catalog of runtime.kernels, and passes to skip, for the machines of a crew; none: this one.
compile::CompileOptions compile_options(const compile::Recipe& recipe, const comm::Crew* crew = nullptr);
// The same for ranks of another machine.
compile::CompileOptions compile_options(const compile::Recipe& recipe, int threads_per_rank);
// Proves the program that `options` compiled, and holds it against the memory of a rank. UserError check.* where it would not
// run.
void require_runnable(const compile::Recipe& recipe, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const comm::Crew* crew = nullptr);
// All processes have compiled the same programs. UserError job.other_program.
void require_same_programs(const compile::Compiled& compiled, comm::Crew& crew);
// Bytes that one rank may use: cluster.memory_gib_per_rank, else its share of a machine of the crew; none: of this one.
int64_t capacity_per_rank(const compile::Recipe& recipe, const compile::Compiled& compiled, const comm::Crew* crew = nullptr);
// "dp_replicate 1 x dp_shard 2 x tp 2", with pp before it where there is a pipeline.
std::string degrees_text(const mesh::Mesh& mesh);
std::string gib(int64_t bytes);

}  // namespace lockstep::cli
