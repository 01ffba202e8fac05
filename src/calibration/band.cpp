#include "calibration/band.h"

#include <cmath>

#include "base/parallel.h"
#include "sim/simulate.h"

namespace lockstep::calibration {
namespace {

// Four in five values of a normal distribution lie within this many deviations of its mean.
constexpr double kDeviations = 1.2816;

double played_s(const compile::Compiled& compiled, const compile::RankThreads& rank_threads, const sim::Cluster& cluster) {
    return planning::step_s(compiled, sim::time_of(compiled.programs, ir::EntryKind::Train, cluster, rank_threads));
}

}  // namespace

Band band_around(double step_s, double deviation) {
    const double factor = std::exp(kDeviations * deviation);
    return {step_s / factor, step_s * factor};
}

double deviation_of(double step_s, const compile::Compiled& compiled, const compile::RankThreads& rank_threads,
                    const Constants& constants, const Constants::Sources& sources, const std::vector<double>& values,
                    const std::vector<double>& spreads) {
    const std::vector<int>& numbers = constants.of(sources);
    std::vector<double> moved(numbers.size());
    parallel_for(numbers.size(), [&](size_t i) {
        const auto k = static_cast<size_t>(numbers[i]);
        std::vector<double> other = values;
        other[k] *= std::exp(-spreads[k]);  // down: shares end at 1
        moved[i] = std::log(played_s(compiled, rank_threads, constants.cluster(sources, other)) / step_s);
    });
    double variance = kUnexplained * kUnexplained;
    for (const double m : moved) variance += m * m;
    return std::sqrt(variance);
}

std::optional<Band> band_of(const planning::Plan& plan) {
    if (!plan.cluster.declared || !plan.cluster.devices) return std::nullopt;
    if (plan.cluster.measured.runs > 0) return band_around(plan.step_s(), plan.cluster.measured.spread);
    const Constants::Sources sources = sim::read_sources(plan.machine.file, "--cluster", plan.machine.stack);
    Constants constants;
    constants.add(sources);
    return band_around(plan.step_s(), deviation_of(plan.step_s(), plan.compiled, plan.rank_threads, constants, sources,
                                                   constants.values(), constants.spreads()));
}

}  // namespace lockstep::calibration
