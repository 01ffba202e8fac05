#include "passes/optimizer.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::passes {
namespace {

using Needs = UpdateRule::Needs;

UpdateRule adam_by(const char* op, const OptimizerOptions& o) {
    UpdateRule rule{op, {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}}, {"exp_avg", "exp_avg_sq"}, {}, Needs::Elements};
    if (o.narrow_moments) rule.narrow = Dtype::BF16, rule.attrs["seed"] = o.seed;
    return rule;
}

UpdateRule adamw(const OptimizerOptions& o) { return adam_by("adamw", o); }
UpdateRule adam(const OptimizerOptions& o) { return adam_by("adam", o); }

ir::Attrs momentum(const OptimizerOptions& o) { return {{"momentum", o.momentum}, {"nesterov", int64_t{o.nesterov}}}; }

// Without momentum nothing is remembered.
UpdateRule sgd(const OptimizerOptions& o) {
    std::vector<std::string> states;
    if (o.momentum != 0) states.emplace_back("momentum_buffer");
    return {"sgd", momentum(o), std::move(states), {}, Needs::Elements};
}

UpdateRule muon(const OptimizerOptions& o) {
    UpdateRule rule{"muon", momentum(o), {"momentum_buffer"}, {}, Needs::Matrix};
    rule.attrs["ns_steps"] = o.ns_steps;
    rule.attrs["match_rms_adamw"] = int64_t{o.match_rms_adamw};
    return rule;
}

}  // namespace

bool UpdateRule::serves(const ir::Parameter& param) const {
    return needs == Needs::Elements || ir::rows_of_matrix(param).has_value();
}

int Optimizer::rule_of(const ir::Parameter& param) const {
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const UpdateRule& r) { return r.serves(param); });
    ensure(rule != rules.end(), "no rule of the optimizer serves " + param.key);
    return static_cast<int>(rule - rules.begin());
}

Optimizer optimizer_called(const OptimizerOptions& o) {
    Optimizer out;
    switch (o.name) {
        case OptimizerName::AdamW: out.rules = {adamw(o)}; break;
        case OptimizerName::Adam: out.rules = {adam(o)}; break;
        case OptimizerName::SGD: out.rules = {sgd(o)}; break;
        case OptimizerName::Muon: out.rules = {muon(o), adamw(o)}; break;
    }
    out.beta1 = o.beta1, out.beta2 = o.beta2, out.weight_decay = o.weight_decay;
    return out;
}

}  // namespace lockstep::passes
