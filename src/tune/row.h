// A layout of the table, from its full plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibration/band.h"
#include "planning/slower_kernels.h"
#include "tune/explain.h"
#include "tune/space.h"

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

// `bytes`: of the rank with the most.
Row row_of(const planning::Plan& plan, const Choice& choice, int64_t bytes);

}  // namespace lockstep::tune
