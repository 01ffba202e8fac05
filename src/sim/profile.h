// What each routine asks of a machine, once a routine however often it is called: its ops in pieces between collectives.
#pragma once

#include <functional>
#include <vector>

#include "compile/rank_threads.h"
#include "sim/cluster.h"
#include "sim/engine.h"

namespace lockstep::sim {

struct Piece {
    std::vector<int> ops;
    std::vector<double> shares;  // of the piece's time, of each of its ops
    Segment segment;             // a collective is a piece by itself; group and link are set
};

struct Profile {
    std::vector<Piece> pieces;
    double measured = 0, unmeasured = 0;  // of its core_s: from rows of the table, and only from rates
};

// By routine, of the first rank of the program's pipeline rank. `ring` holds back collectives between threads (tests of
// overlap); devices have the cluster's links. group(op): the number under which the simulator knows who joins in a collective.
using GroupOf = std::function<int(const ir::Op&)>;
std::vector<Profile> profiles_of(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster,
                                 const compile::RankThreads& rank_threads, const mesh::Link& ring, const GroupOf& group);

}  // namespace lockstep::sim
