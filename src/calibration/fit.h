// Fits constants to measured step times: least squares of the logarithms, in which a far-off run pulls no harder than one at a
// few deviations (soft L1), and each constant is held by what was known of it before. Levenberg-Marquardt, by Eigen's solver.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "calibration/constants.h"
#include "calibration/prepared_run.h"

namespace lockstep::calibration {

struct Fit {
    std::vector<double> values;     // by constant
    std::vector<double> low, high;  // one deviation to each side, by the curvature at the values
    std::vector<int64_t> runs;      // by constant: that depend on it

    std::vector<double> spreads() const;  // by constant: deviation of its logarithm
};

// Runs and the constants that they may fit. Each run is loaded once, and then played again with other values.
class Fitting {
public:
    // `begin`: where each fit begins.
    Fitting(const std::vector<PreparedRun>& runs, const Constants& constants, const std::vector<double>& begin);
    ~Fitting();
    // `used[i]`: does run i count? Deterministic.
    Fit fit(const std::vector<bool>& used, const std::function<void(int round, double cost)>& progress = {}) const;
    // Planned over measured step time of each run, with these values; 0 where it was not measured or cannot be planned.
    std::vector<double> ratios(const std::vector<double>& values) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Fitting::ratios(), of values that are asked for once.
std::vector<double> ratios(const std::vector<PreparedRun>& runs, const Constants& constants, const std::vector<double>& values);

}  // namespace lockstep::calibration
