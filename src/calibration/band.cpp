#include "calibration/band.h"

#include <cmath>

#include "base/parallel.h"
#include "planning/plan.h"
#include "sim/simulate.h"

namespace lockstep::calibration {
namespace {

// Of a normal distribution, four in five lie within so many deviations.
constexpr double kDeviations = 1.2816;

double played_s(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const sim::Cluster& cluster) {
    return planning::step_s(compiled, sim::simulate(compiled.programs, ir::EntryKind::Train, cluster, rank_threads));
}

}  // namespace

Band band_around(double step_s, double deviation) {
    const double factor = std::exp(kDeviations * deviation);
    return {step_s / factor, step_s * factor};
}

double deviation_of(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const Constants& constants,
                    const Constants::Sources& sources, const std::vector<double>& values, const std::vector<double>& spreads) {
    const double planned_s = played_s(compiled, rank_threads, constants.cluster(sources, values));
    const std::vector<int>& numbers = constants.of(sources);
    std::vector<double> moved(numbers.size());
    parallel_for(numbers.size(), [&](size_t i) {
        const auto k = static_cast<size_t>(numbers[i]);
        std::vector<double> other = values;
        other[k] *= std::exp(-spreads[k]);  // down: shares end at 1
        moved[i] = std::log(played_s(compiled, rank_threads, constants.cluster(sources, other)) / planned_s);
    });
    double variance = kUnexplained * kUnexplained;
    for (const double m : moved) variance += m * m;
    return std::sqrt(variance);
}

Band band_of(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const Constants::Sources& sources) {
    Constants constants;
    constants.add(sources);
    const std::vector<double> values = constants.values();
    const sim::Cluster cluster = constants.cluster(sources, values);
    if (cluster.measured.runs > 0) return band_around(played_s(compiled, rank_threads, cluster), cluster.measured.spread);
    const double deviation = deviation_of(compiled, rank_threads, constants, sources, values, constants.spreads());
    return band_around(played_s(compiled, rank_threads, cluster), deviation);
}

}  // namespace lockstep::calibration
