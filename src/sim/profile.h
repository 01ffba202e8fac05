// What each routine asks of a machine, once a routine however often it is called: its ops in pieces between collectives.
#pragma once

#include <functional>
#include <memory>
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

// group(op): the number under which the simulator knows who joins in a collective.
using GroupOf = std::function<int(const ir::Op&)>;

// What the called routines of a program ask, of the first rank of its pipeline rank, before a machine gives it times. `program`
// and `entry` outlive this.
class Demand {
public:
    // Of machines that differ from `cluster` in numbers only.
    Demand(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster, const compile::RankThreads& rank_threads,
           const GroupOf& group);
    ~Demand();

    // By routine. `ring` holds back collectives between threads (tests of overlap); devices have the cluster's links.
    std::vector<Profile> profiles(const Cluster& cluster, const mesh::Link& ring) const;
    // Only the segments, by routine; none of what is not called.
    std::vector<std::vector<Segment>> segments(const Cluster& cluster) const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

// The profiles of Demand for one machine.
std::vector<Profile> profiles_of(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster,
                                 const compile::RankThreads& rank_threads, const mesh::Link& ring, const GroupOf& group);

}  // namespace lockstep::sim
