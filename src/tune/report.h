// What a search found, as numbers to print: the best layouts planned in full, why each of the others lost, the recipe's own
// layout among them, and the front of memory and time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibration/band.h"
#include "planning/slower_kernels.h"
#include "tune/explain.h"
#include "tune/search.h"

namespace lockstep::tune {

struct Row {
    Choice choice;
    double step_s = 0, tokens_per_s = 0, mfu = 0, exposed_communication_s = 0, bubble_s = 0;
    calibration::Band band;  // both the step's time where the machine was measured
    int64_t bytes = 0;
    Causes causes;
    std::vector<planning::SlowerKernel> slower;  // that serve in place of faster ones
    std::string why;                             // it takes longer than the first; empty: it is the first
};

// The plan that `lockstep plan` prints, on the problem's machine.
planning::Plan full_plan(const Problem& problem, const compile::Config& config);
Row row_of(const Problem& problem, const compile::Config& config, const Choice& choice);

// The best of `found`, fastest first.
std::vector<Row> rows_of(const Problem& problem, const Found& found);

}  // namespace lockstep::tune
