#include "tune/band.h"

#include <cmath>

#include "calibration/constants.h"
#include "sim/simulate.h"

namespace lockstep::tune {
namespace {

void set(toml::node& number, double value) {
    if (auto* real = number.as_floating_point()) real->get() = value;
    else if (auto* integer = number.as_integer()) integer->get() = std::llround(value);
}

}  // namespace

Bands::Bands(const std::string& cluster_file, const char* asked_by, const std::string& stack) {
    const std::vector<sim::Source> sources = sim::read_sources(cluster_file, asked_by, stack);
    for (size_t i = 0; i < sources.size(); ++i) {
        for (const sim::Constant& c : sim::constants_of(sources[i])) {
            for (const double side : {-1.0, 1.0}) {
                std::vector<sim::Source> changed = sources;
                toml::node* number = calibration::find_number(changed[i].tables, c.key);
                if (!number) continue;
                const double known = side < 0 ? c.low : c.high, value = number->value_or(0.0);
                set(*number, c.low > 0 && c.high > 0 ? known : value * std::exp(side * c.spread));
                moved_.push_back(sim::cluster_of(changed));
            }
        }
    }
}

Band Bands::of(const planning::Plan& plan) const {
    const double step_s = plan.step_s();
    double below = 0, above = 0;
    for (const sim::Cluster& moved : moved_) {
        const double change = planning::step_s(plan.compiled, sim::simulate(plan.compiled.programs, ir::EntryKind::Train, moved,
                                                                            plan.rank_threads)) -
                              step_s;
        (change < 0 ? below : above) += change * change;
    }
    return {step_s - std::sqrt(below), step_s + std::sqrt(above)};
}

}  // namespace lockstep::tune
