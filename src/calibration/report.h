// Plans held against a table of runs: with the constants that cluster files have, with constants fitted to the runs, and of
// each source with constants that were fitted to the others.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "calibration/errors.h"
#include "calibration/fit.h"

namespace lockstep::calibration {

struct Planned {
    std::vector<double> values;  // of the constants
    std::vector<double> ratios;  // planned / measured step time, by run; 0: not to be said
};

struct LeftOut {
    std::vector<double> ratios;      // by run, planned with constants that no run of its source has fitted
    std::vector<double> deviations;  // of the logarithm, as a plan's band has it
    double mean_of_medians = 0;      // over the sources
    double coverage = 0;             // share of the runs whose measured time lies in the band
};

struct SourceErrors {
    std::string source;
    Errors errors;
    double rank_correlation = 0;
};
// By source, in their order; the last is of all.
std::vector<SourceErrors> by_source(const std::vector<PreparedRun>& runs, const std::vector<double>& ratios);

// Parts of a machine, with the runs of `used` that were on them: counted by the parts' files.
class Seen {
public:
    Seen(const std::vector<PreparedRun>& runs, const std::vector<bool>& used);
    std::vector<sim::Part> parts_of(const PreparedRun& run) const;
    // By path of a part's file.
    const std::map<std::string, sim::Part>& all() const { return all_; }

private:
    std::map<std::string, sim::Part> all_;
};

// Of the logarithm of each run's step, by run, as a plan's band has it; 0 where there is no ratio. `seen`: how often parts were
// compared with runs; null: as their files say.
std::vector<double> deviations(const std::vector<PreparedRun>& runs, const Constants& constants, const Planned& planned,
                               const std::vector<double>& spreads, const Seen* seen = nullptr);
// Share of the measured step times that lie in the bands around the planned ones.
double coverage(const std::vector<double>& ratios, const std::vector<double>& deviations);

using Progress = std::function<void(const std::string& line)>;
LeftOut leave_sources_out(const std::vector<PreparedRun>& runs, const Constants& constants, const Fitting& fitting,
                          const Progress& progress);

// The multiplier that these runs give the plans of their machine.
sim::Measured measured_by(const std::vector<double>& ratios);

}  // namespace lockstep::calibration
