// Who communicates with whom in a step, and how much: the groups of the mesh as the compiled programs use them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"

namespace lockstep::compile {

struct GroupTraffic {
    std::string axes;              // for the reader: along which its members differ, as "tp", "pp" (between stages)
    bool tensor_parallel = false;  // they differ only along tp
    int64_t members = 0;           // of a group
    int64_t groups = 0;            // in the job
    std::vector<int64_t> first;    // the ranks of one of them
    int64_t hosts = 0;             // that a group lies on: the most; 0: not known
    // By kind of collective, bytes that a member sends in a step when they go round a ring (mesh/ring.h); of pipeline ranks the
    // most.
    std::map<std::string, double> bytes;
    double total_bytes() const;
};

// Of the entry train, groups with least members first. host_of: by rank; empty: not known.
std::vector<GroupTraffic> traffic_of(const Compiled& compiled, const std::vector<int>& host_of);

// What each host sends to others in a step of the entry train, in bytes, by the ways that the programs say.
std::vector<double> bytes_by_host(const Compiled& compiled, const mesh::Topology& topology);

}  // namespace lockstep::compile
