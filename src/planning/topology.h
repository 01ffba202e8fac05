// Where the ranks of a job run: on which hosts and in which processes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "compile/recipe.h"
#include "compile/traffic.h"
#include "mesh/algorithms.h"
#include "sim/cluster.h"

namespace lockstep::planning {

// Where the ranks of a job run: as a process group of several processes was started; else by cluster.ranks_per_host and
// ranks_per_process, or the hosts of cluster.file; else all in one process.
mesh::Topology topology_of(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group);

// On the machine that `cluster` describes: by cluster.ranks_per_host and ranks_per_process where it has devices,
// else by the file.
mesh::Topology topology_of(const compile::Config& config, const sim::Cluster& cluster, int64_t ranks);

// How many ranks a host and a process have, by the recipe's keys; {0, 1}: the recipe does not say. UserError recipe.*.
struct RanksByHost {
    int64_t of_host = 0, of_process = 1;
};
RanksByHost ranks_by_host(const compile::Config& config);

// Sets cluster.ranks_per_package and ranks_per_node where the recipe's partition names a package or a node (or `any_partition`
// may) and the recipe leaves open how many ranks have one: as many as a host of `group` has; else as the links or hosts of
// `cluster_file` say, empty: of cluster.file. What stays open is refused by the layout, or is one host. UserError cluster.*.
void set_levels(compile::Recipe& recipe, const std::string& cluster_file, const comm::ProcessGroup* group = nullptr,
                bool any_partition = false);

// The cluster of cluster.file, where it describes devices or hosts.
std::optional<sim::Cluster> described_cluster(const compile::Config& config);

// Hosts by rank: those that the program is compiled for, else those of devices, by the links of the cluster; empty: not
// described.
std::vector<int> hosts_described(const std::optional<sim::Cluster>& cluster, const mesh::Topology& compiled_for, int64_t ranks);

// "512.000 MiB", "1.500 GiB"
std::string size_text(double bytes);
// A line for tensor-parallel groups that lie on several hosts: legal, and slow.
void warn_of_hosts(const std::optional<sim::Cluster>& cluster, const std::vector<compile::GroupTraffic>& groups, int64_t ranks);

}  // namespace lockstep::planning
