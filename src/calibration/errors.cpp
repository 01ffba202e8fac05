#include "calibration/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace lockstep::calibration {
namespace {

// By linear interpolation between the two nearest.
double quantile(std::vector<double> values, double q) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double at = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

// From 0, equal values sharing their mean rank.
std::vector<double> ranks_of(const std::vector<double>& values) {
    std::vector<double> out;
    for (const double v : values) {
        const auto less = std::count_if(values.begin(), values.end(), [&](double o) { return o < v; }),
                   equal = std::count(values.begin(), values.end(), v);
        out.push_back(static_cast<double>(less) + static_cast<double>(equal - 1) / 2);
    }
    return out;
}

}  // namespace

Errors errors_of(std::vector<double> ratios) {
    std::erase(ratios, 0);
    std::vector<double> size, sign;
    for (const double r : ratios) size.push_back(std::abs(r - 1)), sign.push_back(r - 1);
    return {static_cast<int64_t>(ratios.size()), quantile(size, 0.5), quantile(size, 0.9), quantile(sign, 0.5)};
}

double rank_correlation(const std::vector<double>& planned, const std::vector<double>& measured) {
    if (planned.size() < 3) return 0;
    const std::vector<double> a = ranks_of(planned), b = ranks_of(measured);
    const double mean = static_cast<double>(a.size() - 1) / 2;
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        ab += (a[i] - mean) * (b[i] - mean), aa += (a[i] - mean) * (a[i] - mean), bb += (b[i] - mean) * (b[i] - mean);
    }
    return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

std::vector<Choice> choices_of(const std::vector<PreparedRun>& runs, const std::vector<double>& ratios) {
    std::map<std::string, std::vector<size_t>> groups;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (ratios[i] == 0) continue;
        const compile::Config& c = runs[i].config;
        std::string shape = c.model.name;
        for (const char* key : {"dim", "n_layers", "n_heads", "ffn_dim", "vocab_size"})
            shape += fmt::format(" {} {}", key, c.model.size(key));
        if (c.float8()) shape += " in float8";
        groups[fmt::format("{}: {}, {} devices, {} sequences of {}; {}", runs[i].run->source, runs[i].run->cluster,
                           runs[i].compiled.layout.ranks, c.training.global_batch_size, c.training.seq_len, shape)]
            .push_back(i);
    }
    std::vector<Choice> out;
    for (const auto& [of, members] : groups) {
        if (members.size() < 3) continue;
        const auto measured = [&](size_t i) { return runs[i].run->step_time_s; };
        const size_t chosen = *std::min_element(members.begin(), members.end(), [&](size_t a, size_t b) {
            return ratios[a] * measured(a) < ratios[b] * measured(b);
        });
        double best = measured(members[0]), sum = 0;
        for (const size_t i : members) best = std::min(best, measured(i)), sum += measured(i);
        out.push_back({of.substr(0, of.find(';')), members, measured(chosen) / best - 1,
                       sum / static_cast<double>(members.size()) / best - 1});
    }
    return out;
}

std::vector<double> constant_utilization(const std::vector<PreparedRun>& runs) {
    const auto rate = [](const PreparedRun& r) { return r.flops_model / r.run->step_time_s; };
    std::map<std::string, std::vector<double>> by_cluster;
    for (const PreparedRun& r : runs) {
        if (r.is_measured()) by_cluster[r.run->cluster].push_back(rate(r));
    }
    std::vector<double> out;
    for (const PreparedRun& r : runs) out.push_back(r.is_measured() ? rate(r) / quantile(by_cluster[r.run->cluster], 0.5) : 0);
    return out;
}

}  // namespace lockstep::calibration
