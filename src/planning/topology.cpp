#include "planning/topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "sim/cluster.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::planning {
std::string size_text(double bytes) {
    return bytes < (1 << 30) ? fmt::format("{:.3f} MiB", bytes / (1 << 20)) : telemetry::gib(static_cast<int64_t>(bytes));
}

std::optional<sim::Cluster> described_cluster(const compile::Config& config) {
    const std::string& file = config.cluster.file;
    if (file.empty()) return std::nullopt;
    sim::Cluster cluster = sim::read_cluster(file, "cluster.file");
    return cluster.devices || cluster.hosts.ranks > 0 ? std::optional(std::move(cluster)) : std::nullopt;
}

RanksByHost ranks_by_host(const compile::Config& config) {
    return {config.cluster.ranks_per_host, config.cluster.ranks_per_process};
}

mesh::Topology topology_of(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* processes) {
    if (processes && !processes->is_alone()) {
        mesh::Topology out{{}, processes->ranks_a_process(ranks)};
        for (int64_t r = 0; r < ranks; ++r)
            out.host_of_rank.push_back(processes->host_of(static_cast<int>(r / out.ranks_per_process)));
        return out;
    }
    const RanksByHost of = ranks_by_host(config);
    if (of.of_host > 0) return mesh::even_hosts(ranks, of.of_host, of.of_process);
    const std::optional<sim::Cluster> cluster = described_cluster(config);
    return cluster ? sim::topology_of(*cluster, ranks) : mesh::Topology{};
}

mesh::Topology topology_of(const compile::Config& config, const sim::Cluster& cluster, int64_t ranks) {
    const RanksByHost of = ranks_by_host(config);
    mesh::Topology out;
    if (cluster.devices && of.of_host > 0) {
        out = mesh::even_hosts(ranks, of.of_host, of.of_process);
    } else if (cluster.runs_module() && of.of_host == 0 && cluster.hosts.ranks == 0) {  // a GPU has a process of its own
        out = mesh::even_hosts(ranks, cluster.links.size() < 2 ? ranks : cluster.ranks_of_host(), 1);
    } else {
        return sim::topology_of(cluster, ranks);
    }
    out.peers = cluster.runs_module() && cluster.peer_access && out.ranks_per_process == 1 &&
                config.comm.transport == compile::CommTransport::Auto;
    return out;
}

void set_levels(compile::Recipe& recipe, const std::string& cluster_file, const comm::ProcessGroup* group, bool any_partition) {
    compile::Config config = compile::config_of(recipe);
    if (!any_partition && !config.partition.names_levels()) return;
    const auto set = [&](const char* key, int64_t open, int64_t ranks, const std::string& origin) {
        if (open == 0 && ranks > 0) recipe.set(key, compile::Value(ranks), origin);
    };
    int64_t& node = config.cluster.ranks_per_node;
    if (group && !group->is_alone() && node == 0) {
        config.partition = {};  // the number of ranks does not depend on it
        node = group->ranks_on_a_host(compile::layout_of(config).ranks);
        set("cluster.ranks_per_node", 0, node, "hosts");
    }
    const std::string& file = cluster_file.empty() ? config.cluster.file : cluster_file;
    if (file.empty()) return;
    const sim::Cluster cluster = sim::read_cluster(file, cluster_file.empty() ? "cluster.file" : "--cluster");
    const size_t levels = cluster.links.size();  // the last of them joins nodes
    if (levels > 2) set("cluster.ranks_per_package", config.cluster.ranks_per_package, cluster.links[levels - 3].ranks, file);
    const int64_t of_host = levels > 1 ? cluster.ranks_of_host() : cluster.hosts.ranks;
    set("cluster.ranks_per_node", std::max(node, config.cluster.ranks_per_host), of_host, file);
}

std::vector<int> hosts_described(const std::optional<sim::Cluster>& cluster, const mesh::Topology& compiled_for, int64_t ranks) {
    if (!compiled_for.host_of_rank.empty()) return compiled_for.host_of_rank;
    if (!cluster || cluster->links.size() < 2) return {};
    return mesh::even_hosts(ranks, cluster->ranks_of_host(), 1).host_of_rank;
}

void warn_of_hosts(const std::optional<sim::Cluster>& cluster, const std::vector<compile::GroupTraffic>& groups, int64_t ranks) {
    for (const compile::GroupTraffic& g : groups) {
        if (g.hosts <= 1 || !g.tensor_parallel) continue;
        const double bandwidth = !cluster           ? 0
                                 : cluster->devices ? sim::link_of(*cluster, g.first, ranks).link.bandwidth_bytes_per_s
                                                    : cluster->hosts.link.bandwidth_bytes_per_s;
        telemetry::warn(fmt::format(
            "each tensor-parallel group spans {} hosts, and every layer waits for data between them: {} per rank and step{}; a "
            "tensor_parallel_degree that fits on one host is faster",
            g.hosts, size_text(g.total_bytes()),
            bandwidth > 0 ? fmt::format(", {:.3g} s at {:.3g} GB/s", g.total_bytes() / bandwidth, bandwidth / 1e9) : ""));
    }
}

}  // namespace lockstep::planning
