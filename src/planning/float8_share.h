// What float8 is of a planned step.
#pragma once

#include <optional>

#include "planning/plan.h"

namespace lockstep::planning {

struct Float8Share {
    double flops = 0;    // of products: the share of those that are executed in float8
    double casts_s = 0;  // of a rank and step: to find the largest elements and to round
};
// Of the mean of the pipeline ranks. None: no product is in float8.
std::optional<Float8Share> float8_share(const Plan& plan);

}  // namespace lockstep::planning
