// How far off a plan may be: from what is not known of the machine's constants, and from what no constant explains.
#pragma once

#include <optional>
#include <vector>

#include "calibration/constants.h"
#include "planning/plan.h"

namespace lockstep::calibration {

// Deviation of the logarithm of a step time that is left where all constants are known: of runs of sources that no constant was
// fitted to, four in five lie within the band (docs/accuracy.md).
constexpr double kUnexplained = 0.07;

struct Band {
    double low_s = 0, high_s = 0;  // of a step: about four plans in five lie between
};

// `deviation`: of the logarithm.
Band band_around(double step_s, double deviation);

// The deviation of the logarithm of the step time, `step_s` with these values, that these programs have on a machine: of each
// constant alone, moved by its spread, and of the unexplained, as if they were independent.
double deviation_of(double step_s, const compile::Compiled& compiled, const compile::RankThreads& rank_threads,
                    const Constants& constants, const Constants::Sources& sources, const std::vector<double>& values,
                    const std::vector<double>& spreads);

// Of a plan. None where its machine was measured, or has no devices. UserError cluster.*: of its files, which are read again.
std::optional<Band> band_of(const planning::Plan& plan);

}  // namespace lockstep::calibration
