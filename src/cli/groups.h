// The mesh of a job as a table: which ranks communicate, on which hosts, how much.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "compile/traffic.h"

namespace lockstep::cli {

// Hosts by rank as the recipe describes them: cluster.ranks_per_host, else the links of cluster.file; empty: it does not.
std::vector<int> hosts_described(const compile::Recipe& recipe, int64_t ranks);

void print_groups(const std::vector<compile::GroupTraffic>& groups);
nlohmann::ordered_json groups_json(const std::vector<compile::GroupTraffic>& groups);
// A line for tensor-parallel groups that lie on several hosts: legal, and slow.
void warn_of_hosts(const compile::Recipe& recipe, const std::vector<compile::GroupTraffic>& groups);

}  // namespace lockstep::cli
