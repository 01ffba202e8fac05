#include "planning/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "check/check.h"
#include "compile/memory_report.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/planned.h"
#include "kernels/kernel.h"
#include "ops/described_catalog.h"
#include "planning/topology.h"
#include "plugins/gpu_module.h"
#include "runtime/ranks_options.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"
#include "telemetry/wrap.h"

namespace lockstep::planning {

std::optional<Isa> isa_of(const compile::Config& config) {
    using compile::InstructionSet;
    switch (config.runtime.instruction_set) {
        case InstructionSet::Auto: return std::nullopt;
        case InstructionSet::Avx512: return Isa::avx512;
        case InstructionSet::Avx2: return Isa::avx2;
        case InstructionSet::Baseline: return Isa::baseline;
    }
    return std::nullopt;
}

void use_instruction_set(const compile::Config& config) {
    const std::optional<Isa> wanted = isa_of(config);
    const Isa best = kernels::cpu::detect_isa();
    if (wanted && *wanted > best)
        throw UserError("recipe.instruction_set", "runtime.instruction_set",
                        fmt::format("{}runtime.instruction_set = \"{}\": the best one of this processor is {}",
                                    config.where("runtime.instruction_set"), word_of(config.runtime.instruction_set),
                                    kernels::cpu::name(best)));
    kernels::cpu::use_isa(wanted.value_or(best));
}

compile::CompileOptions compile_options(const compile::Config& config, const comm::ProcessGroup* group) {
    const int64_t ranks = compile::layout_of(config).ranks;
    compile::CompileOptions options;
    options.catalog = catalog_here(config, runtime::rank_threads_of(config, ranks, group).threads_per_rank);
    options.route.topology = topology_of(config, ranks, group);
    options.route.library_sums = config.on_gpu() && config.comm.reductions == compile::Reductions::Nccl;
    if (config.on_gpu()) options.memory = compile::ComputesIn::DeviceMemory;
    return options;
}

namespace {

constexpr const char *kMemory = "cluster.memory_gib_per_rank", *kReserve = "cluster.reserve_gib_per_rank";

int64_t bytes_of_gib(double gib) { return static_cast<int64_t>(gib * (1 << 30)); }

std::string with_reserve(std::string of, int64_t reserve) {
    return reserve > 0 ? fmt::format("{} less {} of reserve", of, telemetry::gib(reserve)) : of;
}

// What cluster.memory_gib_per_rank says, less the reserve. `has`: bytes that a rank of the machine has, which `of_machine` names;
// nothing: not said. UserError check.memory_above_device: the key says more.
Capacity declared(const compile::Config& config, int64_t reserve, const std::optional<int64_t>& has,
                  const std::string& of_machine) {
    const double gib = config.cluster.memory_gib_per_rank;
    if (has && bytes_of_gib(gib) > *has)
        throw UserError(
            "check.memory_above_device", kMemory,
            fmt::format("{}{} = {}: more than a rank has ({}). Lower the key, or leave it out: then all of that counts",
                        config.where(kMemory), kMemory, gib, of_machine));
    return {bytes_of_gib(gib) - reserve, with_reserve(fmt::format("{} = {}", kMemory, gib), reserve), reserve};
}

}  // namespace

Capacity capacity_here(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group) {
    const int64_t reserve = bytes_of_gib(config.cluster.reserve_gib_per_rank);
    const bool on_gpu = config.on_gpu();
    const int64_t of_host = telemetry::machine_memory_bytes();
    const int64_t sharing = group ? group->ranks_on_a_host(ranks) : ranks;
    const std::optional<int64_t> beside = on_gpu ? std::optional(of_host / sharing) : std::nullopt;
    if (config.cluster.memory_gib_per_rank > 0) {
        Capacity capacity = declared(config, reserve, std::nullopt, "");
        capacity.host_bytes = beside;
        return capacity;
    }
    const int64_t memory = on_gpu ? plugins::gpu_module().memory_bytes : of_host;
    return {memory / sharing - reserve,
            with_reserve(fmt::format("{} memory, {} / {} rank{}", on_gpu ? "the GPU's" : "this machine's", telemetry::gib(memory),
                                     sharing, sharing == 1 ? "" : "s"),
                         reserve),
            reserve, beside};
}

Capacity capacity_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int64_t ranks) {
    const int64_t reserve =
        config.is_set(kReserve) ? bytes_of_gib(config.cluster.reserve_gib_per_rank) : static_cast<int64_t>(cluster.reserve_bytes);
    const int64_t sharing = cluster.devices ? 1 : sim::ranks_sharing_cores(cluster, ranks);
    const auto memory = static_cast<int64_t>(cluster.memory_bytes);
    const std::string of = cluster.devices ? fmt::format("{}: {} of a device", file, telemetry::gib(memory))
                                           : fmt::format("{}: {} / {} ranks", file, telemetry::gib(memory), sharing);
    if (config.cluster.memory_gib_per_rank > 0)
        return declared(config, reserve, memory > 0 ? std::optional(memory / sharing) : std::nullopt, of);
    if (memory <= 0) return {std::nullopt, file + " does not say", reserve};
    return {memory / sharing - reserve, with_reserve(of, reserve), reserve};
}

namespace {

void remove_disabled(const compile::Config& config, ops::KernelCatalog& catalog) {
    for (const std::string& op : config.runtime.disabled_kernels.names)
        std::erase_if(catalog.entries, [&](const ops::KernelEntry& e) { return e.op == op; });
}

// Rows of cluster.file choose between kernels of processors.
std::shared_ptr<const ops::CostTable> rows_of(const compile::Config& config) {
    if (config.cluster.file.empty()) return nullptr;
    sim::Cluster cluster = sim::read_cluster(config.cluster.file, "cluster.file");
    return cluster.devices ? nullptr : std::make_shared<ops::CostTable>(std::move(cluster.costs));
}

// What runtime.instruction_set leaves of a processor that a cluster file names.
InstructionSets sets_of(const compile::Config& config, const InstructionSets& all, const std::string& file) {
    const std::optional<Isa> wanted = isa_of(config);
    if (wanted && *wanted > all.isa)
        throw UserError("recipe.instruction_set", "runtime.instruction_set",
                        fmt::format("{}runtime.instruction_set = \"{}\": the best one of the processor in {} is {}",
                                    config.where("runtime.instruction_set"), word_of(config.runtime.instruction_set), file,
                                    words_of(all).front()));
    return wanted ? limited_to(all, *wanted) : all;
}

std::string cpu_kernels(const InstructionSets& sets) {
    return fmt::format("cpu kernels for {}", fmt::join(words_of(sets), ", "));
}

struct Kernels {
    ops::KernelCatalog catalog;
    KernelsOf of;
};

Kernels kernels_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int threads) {
    Kernels k;
    if (config.runtime.kernels == compile::Kernels::Reference) {
        k = {kernels::reference_catalog(), {"reference kernels"}};
    } else if (cluster.runs_module()) {
        k = {kernels::cuda::planned_catalog(file, cluster.module.compute_capability),
             {"kernels of Lockstep's module for NVIDIA's GPUs"}};
    } else if (!cluster.catalog.empty()) {
        k = {ops::described_catalog(cluster.catalog_name, file, cluster.catalog), {"kernels of " + cluster.catalog_name}};
    } else if (cluster.instruction_sets) {
        const InstructionSets sets = sets_of(config, *cluster.instruction_sets, file);
        k = {kernels::cpu_catalog(threads, sets), {cpu_kernels(sets)}};
    } else {
        use_instruction_set(config);
        k = {kernels::cpu_catalog(threads), {}};
        k.of = {fmt::format("the file names no kernels, so those of this machine: {}",
                            cpu_kernels(kernels::cpu::instruction_sets_here())),
                true};
    }
    remove_disabled(config, k.catalog);
    k.catalog.costs = cluster.devices ? std::make_shared<ops::CostTable>(cluster.costs) : rows_of(config);
    return k;
}

}  // namespace

namespace {
ops::KernelCatalog catalog_of(compile::Kernels kernels, int threads) {
    switch (kernels) {
        case compile::Kernels::Cpu: break;
        case compile::Kernels::Cuda: return plugins::gpu_catalog();
        case compile::Kernels::Reference: return kernels::reference_catalog();
    }
    return kernels::cpu_catalog(threads);
}
std::string kernels_here(compile::Kernels kernels) {
    switch (kernels) {
        case compile::Kernels::Cpu: break;
        case compile::Kernels::Cuda: return "kernels of " + plugins::gpu_module().description;
        case compile::Kernels::Reference: return "reference kernels";
    }
    return cpu_kernels(kernels::cpu::instruction_sets_here());
}
}  // namespace

ops::KernelCatalog catalog_here(const compile::Config& config, int threads) {
    ops::KernelCatalog catalog = catalog_of(config.runtime.kernels, threads);
    remove_disabled(config, catalog);
    catalog.costs = rows_of(config);
    return catalog;
}

void note_other_machine(const compile::Config& config) {
    const std::string& file = config.cluster.file;
    if (file.empty()) return;
    const sim::Cluster cluster = sim::read_cluster(file, "cluster.file");
    if (cluster.devices)
        telemetry::info(
            fmt::format("cluster.file {} describes devices: this runs on this machine, with the kernels of its processor", file));
}

Machine described_machine(const compile::Config& config, const std::string& file, const char* asked_by) {
    return described_machine(config, sim::read_cluster(file, asked_by, config.cluster.stack), file);
}

Machine described_machine(const compile::Config& config, sim::Cluster described, const std::string& file) {
    Machine m;
    m.file = file, m.stack = config.cluster.stack;
    sim::Cluster& cluster = m.cluster.emplace(std::move(described));
    sim::Hosts& hosts = cluster.hosts;
    const RanksByHost of = ranks_by_host(config);
    if (of.of_host > 0 && !cluster.devices) hosts.ranks = of.of_host, hosts.ranks_per_process = of.of_process;
    const int64_t ranks = compile::layout_of(config).ranks;
    // A device computes and communicates at once; ranks that are threads share the cores as the executor would place them.
    const int64_t sharing = hosts.ranks > 0 ? std::min(ranks, hosts.ranks) : ranks;
    m.rank_threads =
        cluster.devices ? compile::RankThreads{1, true} : compile::rank_threads_of(config, sharing, cluster.costs.cores);
    Kernels k = kernels_of(config, cluster, file, m.rank_threads.threads_per_rank);
    m.options.catalog = std::move(k.catalog), m.kernels = std::move(k.of);
    m.options.microbatches = compile::Microbatches::Steady;
    if (cluster.devices) m.options.memory = compile::ComputesIn::DeviceMemory;
    if (!cluster.stack.name.empty()) m.options.skip.push_back("pack_products");  // the simulator merges them: merged_products
    if (cluster.stack.whole_logits) m.options.skip.push_back("fuse_loss");
    m.options.route.topology = sim::topology_of(cluster, ranks);
    if (of.of_host > 0 && cluster.devices) m.options.route.topology = mesh::even_hosts(ranks, of.of_host, of.of_process);
    // A GPU has a process of its own.
    if (cluster.runs_module() && of.of_host == 0 && hosts.ranks == 0)
        m.options.route.topology = mesh::even_hosts(ranks, cluster.links.size() < 2 ? ranks : cluster.ranks_of_host(), 1);
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
        m.kernels = {kernels_here(config.runtime.kernels), true};
    }
    m.capacity.for_another = for_another_machine(config, ranks, "");
    return m;
}

std::string for_another_machine(const compile::Config& config, int64_t ranks, const std::string& command) {
    const std::string of_ranks =
        config.leaves_ranks_open()
            ? fmt::format(", and --ranks N: the recipe leaves the number of ranks open, and {} {} assumed", ranks,
                          ranks == 1 ? "is" : "are")
            : fmt::format("; the recipe has {}, and --ranks N with other degrees of [parallelism] plans it on more",
                          telemetry::plural(ranks, "rank"));
    return fmt::format(". For another machine{} give {}--cluster FILE (clusters/ has some) or cluster.memory_gib_per_rank{}",
                       config.cluster.file.empty() ? "" : " than that of cluster.file", command, of_ranks);
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

std::optional<UserError> refusal_of(const compile::Config& config, const compile::CompileOptions& options,
                                    const compile::Compiled& compiled, const Capacity& capacity) {
    if (const auto refusal = check::prove(compiled.of_ranks()))
        throw InternalError(fmt::format("check ({}): {}", refusal->reason, refusal->message));
    if (const int64_t beside = compiled.host_bytes(); capacity.host_bytes && beside > *capacity.host_bytes) {
        return UserError("check.host_memory", "checkpoint.async_mode",
                         fmt::format("a rank needs {} of the host's memory, for copies of its states from which checkpoints are "
                                     "written beside training, and has {}: set checkpoint.async_mode = \"disabled\", or split "
                                     "the states over more hosts",
                                     telemetry::gib(beside), telemetry::gib(*capacity.host_bytes)));
    }
    const int64_t needed = compiled.arena_bytes();
    if (!capacity.bytes || needed <= *capacity.bytes) return std::nullopt;
    std::string advice;
    std::string key = "training.local_batch_size";
    const std::vector<compile::Remedy> remedies = compile::remedies(config, options, needed);
    for (size_t i = 0; i < remedies.size() && i < 3; ++i) {
        if (i == 0) key = remedies[i].key;
        advice += fmt::format("{}{} = {} ({})", i == 0 ? "" : ", or ", remedies[i].key, remedies[i].value,
                              telemetry::gib(remedies[i].total_bytes));
    }
    const int64_t has = std::max<int64_t>(*capacity.bytes, 0);
    return UserError("check.does_not_fit", key,
                     fmt::format("a rank needs {} and has {} ({}): {} too much; what would help most: {}{}",
                                 telemetry::gib(needed), telemetry::gib(has), capacity.of, telemetry::gib(needed - has),
                                 advice.empty() ? "a smaller model" : advice, capacity.for_another));
}

void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity) {
    if (const std::optional<UserError> refusal = refusal_of(config, options, compiled, capacity)) throw *refusal;
}

}  // namespace lockstep::planning
