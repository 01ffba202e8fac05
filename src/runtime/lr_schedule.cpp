#include "runtime/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace lockstep::runtime {

LrSchedule::LrSchedule(const compile::Config& config)
    : peak_(config.optimizer.lr),
      floor_(config.lr_scheduler.min_lr_factor),
      phases_(compile::lr_phases(config)),
      type_(config.lr_scheduler.decay_type) {}

double LrSchedule::at(int64_t step) const {
    double factor = 1;
    if (step < phases_.warmup) {
        factor = static_cast<double>(step + 1) / static_cast<double>(phases_.warmup);
    } else if (step >= phases_.warmup + phases_.stable && phases_.decay > 0) {
        const double progress =
            std::min(1.0, static_cast<double>(step + 1 - phases_.warmup - phases_.stable) / static_cast<double>(phases_.decay));
        const double left = type_ == compile::DecayType::Linear ? 1 - progress
                            : type_ == compile::DecayType::Sqrt ? 1 - std::sqrt(progress)
                                                                : 0.5 * (1 + std::cos(std::numbers::pi * progress));
        factor = floor_ + (1 - floor_) * left;
    }
    return peak_ * factor;
}

}  // namespace lockstep::runtime
