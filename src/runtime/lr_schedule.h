// The learning rate of each step: linear warm-up, a stable stretch, decay. TorchTitan's rule (components/lr_scheduler.py).
#pragma once

#include "compile/rules.h"

namespace lockstep::runtime {

class LrSchedule {
public:
    explicit LrSchedule(const compile::Config& config);
    double at(int64_t step) const;  // step counts from 0

private:
    double peak_, floor_;
    compile::LrPhases phases_;
    compile::DecayType type_;
};

}  // namespace lockstep::runtime
