// What a layout takes at least, without compiling it: seconds of a step and bytes of a rank. Both never exceed what the exact
// plan gives on a cluster of devices; on processors, where the time of an op depends on caches, there is no bound but 0.
//
// The seconds are those of the layout's own routines (costs.h). The schedule's table is played with them; what crosses a cut
// arrives later by the time of its message. Gathers and reductions take none, but those that nothing can hide. Updates come on
// top.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tune/problem.h"

namespace lockstep::tune {

// A sentence's part: why a layout cannot be faster or smaller.
enum class Limit { None, Computation, Pipeline, Communication, Rounds, Memory };
std::string_view text_of(Limit limit);

struct TimeBound {
    double step_s = 0;
    Limit limit = Limit::None;
};

// The pipeline rank that needs the most bytes, as far as bounds tell.
struct Fullest {
    int64_t rank = 0, bytes = 0;
};

class Bounds {
public:
    explicit Bounds(const Problem& problem);
    ~Bounds();

    // Of all members, from the work of the busiest pipeline rank.
    TimeBound coarse(const Choice& family);
    // Of all members, with the bubble.
    TimeBound of_family(const Choice& family);
    // With gathers, reductions and updates of this one.
    TimeBound of_member(const Choice& member);
    Fullest fullest(const Choice& member);
    int64_t bytes(const Choice& member) { return fullest(member).bytes; }
    // Of all members, without compiling anything.
    int64_t least_bytes(const Choice& family) const;
    // Why the family is no layout; empty: it is one. Asked first.
    std::string refusal(const Choice& family);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::tune
