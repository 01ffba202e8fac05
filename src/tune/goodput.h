// Which part of a long training is useful, where devices fail: the rest saves checkpoints, repeats lost steps and restarts.
// After Young, "A first order approximation to the optimum checkpoint interval", 1974, and Daly, "A higher order estimate of
// the optimum checkpoint interval for restart dumps", 2006. Failures are independent of each other and of what the job does.
#pragma once

#include <cstdint>

namespace lockstep::tune {

struct Failures {
    double mtbf_hours = 0;   // of a device, between two failures that stop the job; 0: nothing fails
    double save_s = 30;      // that training stops for a checkpoint
    double restart_s = 600;  // from a failure to the first step after it: found, started again, read
};

struct Goodput {
    double job_mtbf_s = 0;  // of all devices
    double interval_s = 0;  // of training between two checkpoints: Daly's
    double useful = 1;      // shares of the time; with `saving` and `lost` they add up to 1
    double saving = 0, lost = 0;
};

Goodput goodput_of(int64_t devices, const Failures& failures);

}  // namespace lockstep::tune
