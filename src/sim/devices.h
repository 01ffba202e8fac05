// The event simulator for ranks that have a device each and share nothing: only when calls end, not what happened between.
// A step can be played many times with other numbers, such as the constants of a band, and without allocating anything.
#pragma once

#include <memory>
#include <vector>

#include "sim/engine.h"

namespace lockstep::sim {

// Works of a thread.
struct Range {
    int begin = 0, end = 0;
};
// By rank and thread: the works whose times are wanted.
using Recorded = std::vector<std::vector<Range>>;
Recorded all_of(const std::vector<Rank>& ranks);

// Ranks as threads of work. `ranks` and `groups` are used, not copied, and segments are read again at each play(): they may
// change their times, but neither their number nor their groups. Requires that a link is of one rank, and that no segment takes
// the machine's memory, which a device has to itself.
class Devices {
public:
    Devices(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Recorded& recorded);
    Devices(Devices&&) noexcept;
    ~Devices();

    // Work::not_before_s and delay_s have changed; what was no delay is none.
    void read_starts();

    // The end of the last work: the times are those of run(), but for rounding. While only one thread of a rank is under way, its
    // segments up to the next collective, wait or delay are one. `beside_link`: as in Machine. InternalError: a deadlock.
    double play(double beside_link);

    // Of the last play: of each thread, the works that are recorded.
    const WorkTimes& times() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::sim
