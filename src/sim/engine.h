// An event simulator of threads that share a machine: cores and memory bandwidth are divided evenly among those who want them
// at the moment (processor sharing), collectives begin when their last member has come. Deterministic; times in seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace lockstep::sim {

// Work without a break. It takes the largest of core_s on its thread's cores, memory_s of the machine's memory, and link_s. The
// three run side by side; those of a collective start when the members that it waits for have arrived.
struct Segment {
    double core_s = 0, memory_s = 0, link_s = 0;
    int group = -1;  // a collective over the ranks groups[group]; -1: none
    int link = -1;   // collectives under way on one link share it. -1: nobody shares
    mesh::Collective kind =
        mesh::Collective::AllReduce;  // of a send, receive or wait groups[group] is the sender, then the receiver
    bool takes_processors = true;     // of a collective
    double computing = 1;             // fraction of the rank's copies (Machine) that compute; the others wait
    bool operator==(const Segment&) const = default;
};

using Segments = std::shared_ptr<const std::vector<Segment>>;  // calls of a routine share them
inline Segments shared(std::vector<Segment> segments) {
    return std::make_shared<const std::vector<Segment>>(std::move(segments));
}

struct Work {  // one call
    Segments segments;
    std::vector<int> waits;  // calls of this rank, by id, that must have ended
    int id = 0;
    double not_before_s = 0;  // since the step began: when a host has launched it
    double delay_s = 0;       // between the end of what it waits for and its first segment
};

struct Thread {
    int cores = 1;  // that it computes on
    std::vector<Work> work;
};

struct Rank {
    std::vector<Thread> threads;
    int host = 0;  // ranks of different hosts share no cores and no memory
};

struct Machine {
    double cores = 1;  // of a host; infinite: ranks share nothing but links (a device each)
    // Every rank given represents this many that do the same at the same time: they share the cores and the memory with it.
    double copies = 1;
    // Of devices: the rate at which a thread computes while another one of its rank has a collective on a link that takes
    // processors.
    double beside_link = 1;
};

struct Event {
    int rank = 0, thread = 0, work = 0, segment = 0;  // work: index; segment -1: it waited for calls
    double start_s = 0, ready_s = 0, end_s = 0;
};

// In order of their ends. groups[g]: indices into `ranks`. InternalError where nothing can go on (a deadlock).
std::vector<Event> run(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine);

// Of one call: when it ended, and how long its segments took, without waits for other ranks and calls.
struct WorkTime {
    double end_s = 0, busy_s = 0;
};
// The same step without its events, by rank, thread and work. While only one thread of a device's rank is under way, its
// segments up to the next collective, wait or delay are one; the times differ from those of run() only by rounding.
using WorkTimes = std::vector<std::vector<std::vector<WorkTime>>>;
WorkTimes times_of(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine);

}  // namespace lockstep::sim
