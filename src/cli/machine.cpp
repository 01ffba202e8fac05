#include "cli/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "check/check.h"
#include "cli/groups.h"
#include "compile/report.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {
namespace {

constexpr const char *kMemory = "cluster.memory_gib_per_rank", *kReserve = "cluster.reserve_gib_per_rank";

int64_t bytes_of_gib(double gib) { return static_cast<int64_t>(gib * (1 << 30)); }

std::string with_reserve(std::string of, int64_t reserve) {
    return reserve > 0 ? fmt::format("{} less {} of reserve", of, gib(reserve)) : of;
}

Capacity declared(const compile::Config& config, int64_t reserve) {
    return {bytes_of_gib(config.cluster.memory_gib_per_rank) - reserve,
            with_reserve(fmt::format("{} = {}", kMemory, config.cluster.memory_gib_per_rank), reserve), reserve};
}

}  // namespace

Capacity capacity_here(const compile::Config& config, int64_t ranks, const comm::Crew* crew) {
    const int64_t reserve = bytes_of_gib(config.cluster.reserve_gib_per_rank);
    if (config.cluster.memory_gib_per_rank > 0) return declared(config, reserve);
    const int64_t memory = telemetry::machine_memory_bytes(), sharing = crew ? crew->ranks_on_a_host(ranks) : ranks;
    return {memory / sharing - reserve,
            with_reserve(fmt::format("this machine's memory, {} / {} rank{}", gib(memory), sharing, sharing == 1 ? "" : "s"),
                         reserve),
            reserve};
}

Capacity capacity_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int64_t ranks) {
    const int64_t reserve =
        config.is_set(kReserve) ? bytes_of_gib(config.cluster.reserve_gib_per_rank) : static_cast<int64_t>(cluster.reserve_bytes);
    if (config.cluster.memory_gib_per_rank > 0) return declared(config, reserve);
    if (cluster.memory_bytes <= 0) return {std::nullopt, file + " does not say", reserve};
    const int64_t sharing = cluster.devices ? 1 : sim::ranks_sharing_cores(cluster, ranks);
    const auto memory = static_cast<int64_t>(cluster.memory_bytes);
    return {memory / sharing - reserve,
            with_reserve(cluster.devices ? fmt::format("{}: {} of a device", file, gib(memory))
                                         : fmt::format("{}: {} / {} ranks", file, gib(memory), sharing),
                         reserve),
            reserve};
}

Described described_machine(const compile::Config& config, const std::string& file, const char* asked_by) {
    Described d;
    d.cluster = sim::read_cluster(file, asked_by);
    sim::Hosts& hosts = d.cluster.hosts;
    if (const RanksByHost of = ranks_by_host(config); of.of_host > 0 && !d.cluster.devices)
        hosts.ranks = of.of_host, hosts.ranks_per_process = of.of_process;
    const int64_t ranks = compile::layout_of(config).ranks;
    // A device computes and communicates at once; ranks that are threads share the cores as the executor would place them.
    const int64_t sharing = hosts.ranks > 0 ? std::min(ranks, hosts.ranks) : ranks;
    d.placement = d.cluster.devices ? compile::Placement{1, true} : compile::placement_of(config, sharing, d.cluster.costs.cores);
    if (hosts.ranks > 0 && hosts.ranks < ranks && hosts.link.bandwidth_bytes_per_s <= 0)
        throw UserError("plan.no_link", "hosts.bandwidth_bytes_per_s",
                        fmt::format("{} {}: {} ranks need {} hosts of {}, and the file says nothing of their links: give "
                                    "hosts.bandwidth_bytes_per_s, or measure it with `mpirun ... lockstep bench` over hosts",
                                    asked_by, file, ranks, ceil_div(ranks, hosts.ranks), hosts.ranks));
    d.options = compile_options(config, d.placement.threads_per_rank);
    d.options.few_microbatches = true;
    d.options.route.topology = sim::topology_of(d.cluster, ranks);
    d.capacity = capacity_of(config, d.cluster, file, ranks);
    return d;
}

void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity) {
    if (const auto refusal = check::prove(compiled.of_ranks()))
        throw InternalError(fmt::format("check ({}): {}", refusal->reason, refusal->message));
    const int64_t needed = compiled.arena_bytes();
    if (!capacity.bytes || needed <= *capacity.bytes) return;
    std::string advice;
    std::string key = "training.local_batch_size";
    const std::vector<compile::Remedy> remedies = compile::remedies(config, options, needed);
    for (size_t i = 0; i < remedies.size() && i < 3; ++i) {
        if (i == 0) key = remedies[i].key;
        advice += fmt::format("{}{} = {} ({})", i == 0 ? "" : ", or ", remedies[i].key, remedies[i].value,
                              gib(remedies[i].total_bytes));
    }
    const int64_t has = std::max<int64_t>(*capacity.bytes, 0);
    throw UserError(
        "check.does_not_fit", key,
        fmt::format("a rank needs {} and has {} ({}): {} too much; what would help most: {}{}", gib(needed), gib(has),
                    capacity.of, gib(needed - has), advice.empty() ? "a smaller model" : advice, capacity.for_another));
}

}  // namespace lockstep::cli
