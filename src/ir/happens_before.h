// The order that queues and waits impose on the calls of one entry on one rank: calls of a queue run in list order, a call
// starts when those it waits for have ended. All queues join at the end of a step.
#pragma once

#include <vector>

#include "ir/program.h"

namespace lockstep::ir {

class HappensBefore {
public:
    explicit HappensBefore(const std::vector<Call>& calls);
    // Has call a ended before call b starts, in every execution?
    bool operator()(int a, int b) const { return b >= 0 && a >= 0 && a < clock_[b][queue_[a]]; }

    // In their order.
    const std::vector<int>& calls_of(QueueName queue) const { return calls_of_[queue]; }

private:
    ByStepQueue<std::vector<int>> calls_of_;
    std::vector<ByStepQueue<int>> clock_;  // for each call and queue: one past the last call of that queue that has ended
    std::vector<QueueName> queue_;
};

}  // namespace lockstep::ir
