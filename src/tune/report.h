// What a search found, as numbers to print: the best layouts planned in full, why each of the others lost, the recipe's own
// layout among them, and the front of memory and time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tune/row.h"
#include "tune/search.h"

namespace lockstep::tune {

// The plan that `lockstep plan` prints, on the problem's machine.
planning::Plan full_plan(const Problem& problem, const compile::Config& config);
// `bytes`: of the rank with the most, where they are known. Devices' buffers then get no offsets, on which no time depends but
// that of a memory budget.
Row row_of(const Problem& problem, const compile::Config& config, const Choice& choice, std::optional<int64_t> bytes = {});

// The best of `found`, fastest first.
std::vector<Row> rows_of(const Problem& problem, const Found& found);

// A layout in one software.
struct InSoftware {
    std::string name;  // "Lockstep", or the stack's
    double step_s = 0;
    int64_t bytes = 0;
    bool fits = true;
};
// The layout in the stack that the problem names, then as Lockstep's program. Empty where no stack is named, or where Lockstep
// has no kernels for the machine.
std::vector<InSoftware> in_both(const Problem& problem, const Choice& choice);

// A line a minute of a long search.
class LinesSoFar {
public:
    // What to say after so many seconds: empty, unless a minute has passed since the last line, or since the beginning.
    std::string line_at(double elapsed_s, const Progress& progress);

private:
    double next_s_ = kPauseSeconds;
    static constexpr double kPauseSeconds = 60;
};

}  // namespace lockstep::tune
