// Pipeline schedules on 4 ranks with delays in place of compute: every op sleeps as long as the simulator says that it takes,
// transfers, waits and the order of everything are real. Prints the planned and the measured step of each schedule and what it
// gains on 1F1B; exit code 1 where a measured gain is off the planned one by more than 10 % of it and 1.5 % of a step.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "compile/compile.h"
#include "kernels/kernel.h"
#include "runtime/ranks.h"
#include "sim/simulate.h"

using namespace lockstep;

namespace {

constexpr int kRanks = 4, kSteps = 3;

compile::Recipe recipe_of(const char* schedule) {
    return compile::Recipe::from_text(
        fmt::format("[model]\nname = \"llama3\"\ndim = 64\nn_layers = 16\nn_heads = 4\nn_kv_heads = 4\nffn_dim = 192\n"
                    "vocab_size = 64\n[activation_checkpoint]\nmode = \"none\"\n[training]\nmixed_precision_param = "
                    "\"float32\"\nseq_len = 64\nglobal_batch_size = 12\n[parallelism]\n"
                    "pipeline_parallel_degree = {}\npipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = 1\n"
                    "pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0\n",
                    kRanks, schedule),
        "schedules_bench");
}

// Devices so slow that a layer's forward takes 15 ms: long beside what a sleep is off by.
sim::Cluster slow_devices() {
    sim::Cluster c;
    c.declared = c.devices = true;
    c.links = {{0, {1e30, 0}}};
    c.costs.cores = 1;
    c.costs.flops_per_s["f32"] = {5e8};
    c.costs.bytes_per_s = {1e30};
    return c;
}

double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
    return x[x.size() / 2];
}

// Seconds of a step of all ranks.
double run_s(const compile::Compiled& c, const sim::Cluster& cluster) {
    runtime::RanksOptions options;
    options.delay_s = [&](const ir::Routine& r, const ir::Op& op) {
        return ops::cost_of(cluster.costs, ops::cost_key(c.layout.mesh, r, op, 1), 1).core_s;
    };
    runtime::Ranks ranks(c.programs, options);
    std::vector<double> times;
    for (int step = 0; step < kSteps; ++step) {
        const auto start = std::chrono::steady_clock::now();
        ranks.parallel([](runtime::Executor& e) { e.run(ir::EntryKind::Train); });
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return median(times);
}

}  // namespace

int main() {
    const sim::Cluster cluster = slow_devices();
    fmt::print("{} ranks, 12 microbatches, delays in place of compute; medians of {} steps\n", kRanks, kSteps);
    fmt::print("{:<22}{:>12}{:>12}{:>9}{:>15}{:>15}\n", "schedule", "planned ms", "measured ms", "ratio", "planned gain",
               "measured gain");
    double base_planned = 0, base_measured = 0;
    bool good = true;
    for (const char* schedule : {"1F1B", "GPipe", "ZB-H1", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
        const compile::Compiled c = compile::compile(recipe_of(schedule), {kernels::cpu_catalog(1), "", {}});
        const double planned = sim::simulate(c.programs, ir::EntryKind::Train, cluster, {1, false}).step_time_s,
                     measured = run_s(c, cluster);
        if (base_planned == 0) base_planned = planned, base_measured = measured;
        const double gain = base_planned / planned - 1, got = base_measured / measured - 1;
        const bool inside = std::abs(got - gain) <= std::max(0.1 * std::abs(gain), 0.015);
        good &= inside;
        fmt::print("{:<22}{:>12.1f}{:>12.1f}{:>9.3f}{:>13.1f} %{:>13.1f} %{}\n", schedule, 1e3 * planned, 1e3 * measured,
                   planned / measured, 100 * gain, 100 * got, inside ? "" : "  OUTSIDE");
    }
    return good ? 0 : 1;
}
