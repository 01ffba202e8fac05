// How long a compile takes that starts from a kept prefix, as a search over layouts asks for it: llama3_70b_torchtitan on 16
// pipeline stages (4,096 ranks), without verification after each pass, with it, and with the proofs of `check` as well. One
// iteration is one layout. CPU time is that of all threads.
#include <benchmark/benchmark.h>

#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"

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

BENCHMARK(prefix)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, without_proofs, false, false)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, verified, true, false)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(from_prefix, verified_and_checked, true, true)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
BENCHMARK(refused)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
