// What float8 is of a planned step.
#pragma once

#include <optional>

#include "planning/plan.h"

namespace lockstep::planning {

struct Float8Share {
    double flops = 0;       // of products: the share of those that are executed in float8
    double casts_s = 0;     // of a rank and step: to find the largest elements and to round
    bool has_rate = false;  // false: the machine's file has no rate of float8, and products take that of bfloat16
};
// Of the mean of the pipeline ranks. None: no product is in float8.
std::optional<Float8Share> float8_share(const Plan& plan);

}  // namespace lockstep::planning
