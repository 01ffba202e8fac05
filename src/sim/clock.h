// What the simulators of threads share: shares of work and times that mean an end, and how the launches of a collective find
// each other.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "mesh/collective.h"

namespace lockstep::sim {

constexpr double kDone = 1e-12;  // of a share of work
constexpr double kNever = std::numeric_limits<double>::infinity();

// The launches of a group on one thread of its members so far: the k-th of every member is the same one. Of a send, receive or
// wait the group is the sender, then the receiver.
struct Launches {
    std::map<int, int> come;  // to symmetric ones, by rank
    int sends = 0, receives = 0, received = 0, waits = 0;

    // The rank comes to another launch; returns its number.
    int add(mesh::Collective kind, int rank) {
        switch (kind) {
            case mesh::Collective::Send: return ++sends;
            case mesh::Collective::Recv: return ++receives;
            case mesh::Collective::Wait: return ++waits;
            case mesh::Collective::AllGather:
            case mesh::Collective::ReduceScatter:
            case mesh::Collective::AllReduce:
            case mesh::Collective::AllToAll:
            case mesh::Collective::Broadcast:
            case mesh::Collective::Permute: break;
        }
        return ++come[rank];
    }

    // Has everyone come for whom a launch of this number waits?
    bool has_all(mesh::Collective kind, int number, const std::vector<int>& members) const {
        switch (kind) {
            case mesh::Collective::Send: return true;
            case mesh::Collective::Recv: return sends >= number;
            case mesh::Collective::Wait: return received >= number;
            case mesh::Collective::AllGather:
            case mesh::Collective::ReduceScatter:
            case mesh::Collective::AllReduce:
            case mesh::Collective::AllToAll:
            case mesh::Collective::Broadcast:
            case mesh::Collective::Permute: break;
        }
        return std::all_of(members.begin(), members.end(), [&](int member) {
            const auto at = come.find(member);
            return (at == come.end() ? 0 : at->second) >= number;
        });
    }
};

}  // namespace lockstep::sim
