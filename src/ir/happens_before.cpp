#include "ir/happens_before.h"

#include <algorithm>

namespace lockstep::ir {

HappensBefore::HappensBefore(const std::vector<Call>& calls) : clock_(calls.size()), queue_(calls.size()) {
    for (size_t i = 0; i < calls.size(); ++i) {
        const QueueName queue = queue_[i] = calls[i].queue;
        ByStepQueue<int>& clock = clock_[i];
        const auto ended = [&](int call) {
            if (call < 0) return;
            for (QueueName q : kQueuesOfSteps) clock[q] = std::max(clock[q], clock_[call][q]);
            clock[queue_[call]] = std::max(clock[queue_[call]], call + 1);
        };
        if (!calls_of_[queue].empty()) ended(calls_of_[queue].back());
        for (int w : calls[i].waits) {
            if (w < static_cast<int>(i)) ended(w);
        }
        calls_of_[queue].push_back(static_cast<int>(i));
    }
}

}  // namespace lockstep::ir
