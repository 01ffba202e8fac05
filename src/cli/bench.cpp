#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/processors.h"
#include "cli/commands.h"
#include "measure/machine.h"
#include "runtime/ranks.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

int bench(const BenchArgs& args) {
    const auto start = std::chrono::steady_clock::now();
    std::ofstream out(args.out);  // now, rather than after two minutes
    if (!out) throw UserError("bench.cannot_write", "--out", fmt::format("--out {}: cannot be written", args.out));
    measure::MachineOptions options;
    options.cpus = usable_cpus();
    options.memory_bytes = static_cast<double>(telemetry::machine_memory_bytes());
    options.budget_s = args.quick ? std::min(args.seconds, 5.0) : args.seconds;
    options.small_only = args.quick;
    telemetry::ProgressBar bar;
    options.progress = [&](const std::string& what, double share) { bar.show(static_cast<int64_t>(1000 * share), 1000, what); };
    telemetry::info(fmt::format("measuring {} cores for about {:.0f} s; nothing else should run", options.cpus.size(),
                                1.3 * options.budget_s + 3));
    const sim::Cluster c = measure::machine(options);
    bar.clear();
    out << "# Written by `lockstep bench` on the machine that it describes. Times of single kernels and collectives only.\n"
        << sim::print(c);
    if (!out.flush()) throw UserError("bench.cannot_write", "--out", fmt::format("--out {}: cannot be written", args.out));
    const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const ops::CostTable& t = c.costs;
    if (args.json) {
        fmt::print("{}\n", nlohmann::ordered_json{{"out", args.out},
                                                  {"cores", t.cores},
                                                  {"flops_per_s", t.flops_per_s.at("f32")},
                                                  {"bf16_flops_per_s", t.flops_per_s.at("bf16")},
                                                  {"bytes_per_s", t.bytes_per_s},
                                                  {"kernels", t.rows.size()},
                                                  {"collectives", t.collectives.size()},
                                                  {"time_s", took_s}}
                               .dump());
        return kDone;
    }
    fmt::print("{}\n", c.description);
    for (size_t i = 0; i < t.bytes_per_s.size(); ++i)
        fmt::print(
            "  {} thread{}: {:.1f} GFLOP/s of float32 multiply-adds, {:.1f} of bfloat16, {:.1f} GB/s copied (read plus "
            "written)\n",
            i + 1, i == 0 ? "" : "s", t.flops_per_s.at("f32")[i] / 1e9, t.flops_per_s.at("bf16")[i] / 1e9,
            t.bytes_per_s[i] / 1e9);
    fmt::print("  {} kernels and shapes, {} collectives in {:.0f} s\n", t.rows.size(), t.collectives.size(), took_s);
    fmt::print("written: {}; use: lockstep plan RECIPE --cluster {}\n", args.out, args.out);
    return kDone;
}

}  // namespace lockstep::cli
