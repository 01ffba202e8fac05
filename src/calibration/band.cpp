#include "calibration/band.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/parallel.h"
#include "base/round.h"
#include "sim/simulate.h"

namespace lockstep::calibration {
namespace {

// Four in five values of a normal distribution lie within this many deviations of its mean.
constexpr double kDeviations = 1.2816;

double spread_of(const sim::Part& part, bool knows_spreads) {
    if (part.sources == 0) return knows_spreads ? kNeverSeen : kNoSpread;
    return part.sources == 1 ? kOfOneSource : 0;
}

// "chip mi300x, network mi300x"
std::string names_of(const std::vector<sim::Part>& parts, int64_t sources) {
    std::vector<std::string> names;
    for (const sim::Part& p : parts) {
        if (p.sources == sources) names.push_back(fmt::format("{} {}", sim::name_of(p.kind), p.name));
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<sim::Part> parts_of(const std::vector<sim::Part>& parts, int64_t ranks) {
    std::vector<sim::Part> out;
    for (const sim::Part& p : parts) {
        if (ranks > 1 || p.kind != sim::Part::Kind::Network) out.push_back(p);
    }
    return out;
}

std::string text_of(const std::vector<sim::Part>& parts) {
    const std::string none = names_of(parts, 0), one = names_of(parts, 1);
    std::string out;
    if (!none.empty()) out = fmt::format("No run was ever compared with a plan of: {}.", none);
    if (!one.empty()) out += fmt::format("{}Only one publication has runs of: {}.", out.empty() ? "" : " ", one);
    return out.empty() ? out : out + " The band is wider for it.";
}

Band band_around(double step_s, double deviation) {
    const double factor = std::exp(kDeviations * deviation);
    return {step_s / factor, step_s * factor};
}

double deviation_of(double step_s, const compile::Compiled& compiled, const compile::RankThreads& rank_threads,
                    const Constants& constants, const Constants::Sources& sources, const std::vector<double>& values,
                    const std::vector<double>& spreads, const std::vector<sim::Part>& parts) {
    const std::vector<int>& numbers = constants.of(sources);
    std::vector<double> moved(numbers.size());
    constexpr size_t kOfAReplay = 4;  // constants at least: a processor takes more if there are not enough of them
    const size_t replays =
        std::min<size_t>(ceil_div(numbers.size(), kOfAReplay), std::max(1u, std::thread::hardware_concurrency()));
    parallel_for(replays, [&](size_t part) {
        const sim::Cluster cluster = constants.cluster(sources, values);
        sim::Replay replay(compiled.programs, ir::EntryKind::Train, cluster, rank_threads);
        for (size_t i = part; i < numbers.size(); i += replays) {
            const auto k = static_cast<size_t>(numbers[i]);
            std::vector<double> other = values;
            other[k] *= std::exp(-spreads[k]);  // down: shares end at 1
            const sim::Cluster moved_cluster = constants.cluster(sources, other);
            moved[i] = std::log(planning::step_s(compiled, replay.on(moved_cluster)) / step_s);
        }
    });
    double variance = kUnexplained * kUnexplained;
    for (const double m : moved) variance += m * m;
    for (const sim::Part& p : parts) variance += std::pow(spread_of(p, !numbers.empty()), 2);
    return std::sqrt(variance);
}

std::vector<sim::Part> parts_behind(const planning::Plan& plan) {
    if (!plan.cluster.declared || plan.cluster.measured.runs > 0) return {};
    return parts_of(plan.cluster.parts, plan.compiled.layout.ranks);
}

std::string text_of_class(const planning::Plan& plan) {
    if (parts_behind(plan).empty()) return {};
    const Constants::Sources sources = sim::read_sources(plan.machine.file, "--cluster", plan.machine.stack);
    Constants constants;
    constants.add(sources);
    std::string name;
    std::vector<std::string> numbers;
    for (const sim::Source& source : sources) {
        if (source.of != sim::Source::Of::Class) continue;
        name = source.tables["name"].value_or(source.path);
        for (const int i : constants.of(sources)) {
            const FittedConstant& c = constants[static_cast<size_t>(i)];
            if (c.file != source.path) continue;  // another file has its own
            const bool is_used =
                c.known.key.starts_with("rates.") ||
                (!plan.cluster.stack.attention.empty() && c.known.key.starts_with("attention." + plan.cluster.stack.attention));
            if (!is_used) continue;
            const double low = c.is_fitted() ? c.known.low : c.known.prior * std::exp(-c.known.spread),
                         high = c.is_fitted() ? c.known.high : c.known.prior * std::exp(c.known.spread);
            const std::string key = c.known.key.substr(c.known.key.starts_with("rates.") ? 6 : 0);
            numbers.push_back(fmt::format("{} {:.3g} ({:.3g} to {:.3g})", key, c.value, low, high));
        }
    }
    return numbers.empty() ? "" : fmt::format("Class {} says: {}.", name, fmt::join(numbers, ", "));
}

std::optional<Band> band_of(const planning::Plan& plan) {
    if (!plan.cluster.declared || !plan.cluster.devices) return std::nullopt;
    if (plan.cluster.measured.runs > 0) return band_around(plan.step_s(), plan.cluster.measured.spread);
    const Constants::Sources sources = sim::read_sources(plan.machine.file, "--cluster", plan.machine.stack);
    Constants constants;
    constants.add(sources);
    return band_around(plan.step_s(), deviation_of(plan.step_s(), plan.compiled, plan.rank_threads, constants, sources,
                                                   constants.values(), constants.spreads(), parts_behind(plan)));
}

}  // namespace lockstep::calibration
