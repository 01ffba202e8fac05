// The seven scalars of a step that every update reads, as `step_control` writes them.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct StepControl {
    static constexpr int kValues = 7;
    double lr, clip;
    bool commit;  // false: norm or loss is not finite; no state changes
    double bias_correction1, bias_correction2, grad_norm, loss;

    static StepControl read(const double* x) { return {x[0], x[1], x[2] != 0, x[3], x[4], x[5], x[6]}; }
    void write(double* x) const {
        const double values[] = {lr, clip, commit ? 1.0 : 0.0, bias_correction1, bias_correction2, grad_norm, loss};
        for (int i = 0; i < kValues; ++i) x[i] = values[i];
    }
};

}  // namespace lockstep::kernels
