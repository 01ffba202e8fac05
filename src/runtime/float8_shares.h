// How much of the values that a step casts to float8 is lost: what is too small for its scale, and becomes zero. Counted on the
// host while casts run (metrics.log_float8); slow on a device, whose values are read for it.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::runtime {

// Of one operand of a layer's products, over all its tokens and ranks: the largest size, and of the elements those that are no
// zeros and become one, and those beyond the largest code.
struct Float8Share {
    double amax = 0;
    int64_t elements = 0, flushed = 0, clipped = 0;

    void add(const Float8Share& other);
};

// By layer ("layers.0.attention.wq", or of weights that are cast as one "layers.0.feed_forward.w1+w3") and operand ("input",
// "weight", "grad_output"; with a second cast for other sums "input of grad_weight").
using Float8Shares = std::map<std::pair<std::string, std::string>, Float8Share>;

class Float8Counter {
public:
    explicit Float8Counter(Ranks& ranks);
    ~Float8Counter();
    Float8Counter(const Float8Counter&) = delete;
    Float8Counter& operator=(const Float8Counter&) = delete;

    // Looks at the next step, or no longer. What follows a watched step must not have begun before it ends.
    void watch(bool on);
    // What was counted since the last call, of all processes, which call it at the same time. The same in every layout.
    Float8Shares take();

private:
    // A cast as a program has it: which layers and operand it is of. `layers` has "{}" for the number of the instance.
    struct Cast {
        std::string layers, operand;
        ir::AxisList varies;  // other ranks along other axes have the same elements
    };
    using Casts = std::map<const ir::Op*, std::vector<Cast>>;  // of members of a segment several

    static Casts casts_of(const ir::Program& program);
    void see(Executor& executor, const Casts& casts, const Produced& produced);

    Ranks& ranks_;
    std::vector<Casts> casts_;  // by place
    std::mutex mutex_;
    Float8Shares counted_;
    std::set<std::tuple<int64_t, const ir::Op*, int64_t>> once_;  // rank, cast of weights, instance
};

}  // namespace lockstep::runtime
