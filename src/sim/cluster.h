// A cluster file: what a machine, or many, can do. Measured by `lockstep bench` (rows for kernels and collectives), or declared
// from published figures (rates only; `declared = true`, and every output that rests on it says so).
#pragma once

#include <string>
#include <vector>

#include "mesh/ring.h"
#include "ops/cost.h"

namespace lockstep::sim {

// Groups that lie within blocks of `ranks` consecutive ranks communicate over this link.
struct LinkLevel {
    int64_t ranks = 0;  // 0: any number
    mesh::Link link;
};

struct Cluster {
    std::string name, description;
    bool declared = false;
    bool devices = false;          // every rank has a device to itself; else ranks are threads that share costs.cores
    double memory_bytes = 0;       // of a device, or of the machine; 0: not said
    double reserve_bytes = 0;      // of it, outside the arena
    std::vector<LinkLevel> links;  // of devices: ascending ranks, the last has 0
    ops::CostTable costs;
};

// UserError cluster.*.
Cluster read_cluster(const std::string& path);
Cluster parse_cluster(const std::string& text, const std::string& origin);
std::string print(const Cluster& cluster);

// The link over which members that lie `stride` ranks apart communicate. Devices only.
const LinkLevel& link_of(const Cluster& cluster, const std::vector<int64_t>& members);

}  // namespace lockstep::sim
