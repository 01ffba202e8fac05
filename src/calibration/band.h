// How far off a plan may be: from what is not known of the machine's constants, and from what no constant explains.
#pragma once

#include <vector>

#include "calibration/constants.h"
#include "compile/compile.h"
#include "compile/rank_threads.h"

namespace lockstep::calibration {

// Deviation of the logarithm of a step time that is left where all constants are known: of runs of sources that no constant was
// fitted to, four in five lie within the band (docs/accuracy.md).
constexpr double kUnexplained = 0.07;

struct Band {
    double low_s = 0, high_s = 0;  // of a step: about four plans in five lie between
};

// `deviation`: of the logarithm.
Band band_around(double step_s, double deviation);

// The deviation of the logarithm of the step time that these programs have on a machine: of each constant alone, moved by its
// spread, and of the unexplained, as if they were independent.
double deviation_of(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const Constants& constants,
                    const Constants::Sources& sources, const std::vector<double>& values, const std::vector<double>& spreads);

// Of a plan on the machine of a cluster file, where it is declared. UserError cluster.*.
Band band_of(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const Constants::Sources& sources);

}  // namespace lockstep::calibration
