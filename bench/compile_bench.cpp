// How long a compile takes that starts from a kept prefix, as a search over layouts asks for it: llama3_70b_torchtitan on 16
// pipeline stages (4,096 ranks), without verification after each pass, with it, and with the proofs of `check` as well. One
// iteration is one layout. CPU time is that of all threads.
//
// Then layouts a second as `lockstep tune` plans them (items_per_second, of one core): compiled from the prefix without offsets
// of buffers, and played. And whole plans as `lockstep plan` makes them, with their band.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <iterator>

#include "calibration/band.h"
#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"
#include "planning/plan.h"
#include "tune/search.h"

using namespace lockstep;

namespace {

compile::Config config_16_stages() {
    compile::Recipe recipe = compile::Recipe::from_file(LOCKSTEP_SOURCE_DIR "/recipes/llama3_70b_torchtitan.toml");
    recipe.set("parallelism.pipeline_parallel_degree", "16");
    return compile::config_of(recipe);
}

compile::CompileOptions options_of(bool verify) {
    compile::CompileOptions options;
    options.catalog = kernels::cpu_catalog(1);
    options.verify = verify;
    return options;
}

void prefix(benchmark::State& state) {
    const compile::Config config = config_16_stages();
    const compile::CompileOptions options = options_of(false);
    for (auto _ : state) benchmark::DoNotOptimize(compile::compile_prefix(config, options));
}

void from_prefix(benchmark::State& state, bool verify, bool prove) {
    const compile::Config config = config_16_stages();
    const compile::CompileOptions options = options_of(verify);
    const compile::Prefix prefix = compile::compile_prefix(config, options);
    for (auto _ : state) {
        const compile::Compiled compiled = compile::or_throw(compile::compile(prefix, config, options));
        for (const compile::PassReport& p : compiled.passes) state.counters[p.name + "_ms"] = 1e3 * p.time_s;  // of the last
        if (prove && check::prove(compiled.of_ranks())) state.SkipWithError("check refuses the program");
    }
}

void refused(benchmark::State& state) {
    compile::Config config = config_16_stages();
    const compile::CompileOptions options = options_of(false);
    const compile::Prefix prefix = compile::compile_prefix(config, options);
    config.parallelism.tensor_parallel_degree = 3;
    for (auto _ : state) benchmark::DoNotOptimize(compile::compile(prefix, config, options).index());
}

using Keys = std::vector<std::pair<std::string, std::string>>;

compile::Config config_of(const char* recipe_name, const Keys& keys) {
    compile::Recipe recipe = compile::Recipe::from_file(std::string(LOCKSTEP_SOURCE_DIR "/recipes/") + recipe_name + ".toml");
    for (const auto& [key, value] : keys) recipe.set(key, value);
    return compile::config_of(recipe);
}

std::string cluster_file(const char* name) { return std::string(LOCKSTEP_SOURCE_DIR "/clusters/") + name + ".toml"; }

struct Asked {
    const char *recipe, *cluster;
    int64_t ranks, global_batch;
    int64_t fewest_stages, most_stages;  // of the layouts that are planned
    size_t layouts;                      // spread evenly over those that may fit
};

// All schedules, tensor parallelism without its asynchronous form.
void layouts(benchmark::State& state, const Asked& asked) {
    const std::string file = cluster_file(asked.cluster);
    const tune::Problem problem =
        tune::problem_of(config_of(asked.recipe, {}), sim::read_cluster(file, "bench"), file, asked.ranks, asked.global_batch);
    tune::Bounds bounds(problem);
    std::vector<tune::Choice> all, some;
    for (const tune::Choice& family : problem.space.families) {
        if (family.pipeline() < asked.fewest_stages || family.pipeline() > asked.most_stages || family.async_tensor_parallel)
            continue;
        for (const tune::Choice& c : problem.space.members(family)) all.push_back(c);
    }
    const ptrdiff_t tried = std::min(std::ssize(all), 100 * static_cast<ptrdiff_t>(asked.layouts));
    for (ptrdiff_t i = 0; i < tried && some.size() < asked.layouts; ++i) {
        const tune::Choice& c = all[static_cast<size_t>(i * std::ssize(all) / tried)];
        if (bounds.refusal(c).empty() && bounds.bytes(c) <= *problem.machine.capacity.bytes) some.push_back(c);
    }
    for (auto _ : state) {
        for (const tune::Choice& c : some) benchmark::DoNotOptimize(tune::plan_of(problem, c, tune::Bytes::Least).index());
    }
    state.SetItemsProcessed(state.iterations() * std::ssize(some));
}

void plan(benchmark::State& state, const char* recipe, const char* cluster, const Keys& keys) {
    const compile::Config config = config_of(recipe, keys);
    for (auto _ : state) {
        const planning::Plan plan =
            planning::make_plan(config, planning::described_machine(config, cluster_file(cluster), "bench"));
        benchmark::DoNotOptimize(calibration::band_of(plan).has_value());
    }
}

const Keys k1tOn3072 = {{"cluster.ranks", "3072"}, {"training.global_batch_size", "9600"}};
const Keys k530b = {{"model.dim", "20480"},
                    {"model.n_layers", "105"},
                    {"model.n_heads", "128"},
                    {"training.global_batch_size", "280"},
                    {"parallelism.pipeline_parallel_degree", "35"},
                    {"parallelism.pipeline_parallel_schedule", "Interleaved1F1B"},
                    {"parallelism.pipeline_parallel_layers_per_stage", "1"},
                    {"parallelism.sequence_parallel", "true"},
                    {"cluster.ranks", "0"}};
const Keys kGpipe = {{"training.global_batch_size", "1024"}, {"parallelism.pipeline_parallel_schedule", "GPipe"}};

BENCHMARK_CAPTURE(layouts, llama3_8b_on_8_ranks, Asked{"llama3_8b_torchtitan", "h100", 8, 256, 1, 8, 100})
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(layouts, gpt_175b_on_128_ranks_16_stages, Asked{"gpt_175b_frontier", "frontier", 128, 640, 16, 16, 30})
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(layouts, gpt_1t_on_512_ranks_64_stages, Asked{"gpt_1t_frontier", "frontier", 512, 1600, 64, 64, 10})
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(plan, gpt_1t_on_3072_ranks, "gpt_1t_frontier", "frontier", k1tOn3072)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(plan, gpt_530b_interleaved_280_microbatches, "gpt_1t_frontier", "selene", k530b)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(plan, gpt_175b_gpipe_1024_microbatches, "gpt_175b_frontier", "frontier", kGpipe)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();
BENCHMARK(prefix)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, without_proofs, false, false)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, verified, true, false)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, verified_and_checked, true, true)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK(refused)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
