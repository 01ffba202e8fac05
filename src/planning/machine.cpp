#include "planning/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "planning/products.h"
#include "planning/topology.h"
#include "runtime/ranks_options.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::planning {
namespace {

// Passes that programs for another stack leave out.
struct LeftOut {
    const char* pass;
    bool (*is_left_out_by)(const sim::Stack&);
};
constexpr LeftOut kLeftOut[] = {
    {"pack_products", [](const sim::Stack& s) { return !s.name.empty(); }},  // the simulator merges them: merged_products
    {"fuse_loss", [](const sim::Stack& s) { return s.whole_logits; }},
};

std::vector<std::string> passes_left_out(const sim::Stack& stack) {
    std::vector<std::string> out;
    for (const LeftOut& l : kLeftOut) {
        if (l.is_left_out_by(stack)) out.emplace_back(l.pass);
    }
    return out;
}

// The same on all processes.
bool have_peers(const compile::Config& config, comm::ProcessGroup& group) {
    if (config.comm.transport != compile::CommTransport::Auto || group.hosts() == group.processes()) return false;
    const std::string why = runtime::why_no_peers(group);
    if (!why.empty() && group.is_first())
        telemetry::warn(
            fmt::format("GPUs of a host do not write to each other's memory here, so NCCL carries their collectives ({}). "
                        "comm.transport = \"nccl\" leaves out the attempt",
                        why));
    return why.empty();
}

}  // namespace

compile::CompileOptions compile_options(const compile::Config& config, comm::ProcessGroup* group) {
    const int64_t ranks = compile::layout_of(config).ranks;
    compile::CompileOptions options;
    options.catalog = catalog_here(config, runtime::rank_threads_of(config, ranks, group).threads_per_rank);
    options.route.topology = topology_of(config, ranks, group);
    if (config.on_gpu() && group) options.route.topology.peers = have_peers(config, *group);
    options.route.library_sums = config.on_gpu() && config.comm.reductions == compile::Reductions::Nccl;
    if (config.on_gpu()) options.memory = compile::ComputesIn::DeviceMemory;
    return options;
}

Machine described_machine(const compile::Config& config, const std::string& file, const char* asked_by) {
    return described_machine(config, sim::read_cluster(file, asked_by, config.cluster.stack), file);
}

Machine described_machine(const compile::Config& config, sim::Cluster described, const std::string& file) {
    Machine m;
    m.file = file, m.stack = config.cluster.stack;
    sim::Cluster& cluster = m.cluster.emplace(std::move(described));
    if (const auto products = products_of(config, cluster)) kernels::cuda::add_times(cluster.costs, *products);
    sim::Hosts& hosts = cluster.hosts;
    const RanksByHost of = ranks_by_host(config);
    if (of.of_host > 0 && !cluster.devices) hosts.ranks = of.of_host, hosts.ranks_per_process = of.of_process;
    const int64_t ranks = compile::layout_of(config).ranks;
    // A device computes and communicates at once; ranks that are threads share the cores as the executor would place them.
    const int64_t sharing = hosts.ranks > 0 ? std::min(ranks, hosts.ranks) : ranks;
    m.rank_threads =
        cluster.devices ? compile::RankThreads{1, true} : compile::rank_threads_of(config, sharing, cluster.costs.cores);
    Kernels k = kernels_of(config, cluster, file, m.rank_threads.threads_per_rank);
    const bool is_own = cluster.stack.name.empty();
    m.options.catalog = std::move(k.catalog), m.kernels = std::move(k.of);
    m.options.catalog.gives_more = m.options.catalog.gives_more && is_own;
    m.options.microbatches = compile::Microbatches::Steady;
    if (cluster.devices) m.options.memory = compile::ComputesIn::DeviceMemory;
    m.options.skip = passes_left_out(cluster.stack);
    m.options.is_narrow_by_default = is_own;
    m.options.route.topology = topology_of(config, cluster, ranks);
    m.options.route.library_sums = cluster.runs_module() && config.comm.reductions == compile::Reductions::Nccl;
    m.capacity = capacity_of(config, cluster, file, ranks);
    return m;
}

Machine machine_of(const compile::Config& config, const std::string& flag) {
    if (!flag.empty()) return described_machine(config, flag, "--cluster");
    const int64_t ranks = compile::layout_of(config).ranks;
    const std::string& file = config.cluster.file;
    Machine m;
    if (!file.empty()) {
        m = described_machine(config, file, "cluster.file");
    } else {
        use_instruction_set(config);
        m.options = compile_options(config);
        m.options.microbatches = compile::Microbatches::Steady;
        m.rank_threads.threads_per_rank = m.options.catalog.threads;
        m.capacity = capacity_here(config, ranks, nullptr);
        m.kernels = kernels_here(config);
    }
    m.capacity.for_another = for_another_machine(config, ranks, "");
    return m;
}

std::string machine_text(const Machine& m) {
    const std::string threads = m.cluster && m.cluster->devices
                                    ? "a device a rank"
                                    : telemetry::plural(m.rank_threads.threads_per_rank, "thread") + " a rank";
    const std::string name = m.cluster ? fmt::format("{} ({})", m.cluster->name, m.file) : "this one";
    return fmt::format("{}; {}; {}", name, m.kernels.text, threads);
}

nlohmann::ordered_json machine_json(const Machine& m) {
    return {{"file", m.file},
            {"name", m.cluster ? m.cluster->name : "this machine"},
            {"kernels", m.kernels.text},
            {"this_machine", m.kernels.this_machine},
            {"threads_per_rank", m.rank_threads.threads_per_rank}};
}

Needed needed_by(const Machine& machine, const compile::Compiled& compiled) {
    Needed out;
    out.bytes = compiled.arena_bytes();
    if (!machine.cluster || !machine.cluster->stack.memory.is_described()) return out;
    const sim::Stack& stack = machine.cluster->stack;
    double most = 0;
    for (const ir::Program& p : compiled.programs) {
        const sim::StackBytes b = out.of_stack.emplace_back(sim::stack_bytes(p, stack));
        out.allocated_bytes = std::max(out.allocated_bytes, b.allocated());
        most = std::max(most, b.reserved(stack.memory));
    }
    out.bytes = static_cast<int64_t>(most);
    return out;
}

bool has_room(const Machine& machine, int64_t bytes) { return !machine.capacity.bytes || bytes <= *machine.capacity.bytes; }

}  // namespace lockstep::planning
