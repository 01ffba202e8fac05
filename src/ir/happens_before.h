// The order that streams and waits impose on the calls of one entry on one rank: calls of a stream run in list order, a call
// starts when those it waits for have ended. All streams join at the end of a step.
#pragma once

#include <array>
#include <vector>

#include "ir/program.h"

namespace lockstep::ir {

class HappensBefore {
public:
    explicit HappensBefore(const std::vector<Call>& calls);
    // Has call a ended before call b starts, in every execution?
    bool operator()(int a, int b) const { return b >= 0 && a >= 0 && a < clock_[b][stream_[a]]; }

    // The last call of a stream, or -1.
    int last_of(Stream stream) const { return last_[static_cast<size_t>(stream)]; }

private:
    std::array<int, 2> last_ = {-1, -1};
    std::vector<std::array<int, 2>> clock_;  // for each call and stream: one past the last call of that stream that has ended
    std::vector<int> stream_;
};

}  // namespace lockstep::ir
