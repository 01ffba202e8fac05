// Finds the fastest layouts of a problem. Layouts are taken in the order of what they take at least (bounds.h), compiled from
// the kept prefix and simulated, until the next one cannot be among the best any more. Nothing is sampled.
//
// Guarantees: unless Options::stop ends it, the result does not depend on the machine or on chance. With Options::prune off it
// is the same, later.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tune/bounds.h"
#include "tune/problem.h"
#include "tune/row.h"

namespace lockstep::tune {

struct Planned {
    Choice choice;
    double step_s = 0;
    int64_t bytes = 0;  // of the rank with the most
    bool fits = true;
    bool is_placed = true;  // else bytes are the least that any offsets of its buffers need
    bool is_least = false;  // step_s is what it takes at least: only as many microbatches were played as need its memory
};

// Placed: buffers get their offsets, which takes longest of a plan. Least: see Planned::is_placed.
enum class Bytes { Placed, Least };

// The exact plan: a refusal where the layout is none. With only the fullest microbatches, see Planned::is_least.
compile::OrRefusal<Planned> plan_of(const Problem& problem, const Choice& choice, Bytes bytes = Bytes::Placed,
                                    compile::Microbatches microbatches = compile::Microbatches::Steady);

// Bytes of one pipeline rank at least: only its program is compiled, and only of the fullest microbatches.
compile::OrRefusal<int64_t> bytes_of(const Problem& problem, const Choice& choice, Bytes bytes, int64_t pipeline_rank);

// Layouts that were not compiled, and the sentence why none of them can win.
struct Cut {
    Limit limit = Limit::None;
    int64_t layouts = 0;
    Choice nearest;      // the one with the least bound
    double bound_s = 0;  // its bound; of Memory: bytes
};

struct Progress {
    double share = 0;      // of the search, about: what is left to look at shrinks as better layouts are found. Never falls
    int64_t compiled = 0;  // layouts
    double best_s = 0;     // 0: none fits yet
    const Choice* best = nullptr;
};

struct Options {
    int64_t top = 10;  // families whose best member is wanted
    bool prune = true;
    bool solve_recompute = true;  // a memory budget, where nothing else fits as much
    bool keep_budgets = false;    // Found::budgets are asked for
    std::function<void(const Progress&)> progress = {};
    std::function<bool()> stop = {};  // asked between layouts: ends the search with what it has
    double placing_s = 10;            // then: for how long layouts are placed. One that fits is always; what is not is forgotten
};

struct Found {
    std::vector<Planned> best;  // of each family the fastest member that fits, fastest first; Options::top of them
    std::vector<Planned> all;   // every layout that was compiled; those of the front of memory and time are placed
    std::vector<Row> budgets;   // rows of those with a memory budget that fit and are placed, which takes long
    std::vector<Cut> cuts;
    int64_t families = 0, layouts = 0, refused = 0;  // of the space; refused: by the compiler
    double wall_s = 0, plan_s = 0;                   // of all, and of exact plans
    std::optional<Planned> closest;                  // if nothing fits: the one with the fewest bytes
    bool was_stopped = false;                        // then `best` is the best so far, and the front is not placed
    int64_t not_reached = 0;                         // layouts that might have won
};

Found search(const Problem& problem, const Options& options);

// Of all layouts that were planned and fit: those that no other beats in both bytes and time, by ascending bytes.
std::vector<Planned> pareto_front(const std::vector<Planned>& all);

}  // namespace lockstep::tune
