#include "tune/devices.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::tune {

void add_cost(OfDevices& row, const Training& t) {
    if (row.tokens_per_s <= 0) return;
    row.hours = t.tokens / row.tokens_per_s / 3600;
    row.price = row.hours * static_cast<double>(row.devices) * t.price_per_device_hour;
    row.in_budget = t.budget_hours == 0 || row.hours <= t.budget_hours;
}

std::vector<OfDevices> over_devices(const std::vector<int64_t>& counts, const ProblemOf& problem_of, const Training& training,
                                    const Options& options) {
    std::vector<OfDevices> rows;
    for (const int64_t devices : counts) {
        OfDevices& row = rows.emplace_back();
        row.devices = devices;
        try {
            const Problem problem = problem_of(devices);
            const Found found = search(problem, options);
            if (found.best.empty()) {
                row.why_not = "does not fit";
                continue;
            }
            row.best = found.best.front();
            row.tokens_per_s =
                static_cast<double>(problem.space.global_batch * problem.space.base.training.seq_len) / row.best->step_s;
            add_cost(row, training);
        } catch (const UserError& e) {
            if (std::string_view(e.id()) != "tune.batch") throw;
            row.why_not = "no layout divides the batch";
        }
    }
    return rows;
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
