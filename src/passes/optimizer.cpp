#include "passes/optimizer.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::passes {
namespace {

using Needs = UpdateRule::Needs;

UpdateRule adam_by(const char* op, const OptimizerOptions& o) {
    return {op, {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}}, {"exp_avg", "exp_avg_sq"}, Needs::Elements};
}

UpdateRule adamw(const OptimizerOptions& o) { return adam_by("adamw", o); }
UpdateRule adam(const OptimizerOptions& o) { return adam_by("adam", o); }

ir::Attrs momentum(const OptimizerOptions& o) { return {{"momentum", o.momentum}, {"nesterov", int64_t{o.nesterov}}}; }

// Without momentum nothing is remembered.
UpdateRule sgd(const OptimizerOptions& o) {
    std::vector<std::string> states;
    if (o.momentum != 0) states.emplace_back("momentum_buffer");
    return {"sgd", momentum(o), std::move(states), Needs::Elements};
}

UpdateRule muon(const OptimizerOptions& o) {
    UpdateRule rule{"muon", momentum(o), {"momentum_buffer"}, Needs::Matrix};
    rule.attrs["ns_steps"] = o.ns_steps;
    rule.attrs["match_rms_adamw"] = int64_t{o.match_rms_adamw};
    return rule;
}

struct Named {
    std::string name;
    UpdateRule (*elements)(const OptimizerOptions&);
    UpdateRule (*matrices)(const OptimizerOptions&);
};
const Named kAll[] = {{"AdamW", adamw, nullptr}, {"Adam", adam, nullptr}, {"SGD", sgd, nullptr}, {"Muon", adamw, muon}};

}  // namespace

Optimizer optimizer_called(const OptimizerOptions& o) {
    const auto at = std::find_if(std::begin(kAll), std::end(kAll), [&](const Named& n) { return n.name == o.name; });
    ensure(at != std::end(kAll), "no optimizer is called " + o.name);
    Optimizer out;
    out.elements = at->elements(o);
    if (at->matrices) out.matrices = at->matrices(o);
    out.beta1 = o.beta1, out.beta2 = o.beta2, out.weight_decay = o.weight_decay;
    return out;
}

const std::vector<std::string>& optimizer_names() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> out;
        for (const Named& n : kAll) out.push_back(n.name);
        return out;
    }();
    return names;
}

}  // namespace lockstep::passes
