// How a group of ranks lies over processes and hosts, and by which algorithm its data moves over them: plain data, worked out
// when the program is compiled (passes/route) and obeyed by the transports. A *part* is what one process holds of a group.
// Parts are numbered host by host.
//
// Gathering: `Direct`, everybody to everybody, one latency; `Ring`, each link carries every part once; `TwoLevel`, rings
// between the hosts among equal slots, each part that arrives then goes round its host: a part crosses to a host once, where
// the plain ring brings a host its own parts back.
// Reducing: `Everywhere` (only all-reduce), everybody gets all operands and reduces them, one latency; `Direct`, every member's
// values go to their owner, who reduces them; `Chain`, the first part passes its sum on, each next part adds its own, the last
// hands the result to its owner; pieces follow each other, so that all links are busy; `TwoLevel`, the members of a host are
// reduced first, and one value a host goes to the owner; `Library`, by a library of the transport, such as NCCL.
//
// The order of a sum is the program's, whatever moves it: ascending positions, or, of `level` s > 1, first those of each s
// members that follow each other, then these sums, ascending. So TwoLevel needs a level, and no other algorithm has one. The
// order of Library is the library's; ranks that are threads of one process sum in ascending positions.
// A host with m of n members, each of which has B bytes to give to each, sends (n - m) m B directly, n m B along the chain
// (each but the last), (n - m) B in two levels. A library is counted as a ring.
//
// The others have one algorithm. AllToAll: every block goes straight to its member. Broadcast: along a chain of the parts, the
// root's first, then the others of its host, then host by host, in pieces that follow each other. Permute, Send: straight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/collective.h"

namespace lockstep::mesh {

// Where the ranks of a job run. Ranks of a process follow each other.
struct Topology {
    std::vector<int> host_of_rank;  // hosts are numbered from 0 in the order of their first ranks; empty: one process has all
    int ranks_per_process = 1;
    bool peers = false;  // GPUs of a host write to each other's memory

    bool is_one_process() const { return host_of_rank.size() <= static_cast<size_t>(ranks_per_process); }
    bool operator==(const Topology&) const = default;
};

// `ranks_per_host` consecutive ranks on each host.
Topology even_hosts(int64_t ranks, int64_t ranks_per_host, int64_t ranks_per_process);

struct GroupLayout {
    std::vector<int> part_of;                 // by position
    std::vector<std::vector<int>> positions;  // by part, ascending
    std::vector<int> process_of, host_of;     // by part; hosts are numbered from 0 in the order of parts
    std::vector<int> chain;  // the parts in ascending position; empty where a part's positions do not follow each other
    int parts_a_host = 0;    // 0: hosts differ
    int level = 1;           // members of a host, where all hosts have as many, in as many parts, and they follow each other

    int members() const { return static_cast<int>(part_of.size()); }
    int parts() const { return static_cast<int>(positions.size()); }
    int hosts() const { return host_of.back() + 1; }
    int part_of_process(int process) const;  // -1: none
};

GroupLayout group_layout(const std::vector<int>& ranks, const Topology& topology);

enum class GatherBy { Direct, Ring, TwoLevel };
enum class ReduceBy { Everywhere, Direct, Chain, TwoLevel, Library };

// Of an all-gather `gather` counts, of a reduce-scatter `reduce`, of an all-reduce both: each part reduces a slice, then the
// slices are gathered.
struct CollectiveAlgorithm {
    GatherBy gather = GatherBy::Direct;
    ReduceBy reduce = ReduceBy::Direct;
    int level = 1;
    bool operator==(const CollectiveAlgorithm&) const = default;
};

// Up to this number of bytes, of all members together, latency decides the time.
inline constexpr int64_t kSmallBytes = 64 << 10;

// block_bytes: as in ring.h. `levels`: whether sums may have an order by hosts.
CollectiveAlgorithm choose_algorithm(const GroupLayout& layout, Collective kind, int64_t block_bytes,
                                     int64_t small_bytes = kSmallBytes, bool levels = true);
// Why a collective of this group cannot have this algorithm, or "".
std::string unfit(const GroupLayout& layout, Collective kind, const CollectiveAlgorithm& algorithm);

// What a collective sends: of each host to others, and of each part to others of its host, in bytes.
struct Sent {
    std::vector<double> by_host, by_part;
};
// place: of a permute, by how many positions; of a broadcast, the root's position.
Sent bytes_sent(const GroupLayout& layout, Collective kind, const CollectiveAlgorithm& algorithm, double block_bytes,
                int64_t place = 0);

// Latencies in a row until the first byte of the last part has arrived: between hosts, or between processes if the group is on
// one host. Of a collective, and of the agreement on a launch before its collectives.
double latencies(const GroupLayout& layout, Collective kind, const CollectiveAlgorithm& algorithm);
double latencies_of_agreement(const GroupLayout& layout);

// Only the members of a host, and one member a host (those with equal slots): the two levels of a reduction, seen from a part.
struct Levels {
    GroupLayout within, between;
};
Levels levels_of(const GroupLayout& layout, int part);

// One part on its way to (send) or from (receive) another.
struct Hop {
    int peer, part;
};
// What a part sends and receives, each in order. A part may be sent once it is there. Lists of all parts have one common order
// in which every hop comes after those that it needs, so bounded buffers cannot lock them.
struct Hops {
    std::vector<Hop> sends, receives;
};
Hops gather_hops(const GroupLayout& layout, GatherBy by, int part);
// Of a broadcast by the member at position `root`.
Hops broadcast_hops(const GroupLayout& layout, int root, int part);

std::string_view name_of(GatherBy by);
std::string_view name_of(ReduceBy by);
std::optional<GatherBy> gather_by(std::string_view name);
std::optional<ReduceBy> reduce_by(std::string_view name);

}  // namespace lockstep::mesh
