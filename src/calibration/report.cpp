#include "calibration/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/parallel.h"
#include "calibration/band.h"

namespace lockstep::calibration {
namespace {

// Of layouts of one job on one machine, without their common factor:
// deviation of the logarithm that the runs of one source show.
constexpr double kBetweenLayouts = 0.04;

}  // namespace

std::vector<SourceErrors> by_source(const std::vector<PreparedRun>& runs, const std::vector<double>& ratios) {
    std::map<std::string, std::vector<size_t>> members;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (ratios[i] != 0) members[runs[i].run->source].push_back(i);
    }
    std::vector<SourceErrors> out;
    for (const auto& [source, of] : members) {
        std::vector<double> own, planned, measured;
        for (const size_t i : of) {
            const compile::Layout& l = runs[i].compiled.layout;
            const double per_token = static_cast<double>(l.ranks) / static_cast<double>(l.global_batch * l.seq_len),
                         device_s = runs[i].run->step_time_s * per_token;
            own.push_back(ratios[i]), planned.push_back(ratios[i] * device_s), measured.push_back(device_s);
        }
        out.push_back({source, errors_of(own), rank_correlation(planned, measured)});
    }
    out.push_back({"all", errors_of(ratios), 0});
    return out;
}

Seen::Seen(const std::vector<PreparedRun>& runs, const std::vector<bool>& used) {
    std::map<std::string, std::set<std::string>> sources;
    for (size_t i = 0; i < runs.size(); ++i) {
        for (sim::Part part : runs[i].parts) {
            if (part.path.empty()) continue;  // of no file: it says itself what is known of it
            part.runs = part.sources = 0;
            sim::Part& own = all_.try_emplace(part.path, part).first->second;
            if (!used[i] || !runs[i].is_measured()) continue;
            ++own.runs, sources[part.path].insert(runs[i].run->source);
            own.sources = static_cast<int64_t>(sources[part.path].size());
        }
    }
}

std::vector<sim::Part> Seen::parts_of(const PreparedRun& run) const {
    std::vector<sim::Part> out;
    for (const sim::Part& part : calibration::parts_of(run.parts, run.compiled.layout.ranks))
        out.push_back(part.path.empty() ? part : all_.at(part.path));
    return out;
}

std::vector<double> deviations(const std::vector<PreparedRun>& runs, const Constants& constants, const Planned& planned,
                               const std::vector<double>& spreads, const Seen* seen) {
    std::vector<double> out(runs.size(), 0);
    parallel_for(runs.size(), [&](size_t i) {
        const PreparedRun& r = runs[i];
        if (planned.ratios[i] == 0) return;
        const std::vector<sim::Part> parts = seen ? seen->parts_of(r) : calibration::parts_of(r.parts, r.compiled.layout.ranks);
        out[i] = deviation_of(planned.ratios[i] * r.run->step_time_s, r.compiled, r.rank_threads, constants, r.sources,
                              planned.values, spreads, parts);
    });
    return out;
}

double coverage(const std::vector<double>& ratios, const std::vector<double>& deviations) {
    double inside = 0, count = 0;
    for (size_t i = 0; i < ratios.size(); ++i) {
        if (ratios[i] == 0) continue;
        const Band band = band_around(ratios[i], deviations[i]);
        ++count, inside += band.low_s <= 1 && 1 <= band.high_s;
    }
    return count > 0 ? inside / count : 0;
}

LeftOut leave_sources_out(const std::vector<PreparedRun>& runs, const Constants& constants, const Fitting& fitting,
                          const Progress& progress) {
    std::set<std::string> sources;
    for (const PreparedRun& r : runs) {
        if (r.is_measured()) sources.insert(r.run->source);
    }
    LeftOut out;
    out.ratios.assign(runs.size(), 0), out.deviations.assign(runs.size(), 0);
    for (const std::string& source : sources) {
        std::vector<bool> used;
        for (const PreparedRun& r : runs) used.push_back(r.run->source != source);
        const Fit others = fitting.fit(used);
        Planned own{others.values, fitting.ratios(others.values)};
        for (size_t i = 0; i < runs.size(); ++i) {
            if (used[i]) own.ratios[i] = 0;
        }
        const Seen seen(runs, used);
        const std::vector<double> of_own = deviations(runs, constants, own, others.spreads(), &seen);
        for (size_t i = 0; i < runs.size(); ++i) out.ratios[i] += own.ratios[i], out.deviations[i] += of_own[i];
        const Errors errors = errors_of(own.ratios);
        out.mean_of_medians += errors.median / static_cast<double>(sources.size());
        if (progress) progress(fmt::format("without {}: its runs {:.1f} %", source, 100 * errors.median));
    }
    out.coverage = coverage(out.ratios, out.deviations);
    return out;
}

sim::Measured measured_by(const std::vector<double>& ratios) {
    std::vector<double> logs;
    for (const double r : ratios) {
        if (r != 0) logs.push_back(-std::log(r));
    }
    const auto n = static_cast<double>(logs.size());
    if (logs.empty()) return {};
    const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / n;
    double square = 0;
    for (const double l : logs) square += (l - mean) * (l - mean);
    const double between = logs.size() > 2 ? std::max(kBetweenLayouts, std::sqrt(square / (n - 1))) : kBetweenLayouts;
    return {std::exp(mean), between * std::sqrt(1 + 1 / n), static_cast<int64_t>(logs.size())};
}

}  // namespace lockstep::calibration
