// The algorithm of a collective in the program's text, and what the collective sends.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/program.h"
#include "mesh/algorithms.h"

namespace lockstep::ops {

// The attributes gather, reduce and level; nothing: the op does not say.
std::optional<mesh::CollectiveAlgorithm> algorithm_of(const ir::Op& op);
// What is wrong with them, or "".
std::string wrong_algorithm(const ir::Op& op);
void set_algorithm(ir::Op& op, const mesh::CollectiveAlgorithm& algorithm);

// The attribute transport, 'peer': the members' GPUs write to each other's memory.
bool is_by_peers(const ir::Op& op);
void set_by_peers(ir::Op& op, bool by_peers);
bool any_by_peers(const ir::Program& program);

// Groups of ranks that join in an op and have one layout over hosts.
struct GroupsOfOneLayout {
    mesh::GroupLayout layout;
    std::vector<std::vector<int>> groups;  // world ranks
};

class PlacedGroups {
public:
    // Both outlive this.
    PlacedGroups(const ir::Program& program, const mesh::Topology& topology) : program_(program), topology_(topology) {}
    const std::vector<GroupsOfOneLayout>& of(const ir::Op& op);

private:
    const ir::Program& program_;
    const mesh::Topology& topology_;
    std::map<std::vector<int64_t>, std::vector<GroupsOfOneLayout>> known_;  // by group, and peer of a send or receive
};

// What an op sends when all its groups are under way, in bytes: each host to others.
struct HostBytes {
    std::vector<double> by_host;
    double leader = 0;   // the part sent by the process that sends most
    double within = 0;   // between processes of a host, of the one that sends most
    double leaders = 1;  // of all ranks, the share that sends: one of each process's members of a group. The others wait for it
    // Messages that follow each other, of the groups that lie on several hosts, and of those on one.
    double latencies = 0, latencies_within = 0;
};
HostBytes bytes_sent(const ir::Program& program, const ir::Routine& routine, const ir::Op& op, const mesh::Topology& topology,
                     PlacedGroups& groups);

}  // namespace lockstep::ops
