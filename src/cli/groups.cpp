#include "cli/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "cli/commands.h"
#include "sim/cluster.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

std::string size(double bytes) {
    return bytes < (1 << 30) ? fmt::format("{:.3f} MiB", bytes / (1 << 20)) : gib(static_cast<int64_t>(bytes));
}

std::string text_of(const std::vector<int64_t>& ranks) {
    if (ranks.size() <= 8) return fmt::format("{}", fmt::join(ranks, " "));
    return fmt::format("{} {} {} ... {}", ranks[0], ranks[1], ranks[2], ranks.back());
}

}  // namespace

std::optional<sim::Cluster> described_cluster(const compile::Config& config) {
    const std::string& file = config.cluster.file;
    if (file.empty()) return std::nullopt;
    sim::Cluster cluster = sim::read_cluster(file, "cluster.file");
    return cluster.devices || cluster.hosts.ranks > 0 ? std::optional(std::move(cluster)) : std::nullopt;
}

RanksByHost ranks_by_host(const compile::Config& config) {
    return {config.cluster.ranks_per_host, config.cluster.ranks_per_process};
}

mesh::Topology topology_of(const compile::Config& config, int64_t ranks, const comm::Crew* crew) {
    if (crew && !crew->is_alone()) {
        mesh::Topology out{{}, crew->ranks_a_process(ranks)};
        for (int64_t r = 0; r < ranks; ++r)
            out.host_of_rank.push_back(crew->host_of(static_cast<int>(r / out.ranks_per_process)));
        return out;
    }
    const RanksByHost of = ranks_by_host(config);
    if (of.of_host > 0) return mesh::even_hosts(ranks, of.of_host, of.of_process);
    const std::optional<sim::Cluster> cluster = described_cluster(config);
    return cluster ? sim::topology_of(*cluster, ranks) : mesh::Topology{};
}

std::vector<int> hosts_described(const std::optional<sim::Cluster>& cluster, const mesh::Topology& compiled_for, int64_t ranks) {
    if (!compiled_for.host_of_rank.empty()) return compiled_for.host_of_rank;
    if (!cluster || cluster->links.size() < 2) return {};
    // The last link joins hosts, the one before a host.
    return mesh::even_hosts(ranks, cluster->links[cluster->links.size() - 2].ranks, 1).host_of_rank;
}

void print_groups(const std::vector<compile::GroupTraffic>& groups) {
    if (groups.empty()) return;
    size_t axes = 4, ranks = 8;
    for (const compile::GroupTraffic& g : groups)
        axes = std::max(axes, g.axes.size()), ranks = std::max(ranks, text_of(g.first).size());
    fmt::print("groups       {:<{}}  of ranks  groups  hosts  {:<{}}  a rank sends in a step\n", "along", axes, "e.g.", ranks);
    for (const compile::GroupTraffic& g : groups) {
        std::vector<std::string> parts;
        for (const auto& [kind, bytes] : g.bytes) parts.push_back(fmt::format("{} {}", kind, size(bytes)));
        fmt::print("             {:<{}}{:>10}{:>8}{:>7}  {:<{}}  {}\n", g.axes, axes, g.members, g.groups,
                   g.hosts > 0 ? std::to_string(g.hosts) : "-", text_of(g.first), ranks, fmt::join(parts, ", "));
    }
}

void print_hosts(const std::vector<double>& bytes) {
    if (bytes.size() < 2) return;
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    fmt::print("hosts        {}; each sends {} in a step to others\n", bytes.size(),
               *least == *most ? size(*most) : fmt::format("{} to {}", size(*least), size(*most)));
}

nlohmann::ordered_json groups_json(const std::vector<compile::GroupTraffic>& groups) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const compile::GroupTraffic& g : groups)
        out.push_back({{"along", g.axes},
                       {"members", g.members},
                       {"groups", g.groups},
                       {"hosts", g.hosts},
                       {"ranks", g.first},
                       {"bytes_sent_by_a_rank", g.bytes}});
    return out;
}

void warn_of_hosts(const std::optional<sim::Cluster>& cluster, const std::vector<compile::GroupTraffic>& groups) {
    for (const compile::GroupTraffic& g : groups) {
        if (g.hosts <= 1 || g.axes.find("tp") == std::string::npos || g.axes.find(',') != std::string::npos) continue;
        const double bandwidth = !cluster           ? 0
                                 : cluster->devices ? sim::link_of(*cluster, g.first).link.bandwidth_bytes_per_s
                                                    : cluster->hosts.link.bandwidth_bytes_per_s;
        telemetry::warn(fmt::format(
            "each tensor-parallel group spans {} hosts, and every layer waits for data between them: {} per rank and step{}; a "
            "tensor_parallel_degree that fits on one host is faster",
            g.hosts, size(g.total_bytes()),
            bandwidth > 0 ? fmt::format(", {:.3g} s at {:.3g} GB/s", g.total_bytes() / bandwidth, bandwidth / 1e9) : ""));
    }
}

}  // namespace lockstep::cli
