#include "runtime/lr_schedule.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace lockstep::runtime {

LrSchedule::LrSchedule(const compile::Recipe& r)
    : peak_(r.number("optimizer.lr")),
      floor_(r.number("lr_scheduler.min_lr_factor")),
      warmup_(r.integer("lr_scheduler.warmup_steps")),
      type_(r.text("lr_scheduler.decay_type")) {
    const int64_t total =
        r.integer("lr_scheduler.total_steps") > 0 ? r.integer("lr_scheduler.total_steps") : r.integer("training.steps");
    if (warmup_ < 0 || warmup_ > total) {
        throw UserError(
            "recipe.warmup", "lr_scheduler.warmup_steps",
            fmt::format("lr_scheduler.warmup_steps = {}: must lie between 0 and the {} steps of the schedule", warmup_, total));
    }
    if (type_ != "linear" && type_ != "sqrt" && type_ != "cosine") {
        throw UserError("recipe.decay_type", "lr_scheduler.decay_type",
                        fmt::format("lr_scheduler.decay_type = \"{}\": must be linear, sqrt or cosine", type_));
    }
    if (floor_ < 0 || floor_ > 1)
        throw UserError("recipe.min_lr_factor", "lr_scheduler.min_lr_factor",
                        fmt::format("lr_scheduler.min_lr_factor = {}: must lie between 0 and 1", floor_));
    const double ratio = r.number("lr_scheduler.decay_ratio");
    if (ratio > 1)
        throw UserError("recipe.decay_ratio", "lr_scheduler.decay_ratio",
                        fmt::format("lr_scheduler.decay_ratio = {}: must lie between 0 and 1, or be -1", ratio));
    decay_ = ratio < 0 ? total - warmup_ : static_cast<int64_t>(std::llround(static_cast<double>(total) * ratio));
    if (warmup_ + decay_ > total) {
        throw UserError("recipe.decay_ratio", "lr_scheduler.decay_ratio",
                        fmt::format("warm-up ({} steps) and decay ({} steps) do not fit into {} steps: lower one of them",
                                    warmup_, decay_, total));
    }
    stable_ = total + 1 - warmup_ - decay_;
}

double LrSchedule::at(int64_t step) const {
    double factor = 1;
    if (step < warmup_) {
        factor = static_cast<double>(step + 1) / static_cast<double>(warmup_);
    } else if (step >= warmup_ + stable_ && decay_ > 0) {
        const double progress = std::min(1.0, static_cast<double>(step + 1 - warmup_ - stable_) / static_cast<double>(decay_));
        const double left = type_ == "linear" ? 1 - progress
                            : type_ == "sqrt" ? 1 - std::sqrt(progress)
                                              : 0.5 * (1 + std::cos(std::numbers::pi * progress));
        factor = floor_ + (1 - floor_) * left;
    }
    return peak_ * factor;
}

}  // namespace lockstep::runtime
