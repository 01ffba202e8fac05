// What an update of weights is given for a whole training. The scalars that change from step to step: step_control.h.
#pragma once

namespace lockstep::kernels {

struct AdamStep {
    double beta1 = 0, beta2 = 0, eps = 0;
    double weight_decay = 0;  // of the weights: AdamW
    float l2 = 0;             // this share of the weights is added to the gradient: torch.optim.Adam
};

struct MomentumStep {
    float momentum = 0;
    float l2 = 0;  // as above
    bool nesterov = false;
};

}  // namespace lockstep::kernels
