// The fastest layout for each of several numbers of devices, with the days and the price of a training.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tune/goodput.h"
#include "tune/search.h"

namespace lockstep::tune {

struct Training {
    double tokens = 0;                 // 0: not said
    double price_per_device_hour = 0;  // 0: not said
    double budget_hours = 0;           // of wall time; 0: any
    Failures failures = {};
};

struct OfDevices {
    int64_t devices = 0;
    std::optional<Planned> best;  // none: nothing fits, or no layout divides the batch
    std::string why_not;
    double tokens_per_s = 0, hours = 0, price = 0;
    Goodput goodput;
    bool in_budget = true;

    double device_hours() const { return hours * static_cast<double>(devices); }
};

// Hours and price of `training` at that speed, with what failures cost.
void add_cost(OfDevices& row, const Training& training);

using ProblemOf = std::function<Problem(int64_t devices)>;
std::vector<OfDevices> over_devices(const std::vector<int64_t>& counts, const ProblemOf& problem_of, const Training& training,
                                    const Options& options);

// Numbers of devices that make sense: parts of a host by halves, then whole hosts: 1, 2, 3, 4, 6, 8, 12, ...
std::vector<int64_t> usual_counts(int64_t of_host);
// The smallest of `counts` (ascending) that trains within `days`, sought from where the speed of a device, `tokens_per_s`, says
// that it may be. Returns the counts that were searched, ascending; more devices are taken to be no slower.
std::vector<OfDevices> within_days(double days, double tokens_per_s, const std::vector<int64_t>& counts,
                                   const ProblemOf& problem_of, const Training& training, const Options& options);
// Of these rows. Null: none does.
const OfDevices* smallest_within(const std::vector<OfDevices>& rows, double days);

// Of the rows that fit and are within the budget. Null: none.
const OfDevices* cheapest(const std::vector<OfDevices>& rows);
const OfDevices* fastest(const std::vector<OfDevices>& rows);

}  // namespace lockstep::tune
