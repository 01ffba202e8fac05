// Threads of work in the form in which devices pass through them, many times: compact, each list of segments once.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "sim/engine.h"

namespace lockstep::sim {

// How long a segment takes on a device whose rank does nothing else.
inline double alone_s(const Segment& s) { return std::max(s.core_s, s.link_s); }

// A list of segments, which calls of a routine share.
struct Pieces {
    const std::vector<Segment>* segments;
    bool meets_none = true;  // no segment joins with another rank
    const Segment* first = nullptr;
    int count = 0;
    double sum_s = 0;  // of what they take by themselves
};

// A work of another thread of the rank, that must have ended.
struct Wait {
    int thread = -1, work = 0;  // threads are numbered over all ranks; -1: it never ends
};

// A work of a thread. Millions of them are passed in each play, so they are small.
struct Turn {
    double not_before_s;
    int pieces;                               // index of its list
    unsigned waits_end : 31, is_delayed : 1;  // one past its last in Track::waits; Work::delay_s is not 0
};

// The works of a thread, and where its runs may go: works that follow each other and that nobody joins or waits for before the
// last has ended.
struct Track {
    const Work* works;
    std::vector<Turn> turns;
    std::vector<Wait> waits;       // what no earlier work of the thread has waited for
    std::vector<int> run_end;      // by work: one past the last of a run that it begins or is in
    std::vector<double> before_s;  // by work, and of all: the sum of what those before it take by themselves
};

// The tracks of all threads, rank by rank. `groups` and the ranks are used, not copied.
class Tracks {
public:
    explicit Tracks(const std::vector<std::vector<int>>& groups) : groups_(groups) {}

    void add(const Rank& rank);
    void read_starts();  // Work::not_before_s has changed
    void read_times();   // and so have, or may have, the times of segments

    const Track& operator[](size_t thread) const { return tracks_[thread]; }
    const Pieces& pieces(const Turn& turn) const { return pieces_[static_cast<size_t>(turn.pieces)]; }
    bool joins(const Segment& s) const { return s.group >= 0 && groups_[static_cast<size_t>(s.group)].size() > 1; }

private:
    int pieces_of(const Work& w);
    void add_turns(Track& track, const Thread& thread, const std::vector<Wait>& places, size_t first, size_t threads);

    const std::vector<std::vector<int>>& groups_;
    std::vector<Track> tracks_;
    std::vector<Pieces> pieces_;
    std::unordered_map<const void*, int> number_of_;  // of lists of segments
};

}  // namespace lockstep::sim
