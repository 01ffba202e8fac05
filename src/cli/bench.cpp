#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "base/processors.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "measure/hosts.h"
#include "measure/machine.h"
#include "planning/kernels.h"
#include "plugins/gpu_module.h"
#include "runtime/ranks.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

namespace {

struct BenchArgs {
    std::string out = "cluster.toml", machine, kernels = "cpu";
    double seconds = 80;
    bool quick = false, json = false;
};

sim::Cluster machine_of(const BenchArgs& args) {
    if (!args.machine.empty()) {
        sim::Cluster c = sim::read_cluster(args.machine, "--machine");
        if (c.devices || c.costs.flops_per_s["f32"].empty())
            throw UserError(
                "bench.machine", "--machine",
                fmt::format("--machine {}: must describe a machine without devices, with rates for f32; `lockstep bench` "
                            "without --machine writes such a file",
                            args.machine));
        return c;
    }
    measure::MachineOptions options;
    options.cpus = usable_cpus();
    options.memory_bytes = static_cast<double>(telemetry::machine_memory_bytes());
    options.budget_s = args.quick ? std::min(args.seconds, 5.0) : args.seconds;
    options.small_only = args.quick;
    telemetry::ProgressBar bar;
    options.progress = [&](const std::string& what, double share) { bar.show(static_cast<int64_t>(1000 * share), 1000, what); };
    const bool on_gpu = args.kernels == "cuda";
    telemetry::info(fmt::format("measuring {} for about {:.0f} s; nothing else should run",
                                on_gpu ? plugins::gpu_module().name : fmt::format("{} cores", options.cpus.size()),
                                1.3 * options.budget_s + (on_gpu ? 20 : 3)));
    planning::require_processor();
    const sim::Cluster c = on_gpu ? measure::gpu(options) : measure::machine(options);
    bar.clear();
    return c;
}

int bench(const BenchArgs& args, comm::ProcessGroup& group) {
    const auto start = std::chrono::steady_clock::now();
    std::optional<AtomicFile> out;
    try {
        if (group.is_first()) out.emplace(args.out);  // now, rather than after two minutes
    } catch (const UserError&) {
        throw UserError("bench.cannot_write", "--out", fmt::format("--out {}: cannot be written", args.out));
    }
    if (args.kernels == "cuda" && !group.is_alone())
        throw UserError("bench.one_gpu", "--kernels",
                        "--kernels cuda measures the GPU of one process, and here are several: start it without mpirun, and "
                        "add [[links]] to the file that it writes");
    sim::Cluster c;
    if (group.is_first()) c = machine_of(args);
    group.exchange("");  // the others wait until the cores are free
    if (!group.is_alone()) c.hosts = measure::hosts(group);
    if (!group.is_first()) return kDone;
    out->append(
        "# Written by `lockstep bench` on the machine that it describes. Times of single kernels and collectives only.\n");
    out->append(sim::print(c));
    out->finish();
    out->publish();
    const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const ops::CostTable& t = c.costs;
    const std::vector<double>&f32 = t.flops_per_s.at("f32"),
          &bf16 = t.flops_per_s.contains("bf16") ? t.flops_per_s.at("bf16") : f32;
    if (args.json) {
        print_json(nlohmann::ordered_json{{"out", args.out},
                                          {"cores", t.cores},
                                          {"flops_per_s", f32},
                                          {"bf16_flops_per_s", bf16},
                                          {"bytes_per_s", t.bytes_per_s},
                                          {"kernels", t.rows.size()},
                                          {"collectives", t.collectives.size()},
                                          {"hosts", group.hosts()},
                                          {"time_s", took_s}});
        return kDone;
    }
    fmt::print("{}\n", c.description);
    if (c.devices) {
        fmt::print("  {:.1f} TFLOP/s of float32 products, {:.1f} of bfloat16, by the data sheet where that is known\n",
                   f32[0] / 1e12, bf16[0] / 1e12);
        fmt::print("  {:.1f} GB/s copied (read plus written), {:.1f} us to start a kernel\n", t.bytes_per_s[0] / 1e9,
                   1e6 * c.host.launch_s);
    } else {
        for (size_t i = 0; i < t.bytes_per_s.size(); ++i)
            fmt::print(
                "  {} thread{}: {:.1f} GFLOP/s of float32 multiply-adds, {:.1f} of bfloat16, {:.1f} GB/s copied (read plus "
                "written)\n",
                i + 1, i == 0 ? "" : "s", f32[std::min(i, f32.size() - 1)] / 1e9, bf16[std::min(i, bf16.size() - 1)] / 1e9,
                t.bytes_per_s[i] / 1e9);
    }
    if (const sim::Hosts& h = c.hosts; group.hosts() > 1)
        fmt::print("  {} hosts of {} processes: {:.4g} MB/s between two, {:.0f} us a message\n", group.hosts(), h.ranks,
                   h.link.bandwidth_bytes_per_s / 1e6, 1e6 * h.link.latency_s);
    fmt::print("  {} kernels and shapes, {} collectives in {:.0f} s\n", t.rows.size(), t.collectives.size(), took_s);
    fmt::print("written: {}; use: lockstep plan RECIPE --cluster {}\n", args.out, args.out);
    return kDone;
}

}  // namespace

Command add_bench(CLI::App& app) {
    const auto args = std::make_shared<BenchArgs>();
    CLI::App* command = app.add_subcommand(
        "bench",
        "measure this machine and write its cluster file: kernels, copies, collectives, and links if started over hosts");
    command->add_option("--kernels", args->kernels, "cpu: of this machine's cores (default); cuda: of its GPU")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    command->add_option("--out", args->out, "cluster file to write (default cluster.toml)");
    command->add_option("--seconds", args->seconds, "seconds to spend on kernels (default 80)")->check(positive_number());
    command->add_option("--machine", args->machine, "cluster file to take kernels and copies from; only links are measured");
    command->add_flag("--quick", args->quick, "small shapes only: a rough cluster file in seconds");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep bench --out this_machine.toml\n         mpirun -n 8 --host a:4,b:4 lockstep bench --out "
        "two_hosts.toml");
    return {.app = command, .run = [args](comm::ProcessGroup& group) { return bench(*args, group); }, .in_every_process = true};
}

}  // namespace lockstep::cli
