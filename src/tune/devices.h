// The fastest layout for each of several numbers of devices, with the days and the price of a training.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tune/search.h"

namespace lockstep::tune {

struct Training {
    double tokens = 0;                 // 0: not said
    double price_per_device_hour = 0;  // 0: not said
    double budget_hours = 0;           // of wall time; 0: any
};

struct OfDevices {
    int64_t devices = 0;
    std::optional<Planned> best;  // none: nothing fits, or no layout divides the batch
    std::string why_not;
    double tokens_per_s = 0, hours = 0, price = 0;
    bool in_budget = true;
};

// Hours and price of `training` at that speed.
void add_cost(OfDevices& row, const Training& training);

using ProblemOf = std::function<Problem(int64_t devices)>;
std::vector<OfDevices> over_devices(const std::vector<int64_t>& counts, const ProblemOf& problem_of, const Training& training,
                                    const Options& options);

// Of the rows that fit and are within the budget. Null: none.
const OfDevices* cheapest(const std::vector<OfDevices>& rows);
const OfDevices* fastest(const std::vector<OfDevices>& rows);

}  // namespace lockstep::tune
