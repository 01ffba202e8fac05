// Element types, recompute and context ranks of a run in words: what a recipe's defaults decide without being written in it.
#pragma once

#include <string>
#include <vector>

#include "compile/config.h"

namespace lockstep::planning {

std::string types_line(const compile::Config& config);      // "bfloat16 parameters over float32 master weights"
std::string recompute_line(const compile::Config& config);  // "none", "full", "selective 2"
// "context: 8 ranks, 2 on heads and a ring of 4, head-tail; ...", or empty: there is one context rank, or the layout is refused.
std::string context_line(const compile::Config& config);
struct Float8Lines {
    std::string
        line;  // "float8 tensorwise: 14 of 14 linear layers; ...", or empty: nothing is asked for, or the layout is refused
    std::vector<std::string> notes;     // which layers stay as they are though no filter names them
    std::vector<std::string> warnings;  // no layer converts, or a filter is part of no layer's name
};
Float8Lines float8_lines(const compile::Config& config);
// A warning where parameters are bfloat16 and this processor multiplies floats faster; empty elsewhere.
std::string slow_types_warning(const compile::Config& config);

}  // namespace lockstep::planning
