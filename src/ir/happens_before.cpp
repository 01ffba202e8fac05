#include "ir/happens_before.h"

#include <algorithm>

namespace lockstep::ir {

HappensBefore::HappensBefore(const std::vector<Call>& calls) : clock_(calls.size()), stream_(calls.size()) {
    std::array<int, 2>& last = last_;
    for (size_t i = 0; i < calls.size(); ++i) {
        const int s = static_cast<int>(calls[i].stream);
        stream_[i] = s;
        std::array<int, 2> clock = {0, 0};
        const auto ended = [&](int call) {
            if (call < 0) return;
            for (int k = 0; k < 2; ++k) clock[k] = std::max(clock[k], clock_[call][k]);
            clock[stream_[call]] = std::max(clock[stream_[call]], call + 1);
        };
        ended(last[s]);
        for (int w : calls[i].waits) {
            if (w < static_cast<int>(i)) ended(w);
        }
        clock_[i] = clock;
        last[s] = static_cast<int>(i);
    }
}

}  // namespace lockstep::ir
