// A cluster file: what a machine, or many, can do. Measured by `lockstep bench` (rows for kernels and collectives), or declared
// from published figures (`declared = true`, and every output that rests on it says so). It also says which kernels the machine
// has: a list of a device's ([[catalog]], often in the file of its chip), or the instruction sets of a processor.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/instruction_sets.h"
#include "base/toml.h"
#include "mesh/algorithms.h"
#include "mesh/ring.h"
#include "ops/cost.h"
#include "ops/described_catalog.h"

namespace lockstep::sim {

// What joins the blocks of the level below (of one rank each, at first) to blocks of `ranks` consecutive ranks. The members of
// a group that are in one block below use its ports together; the groups of one op share the ports evenly.
struct LinkLevel {
    int64_t ranks = 0;              // 0: any number
    mesh::Link link;                // of a port
    int64_t ports = 0;              // of each block below; 0: one of each rank
    double efficiency = 1;          // share of the bandwidth that large collectives reach
    double message_efficiency = 0;  // the same of messages between two ranks; 0: as collectives
    double group_bytes_per_s = 0;   // the most that one collective gets (a communicator's channels); 0: no limit
    // Where a job has more than crowded_beyond ranks, rates of collectives are divided by (ranks / crowded_beyond)^crowding. 0:
    // never.
    double crowded_beyond = 0, crowding = 0;
    bool trees = false;      // all_reduce may run over trees: fewer latencies
    bool in_switch = false;  // the switch sums: an all_reduce sends its bytes once
};

// The host's part of a device's step, and time that no op accounts for. A device runs what its host has launched: a step takes
// the longer of both queues.
struct Host {
    double launch_s = 0;           // of the host, an op
    double collective_s = 0;       // of the host, a collective of a forward or backward, in addition
    double blocking_s = 0;         // of the device, an op: it idles while the host notices and launches the next
    double microbatch_s = 0;       // of the device, a microbatch and stage: half before its forward, half before its backward
    double step_s = 0;             // a step
    double lost_per_doubling = 0;  // share of a step, each time the number of hosts doubles
};

// Of Lockstep: its kernels run on the cluster's devices where no stack is asked for.
struct Module {
    std::string name;                                       // "cuda", or none
    int compute_capability = 90;                            // of the devices: 90 is Hopper
    Host host;                                              // in its place then; no launch_s: as the cluster's
    std::set<std::pair<std::string, std::string>> assumed;  // ops and kernels whose rates nobody has measured
};

// What measured runs on the machine itself say of its plans (`lockstep calibrate --multiplier`).
struct Measured {
    double multiplier = 1;  // of every planned step
    double spread = 0;      // deviation of the logarithm that is left
    int64_t runs = 0;       // 0: none was measured
};

// What a rank of the software allocates, where that is not Lockstep's program (sim/stack_memory.h).
struct StackMemory {
    double gradient_bytes = 0;  // of a parameter, of its gradient; 0: memory is not described
    double sum_bytes = 0;       // of a parameter, of a sum of gradients in addition to it, split as the optimizer is
    bool whole_sums = false;    // that sum is whole on each data rank
    double logit_bytes = 0;     // of a logit, in all copies that the loss and its backward need together
    double score_bytes = 0;     // of a query's score for a key, kept by attention; 0: it keeps none
    double mask_bytes = 0;      // of an element of the residual stream, kept by the dropout before each norm
    std::map<std::string, double> saved_bytes;  // by op: of an element of its result, besides what its derivative reads
    bool saves_gathered = false;     // operands that tensor parallelism gathered are kept whole, rather than gathered again
    bool policy_keeps_last = false;  // recompute by op keeps the result of a layer's last product, which no backward reads
    bool splits_optimizer = false;   // over all data ranks, whatever the partition
    bool keeps_gathered = false;     // pipeline ranks keep parameters and their gradients whole from first to last microbatch
    double gathered_layers = 2;      // whose split parameters are whole at a time
    double gathered_bytes = 0;       // of whole parameters that are held at least, where parameters are split
    double bucket_bytes = 0;         // of gradients on their way, where parameters are split
    double reserve = 0;              // share of what is allocated that the allocator holds in addition

    bool is_described() const { return gradient_bytes > 0; }
};

// The software that ran, where it differs from what Lockstep compiles.
struct Stack {
    std::string name, description;
    bool reduces_last = false;     // gradients are reduced when all backwards are over, rather than during them
    bool transfers_block = false;  // a rank computes nothing while it sends to or receives from another pipeline rank
    bool merged_products = false;  // products that share an operand, or add to one result, are one product
    // Of a rank: where updated weights go to the others by one broadcast from each owner in turn, what each costs in addition
    // to its bytes.
    double broadcast_s = 0;        // 0: by one gather
    bool split_sends = false;      // tensor-parallel ranks that hold the same activations send a part each, and gather
    bool whole_logits = false;     // the loss is not computed in chunks
    bool whole_recompute = false;  // a recomputed layer runs to its end, although its last product is not needed
    bool copies_blocks = false;    // what is gathered along another than the first dim is copied then; a sum to scatter, before
    bool repeats_keys = false;     // a key head is there for each of its query heads, also where context ranks exchange keys
    bool casts_gathered = false;   // float8 by rows: values are gathered over tensor-parallel ranks first, and then cast
    std::string attention;         // the generation of its attention kernels, of those that [[attention]] knows; empty: not said
    double group_bytes_per_s = 0;  // the most that one collective between hosts gets; 0: no limit
    StackMemory memory;
};

// How fast a generation of attention kernels is on a chip: "flash2" and its op.
struct AttentionRate {
    std::string kernel, op;
    double flops_per_s = 0;  // with operands of 16 bits, at long sequences; 0: as `rate` says
    ops::KernelRate rate;
};

// Hosts of ranks that are threads, or processes of a few threads: each has its cores and one link to the others.
struct Hosts {
    int64_t ranks = 0, ranks_per_process = 1;  // of a host; 0: there is one host, and all ranks are in one process
    bool share_cores = false;                  // several hosts on one machine (emulated): all ranks share costs.cores
    mesh::Link link;                           // of a host: of what its processes send to others; latency_s of a message
    double core_s_per_byte = 0;                // of a core, sender's and receiver's together, in addition to the time on the link
    // From a process to another on its host: by one core, and of a message. 0: not counted.
    double process_bytes_per_s = 0, process_latency_s = 0;
    double polling = 0;  // share of a core that a waiting process spends on polling for messages
};

// A part of a described machine that one file describes, and the published runs that constants were held against with it.
struct Part {
    enum class Kind { Chip, Network, Stack };
    Kind kind = Kind::Chip;
    std::string name, path;
    int64_t runs = 0, sources = 0;  // sources: publications, each of them with one or more of the runs
};
std::string_view name_of(Part::Kind kind);  // "chip"

struct Cluster {
    std::string name, description;
    bool declared = false;
    bool devices = false;          // every rank has a device to itself; else ranks are threads that share costs.cores
    double memory_bytes = 0;       // of a device, or of the machine; 0: not said
    double reserve_bytes = 0;      // of it, outside the arena
    std::vector<LinkLevel> links;  // of devices: ascending ranks, the last has 0
    bool peer_access = false;      // devices of a host write to each other's memory, without processors
    double beside_collective = 1;  // of devices: share of their rates that ops keep while another collective runs
    Host host;                     // of devices
    Measured measured;             // of devices
    Stack stack;
    Hosts hosts;  // where ranks have no devices
    ops::CostTable costs;
    std::vector<ops::DescribedKernel> catalog;  // of a device; empty: not said
    std::vector<AttentionRate> attention;       // of devices, by generation and op
    Module module;
    std::vector<Part> parts;                          // of devices
    std::string catalog_name;                         // of the chip, or of the cluster
    std::optional<InstructionSets> instruction_sets;  // of a processor; none: not said

    bool runs_module() const { return !module.name.empty() && stack.name.empty(); }
    // Of devices: the last link joins hosts, the one before a host.
    int64_t ranks_of_host() const { return links.size() < 2 ? 1 : links[links.size() - 2].ranks; }
};

// The tables of a cluster, in the order in which one comes on top of another: those that machine.kernels, machine.class,
// machine.chip and machine.on name, whose paths begin in the folder of the file that names them, those of the file itself, those
// of the stack that stack.on names, and those of the stack.
struct Source {
    enum class Of { Kernels, Class, Chip, Cluster, Stack } of;
    std::string path;
    toml::table tables;
};
// UserError cluster.*. `asked_by`: the flag or key that named the path, for messages. `stack`: a path, or empty.
std::vector<Source> read_sources(const std::string& path, const char* asked_by, const std::string& stack = "");
Cluster cluster_of(const std::vector<Source>& sources);

// A number of a cluster file that runs have fitted, or may fit: [[constants]] (calibration/).
struct Constant {
    std::string key;  // "rates.product_efficiency", "links.8.efficiency" (by ranks), "ops.attention.of_products" (by an op)
    double prior = 0, spread = 0;  // known before any run; deviation of its logarithm
    double low = 0, high = 0;      // what the runs leave open: one deviation to each side. 0: no run was asked
    int64_t runs = 0;              // that depended on it
};
// UserError cluster.*.
std::vector<Constant> constants_of(const Source& source);
Cluster read_cluster(const std::string& path, const char* asked_by, const std::string& stack = "");
Cluster parse_cluster(const std::string& text, const std::string& origin);
std::string print(const Cluster& cluster);

// A key that a cluster file may have.
struct ClusterKey {
    std::string table, key, values, help;  // "[machine]", "cores", "an integer from 1 to 1048576", "cores that share memory"
};
std::vector<ClusterKey> cluster_keys();

// Of a job's ranks, or of a part of them, those that share a host's cores.
int64_t ranks_sharing_cores(const Cluster& cluster, int64_t ranks);

// Where `ranks` ranks of a job run, by [hosts]; without it, all in one process.
mesh::Topology topology_of(const Cluster& cluster, int64_t ranks);

// How a group of devices communicates: over the lowest level that holds all of it, at the rate of the slowest level that it
// crosses.
struct GroupLink {
    size_t level = 0;  // of Cluster::links
    mesh::Link link;   // bandwidth: of one way around the group; of a job of `ranks` ranks
};
GroupLink link_of(const Cluster& cluster, const std::vector<int64_t>& members, int64_t ranks, bool message = false);
// Seconds of a collective over `link`; of the ways that the level offers, the fastest.
double collective_s(const Cluster& cluster, const GroupLink& link, mesh::Collective kind, int64_t members,
                    const mesh::RingTraffic& traffic);

}  // namespace lockstep::sim
