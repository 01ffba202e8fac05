// Element types of a configuration: training.dtype is the type of master weights, and of moments where
// optimizer.implementation does not say otherwise; mixed_precision_param that of parameters and activations; sums are in float32
// at least. They do not depend on the layout.
#pragma once

#include <optional>

#include "base/error.h"
#include "compile/config.h"
#include "passes/attach_objective.h"
#include "passes/set_precision.h"

namespace lockstep::compile {

struct Types {
    Dtype master = Dtype::F32, moments = Dtype::F32, reduce = Dtype::F32;  // reduce: of gradients between ranks
    passes::PrecisionOptions precision;
    std::optional<passes::LossScaling> loss_scaling;
};

Types types_of(const Config& config);

// What [training] asks for and cannot have: recipe.mixed_precision.
std::optional<UserError> objection_to_types(const Config& config);

}  // namespace lockstep::compile
