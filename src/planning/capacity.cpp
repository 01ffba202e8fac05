#include "planning/capacity.h"

#include <fmt/format.h>

#include "base/error.h"
#include "plugins/gpu_module.h"
#include "telemetry/metrics.h"
#include "telemetry/wrap.h"

namespace lockstep::planning {
namespace {

constexpr const char *kMemory = "cluster.memory_gib_per_rank", *kReserve = "cluster.reserve_gib_per_rank";

int64_t bytes_of_gib(double gib) { return static_cast<int64_t>(gib * (1 << 30)); }

std::string with_reserve(std::string of, int64_t reserve) {
    return reserve > 0 ? fmt::format("{} less {} of reserve", of, telemetry::gib(reserve)) : of;
}

// What cluster.memory_gib_per_rank says, less the reserve. `has`: bytes that a rank of the machine has, which `of_machine`
// names; nothing: not said. UserError check.memory_above_device: the key says more.
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
    const std::optional<int64_t> on_host = on_gpu ? std::optional(of_host / sharing) : std::nullopt;
    if (config.cluster.memory_gib_per_rank > 0) {
        Capacity capacity = declared(config, reserve, std::nullopt, "");
        capacity.host_bytes = on_host;
        return capacity;
    }
    const int64_t memory = on_gpu ? plugins::gpu_module().memory_bytes : of_host;
    return {memory / sharing - reserve,
            with_reserve(fmt::format("{} memory, {} / {} rank{}", on_gpu ? "the GPU's" : "this machine's", telemetry::gib(memory),
                                     sharing, sharing == 1 ? "" : "s"),
                         reserve),
            reserve, on_host};
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

}  // namespace lockstep::planning
