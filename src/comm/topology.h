// Which host each rank of a job is on.
#pragma once

#include <vector>

namespace lockstep::comm {

struct Topology {
    std::vector<int> host_of_rank;  // hosts are numbered from 0 in the order of their first ranks
};

}  // namespace lockstep::comm
