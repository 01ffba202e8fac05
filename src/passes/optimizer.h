// Optimizers as descriptions: which states they keep of a parameter, which op updates it, and how much of it that op must see.
// partition_parameters makes states and updates from them; nothing else knows an optimizer by name.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// How one update op treats the parameters that it serves.
struct UpdateRule {
    bool serves(const ir::Parameter& param) const;

    std::string op;                   // kind of (weights, gradients, states.., control) -> weights, states..
    ir::Attrs attrs;                  // of the op, besides weight_decay, which norms and biases have as 0
    std::vector<std::string> states;  // as PyTorch's state_dict calls them
    // Of the states, where that is not the type of the weights. The last of them is then rounded at random, from the attribute
    // `seed` (ops/element_places.h).
    std::optional<Dtype> narrow;
    // What the op must see of a parameter at once: elements one by one, so that any shard will do, or the whole matrix. A rule
    // for matrices serves those that ir::rows_of_matrix accepts.
    enum class Needs { Elements, Matrix } needs = Needs::Elements;
};

struct Optimizer {
    std::vector<UpdateRule> rules;
    double beta1 = 0, beta2 = 0;  // of the bias corrections in `control`
    double weight_decay = 0;

    // Index of the first rule that serves the parameter. Throws InternalError if none does.
    int rule_of(const ir::Parameter& param) const;
};

// AdamW (1711.05101), Adam (1412.6980, decay added to the gradient), SGD with momentum (torch.optim.SGD), Muon (Jordan et al.
// 2024; torch.optim.Muon) with AdamW for what are no hidden matrices.
enum class OptimizerName { AdamW, Adam, SGD, Muon };
constexpr auto words_of(OptimizerName) {
    using enum OptimizerName;
    return std::to_array<std::pair<std::string_view, OptimizerName>>(
        {{"AdamW", AdamW}, {"Adam", Adam}, {"SGD", SGD}, {"Muon", Muon}});
}

struct OptimizerOptions {
    OptimizerName name = OptimizerName::AdamW;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double momentum = 0.95;  // SGD, Muon
    bool nesterov = true;
    int64_t ns_steps = 5;  // Muon: steps of Newton and Schulz
    bool match_rms_adamw = true;
    bool narrow_moments = false;  // AdamW, Adam: in bfloat16
    int64_t seed = 0;             // of their rounding
};

Optimizer optimizer_called(const OptimizerOptions& options);

}  // namespace lockstep::passes
