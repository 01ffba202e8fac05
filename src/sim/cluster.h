// A cluster file: what a machine, or many, can do. Measured by `lockstep bench` (rows for kernels and collectives), or declared
// from published figures (`declared = true`, and every output that rests on it says so). It also says which kernels the machine
// has: a list of a device's ([[catalog]], often in the file of its chip), or the instruction sets of a processor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/instruction_sets.h"
#include "mesh/algorithms.h"
#include "mesh/ring.h"
#include "ops/cost.h"
#include "ops/described_catalog.h"

namespace lockstep::sim {

// Groups that lie within blocks of `ranks` consecutive ranks communicate over this link.
struct LinkLevel {
    int64_t ranks = 0;  // 0: any number
    mesh::Link link;
};

// Hosts of ranks that are threads, or processes of a few threads: each has its cores and one link to the others.
struct Hosts {
    int64_t ranks = 0, ranks_per_process = 1;  // of a host; 0: there is one host, and all ranks are in one process
    bool share_cores = false;                  // several hosts on one machine (emulated): all ranks share costs.cores
    mesh::Link link;                           // of a host: of what its processes send to others; latency_s of a message
    double core_s_per_byte = 0;                // of a core, sender's and receiver's together, beside the time on the link
    // From a process to another on its host: by one core, and of a message. 0: not counted.
    double process_bytes_per_s = 0, process_latency_s = 0;
    double polling = 0;  // share of a core that a waiting process spends on polling for messages
};

struct Cluster {
    std::string name, description;
    bool declared = false;
    bool devices = false;          // every rank has a device to itself; else ranks are threads that share costs.cores
    double memory_bytes = 0;       // of a device, or of the machine; 0: not said
    double reserve_bytes = 0;      // of it, outside the arena
    std::vector<LinkLevel> links;  // of devices: ascending ranks, the last has 0
    Hosts hosts;                   // where ranks have no devices
    ops::CostTable costs;
    std::vector<ops::DescribedKernel> catalog;        // of a device; empty: not said
    std::string catalog_name;                         // of the chip, or of the cluster
    std::optional<InstructionSets> instruction_sets;  // of a processor; none: not said
};

// UserError cluster.*. The file of machine.chip is read, too; its path begins in the folder of `origin`.
// `asked_by`: the flag or key that named the path, for messages.
Cluster read_cluster(const std::string& path, const char* asked_by);
Cluster parse_cluster(const std::string& text, const std::string& origin);
std::string print(const Cluster& cluster);

// Of a job's ranks, or of a part of them, those that share a host's cores.
int64_t ranks_sharing_cores(const Cluster& cluster, int64_t ranks);

// Where `ranks` ranks of a job run, by [hosts]; without it, all in one process.
mesh::Topology topology_of(const Cluster& cluster, int64_t ranks);

// The link over which members that lie `stride` ranks apart communicate. Devices only.
const LinkLevel& link_of(const Cluster& cluster, const std::vector<int64_t>& members);

}  // namespace lockstep::sim
