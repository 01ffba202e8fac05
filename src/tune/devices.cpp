#include "tune/devices.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::tune {

void add_cost(OfDevices& row, const Training& t) {
    if (row.tokens_per_s <= 0) return;
    row.goodput = goodput_of(row.devices, t.failures);
    row.hours = t.tokens / row.tokens_per_s / 3600 / row.goodput.useful;
    row.price = row.hours * static_cast<double>(row.devices) * t.price_per_device_hour;
    row.in_budget = t.budget_hours == 0 || row.hours <= t.budget_hours;
}

namespace {

OfDevices searched(int64_t devices, const ProblemOf& problem_of, const Training& training, const Options& options) {
    OfDevices row;
    row.devices = devices;
    try {
        const Problem problem = problem_of(devices);
        const Found found = search(problem, options);
        if (found.best.empty()) {
            row.why_not = found.was_stopped ? "stopped before a layout was found that fits" : "does not fit";
            return row;
        }
        row.best = found.best.front();
        row.tokens_per_s =
            static_cast<double>(problem.space.global_batch * problem.space.base.training.seq_len) / row.best->step_s;
        add_cost(row, training);
    } catch (const UserError& e) {
        if (e.is(kNoneDividesBatch)) row.why_not = "no layout divides the batch";
        else if (e.is(kNoneHasHeldKeys)) row.why_not = "no layout has the keys that are held";
        else throw;
    }
    return row;
}

bool is_within(const OfDevices& row, double days) { return row.best && row.hours <= 24 * days; }

}  // namespace

std::vector<OfDevices> over_devices(const std::vector<int64_t>& counts, const ProblemOf& problem_of, const Training& training,
                                    const Options& options) {
    std::vector<OfDevices> rows;
    for (const int64_t devices : counts) rows.push_back(searched(devices, problem_of, training, options));
    return rows;
}

std::vector<int64_t> usual_counts(int64_t of_host) {
    constexpr int64_t kMost = 1 << 20;
    std::vector<int64_t> counts;
    for (int64_t part = of_host / 2; part > 0; part /= 2) counts.insert(counts.begin(), part);
    for (int64_t hosts = 1; hosts * of_host <= kMost; hosts *= 2) {
        counts.push_back(hosts * of_host);
        if (hosts > 1) counts.push_back(hosts / 2 * 3 * of_host);
    }
    return counts;
}

std::vector<OfDevices> within_days(double days, double tokens_per_s, const std::vector<int64_t>& counts,
                                   const ProblemOf& problem_of, const Training& training, const Options& options) {
    constexpr double kFarthest = 64;  // times the estimate: beyond it more devices do not help
    const double estimate = training.tokens / (days * 86400 * tokens_per_s);
    auto at = std::find_if(counts.begin(), counts.end(), [&](int64_t n) { return static_cast<double>(n) >= estimate; });
    std::vector<OfDevices> rows;
    if (at == counts.end()) return rows;
    const auto is_enough = [&](int64_t devices) {
        const OfDevices row = searched(devices, problem_of, training, options);
        const auto later = [&](const OfDevices& r) { return r.devices > devices; };
        rows.insert(std::find_if(rows.begin(), rows.end(), later), row);
        return is_within(row, days);
    };
    if (is_enough(*at)) {
        while (at != counts.begin() && is_enough(*--at)) {
        }
        return rows;
    }
    while (++at != counts.end() && static_cast<double>(*at) <= kFarthest * std::max(estimate, 1.0) && !is_enough(*at)) {
    }
    return rows;
}

const OfDevices* smallest_within(const std::vector<OfDevices>& rows, double days) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const OfDevices& row) { return is_within(row, days); });
    return found == rows.end() ? nullptr : &*found;
}

namespace {

template <class Less>
const OfDevices* least(const std::vector<OfDevices>& rows, Less less) {
    const OfDevices* out = nullptr;
    for (const OfDevices& row : rows) {
        if (row.best && row.in_budget && (!out || less(row, *out))) out = &row;
    }
    return out;
}

}  // namespace

const OfDevices* cheapest(const std::vector<OfDevices>& rows) {
    return least(rows, [](const OfDevices& a, const OfDevices& b) { return a.price < b.price; });
}

const OfDevices* fastest(const std::vector<OfDevices>& rows) {
    return least(rows, [](const OfDevices& a, const OfDevices& b) { return a.tokens_per_s > b.tokens_per_s; });
}

}  // namespace lockstep::tune
