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
#include "measure/products.h"
#include "planning/kernels.h"
#include "planning/recipe_args.h"
#include "plugins/gpu_module.h"
#include "runtime/ranks.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

namespace {

struct BenchArgs {
    std::string out, machine, kernels = "cpu", products;
    planning::RecipeArgs recipe;  // of products
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

// The file, now, rather than after minutes.
AtomicFile out_file(const std::string& path) {
    try {
        return AtomicFile(path);
    } catch (const UserError&) {
        throw UserError("bench.cannot_write", "--out", fmt::format("--out {}: cannot be written", path));
    }
}

// Algorithms of cuBLASLt for the products of a recipe.
int bench_products(BenchArgs args, const comm::ProcessGroup& group) {
    if (!group.is_alone())
        throw UserError("bench.one_gpu", "--products",
                        "--products measures the GPU of one process, and here are several: start it without mpirun");
    if (args.out.empty()) args.out = "products.toml";
    args.recipe.path = args.products;
    compile::Recipe recipe = planning::read_recipe(args.recipe).recipe;
    recipe.set("runtime.kernels", "cuda"), recipe.set("runtime.products", "");
    compile::CompileOptions options;
    options.catalog = plugins::gpu_catalog();
    options.memory = compile::ComputesIn::DeviceMemory;
    const compile::Compiled compiled = compile::compile(recipe, options);
    AtomicFile out = out_file(args.out);
    telemetry::ProgressBar bar;
    measure::ProductOptions how;
    how.cpu = usable_cpus()[0];
    if (args.quick) how.burn_s = 0, how.each_s = 0;
    how.progress = [&](const std::string& what, double share) { bar.show(static_cast<int64_t>(1000 * share), 1000, what); };
    telemetry::info(fmt::format("measuring products on {}; nothing else should run", plugins::gpu_module().name));
    const kernels::cuda::ChosenProducts found = measure::products(compiled, how);
    bar.clear();
    out.append(kernels::cuda::print(found));
    out.finish();
    out.publish();
    size_t faster = 0;
    double before_s = 0, after_s = 0;
    for (const kernels::cuda::ChosenProduct& row : found.rows)
        faster += row.seconds < row.first_seconds, before_s += row.first_seconds, after_s += row.seconds;
    if (args.json) {
        print_json(nlohmann::ordered_json{{"out", args.out},
                                          {"device", found.device},
                                          {"version", found.version},
                                          {"products", found.rows.size()},
                                          {"faster", faster},
                                          {"first_s", before_s},
                                          {"chosen_s", after_s}});
        return kDone;
    }
    fmt::print(
        "{}, cuBLASLt {}: {} products, {} of them faster by another algorithm than its first; all together {:.4g} ms for "
        "{:.4g}\n",
        found.device, found.version, found.rows.size(), faster, 1e3 * after_s, 1e3 * before_s);
    fmt::print("written: {}; use: lockstep train {} --runtime.products {}\n", args.out, args.products, args.out);
    return kDone;
}

int bench(BenchArgs args, comm::ProcessGroup& group) {
    if (!args.products.empty()) return bench_products(args, group);
    if (!args.recipe.settings.empty())
        throw UserError("bench.settings", "--products",
                        fmt::format("--{} changes a recipe, which bench reads with --products RECIPE only",
                                    args.recipe.settings.front().first));
    if (args.out.empty()) args.out = "cluster.toml";
    const auto start = std::chrono::steady_clock::now();
    std::optional<AtomicFile> out;
    if (group.is_first()) out.emplace(out_file(args.out));
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
    command->add_option("--out", args->out, "file to write (default cluster.toml, with --products products.toml)");
    command->add_option("--products", args->products,
                        "instead of a cluster file: time the algorithms that cuBLASLt has for each product of this recipe's "
                        "program on this machine's GPU, and write the fastest ones for runtime.products");
    command->add_option("--seconds", args->seconds, "seconds to spend on kernels (default 80)")->check(positive_number());
    command->add_option("--machine", args->machine, "cluster file to take kernels and copies from; only links are measured");
    command->add_flag("--quick", args->quick, "small shapes only: a rough cluster file in seconds");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep bench --out this_machine.toml\n         mpirun -n 8 --host a:4,b:4 lockstep bench --out "
        "two_hosts.toml\n         lockstep bench --products recipes/llama3_8b.toml --out products.toml");
    command->allow_extras();
    return {.app = command,
            .run = [args](comm::ProcessGroup& group) { return bench(*args, group); },
            .recipe = &args->recipe,
            .in_every_process = true};
}

}  // namespace lockstep::cli
