// The learning rate of each step: linear warm-up, a stable stretch, decay. TorchTitan's rule (components/lr_scheduler.py).
#pragma once

#include "compile/recipe.h"

namespace lockstep::runtime {

class LrSchedule {
public:
    // Throws UserError where the lengths do not fit together.
    explicit LrSchedule(const compile::Recipe& recipe);
    double at(int64_t step) const;  // step counts from 0

private:
    double peak_, floor_;
    int64_t warmup_, stable_, decay_;
    std::string type_;
};

}  // namespace lockstep::runtime
