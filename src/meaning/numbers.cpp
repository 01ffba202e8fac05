#include "meaning/numbers.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "compile/types.h"

namespace lockstep::meaning {
namespace {

using ir::StateRole;

struct Number {
    double value = 0;
    std::string_view key;  // of the recipe
};
using Numbers = std::map<std::pair<std::string_view, std::string_view>, Number>;  // by kind of op and attribute

Numbers numbers_of(const compile::Config& c) {
    const compile::Config::Optimizer& o = c.optimizer;
    const compile::Config::FaultTolerance& f = c.fault_tolerance;
    const bool diloco = f.semi_sync_method == compile::SemiSyncMethod::DiLoCo;
    const Number beta1{o.beta1, "optimizer.beta1"}, beta2{o.beta2, "optimizer.beta2"}, eps{o.eps, "optimizer.eps"},
        momentum{o.momentum, "optimizer.momentum"}, nesterov{o.nesterov ? 1.0 : 0.0, "optimizer.nesterov"};
    Numbers out = {{{"step_control", "max_norm"}, {c.training.max_norm, "training.max_norm"}},
                   {{"step_control", "beta1"}, beta1},
                   {{"step_control", "beta2"}, beta2},
                   {{"update_loss_scale", "least"}, {c.training.min_loss_scale, "training.min_loss_scale"}},
                   {{"outer_sgd", "lr"}, {diloco ? f.outer_lr : 1, "fault_tolerance.outer_lr"}},
                   {{"outer_sgd", "momentum"}, {diloco ? f.outer_momentum : 0, "fault_tolerance.outer_momentum"}},
                   {{"outer_sgd", "nesterov"}, {1, "fault_tolerance.semi_sync_method"}},
                   {{"outer_sgd", "alpha"}, {f.fragment_update_alpha, "fault_tolerance.fragment_update_alpha"}}};
    for (const char* kind : {"adamw", "adam"})
        out.insert({{{kind, "beta1"}, beta1},
                    {{kind, "beta2"}, beta2},
                    {{kind, "eps"}, eps},
                    {{kind, "seed"}, {static_cast<double>(c.debug.seed), "debug.seed"}}});
    for (const char* kind : {"sgd", "muon_momentum"})
        out.insert({{{kind, "momentum"}, momentum}, {{kind, "nesterov"}, nesterov}});
    out.insert({{"orthogonalize", "ns_steps"}, {static_cast<double>(o.muon_ns_steps), "optimizer.muon_ns_steps"}});
    for (const char* kind : {"adamw", "adam", "sgd", "muon"})
        out.insert({{kind, "weight_decay"}, {o.weight_decay, "optimizer.weight_decay"}});
    return out;
}

double number_of(const ir::Attr& attr) {
    const auto* integer = std::get_if<int64_t>(&attr);
    return integer ? static_cast<double>(*integer) : std::get<double>(attr);
}

std::string differs(const std::string& what, double is, const Number& should) {
    return fmt::format("{} is {}, and {} in the recipe ({})", what, is, should.value, should.key);
}

std::string wrong_ops(const ir::Program& p, const Numbers& numbers) {
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            for (const auto& [name, attr] : op.attrs) {
                const auto known = numbers.find({op.kind, name});
                if (known == numbers.end()) continue;
                const double is = number_of(attr);
                const bool may_be_zero = name == "weight_decay";  // of segments without decay
                if (is != known->second.value && !(may_be_zero && is == 0))
                    return differs(fmt::format("{}, op {}: {}", r.name, op.kind, name), is, known->second);
            }
        }
    }
    return "";
}

// Where the scale of the loss begins, and how many steps double it.
std::string wrong_states(const ir::Program& p, const compile::Config::Training& t) {
    const bool fixed = t.loss_scale != 0;
    const std::map<StateRole, Number> numbers = {
        {StateRole::LossScale,
         fixed ? Number{t.loss_scale, "training.loss_scale"} : Number{t.initial_loss_scale, "training.initial_loss_scale"}},
        {StateRole::LossScaleWindow, {static_cast<double>(t.loss_scale_window), "training.loss_scale_window"}}};
    for (const ir::State& s : p.states) {
        const auto known = numbers.find(s.role);
        if (known != numbers.end() && s.init.value_or(0) != known->second.value)
            return differs("the first " + s.full_name(), s.init.value_or(0), known->second);
    }
    return "";
}

std::string wrong_moments(const ir::Program& p, Dtype type) {
    for (const ir::State& s : p.states) {
        if (s.role == StateRole::Moment && s.dtype != type)
            return fmt::format("{} is {}, and {} in the recipe (optimizer.implementation)", s.full_name(), name_of(s.dtype),
                               name_of(type));
    }
    return "";
}

}  // namespace

std::string wrong_numbers(const ir::Program& program, const compile::Config& config) {
    std::string wrong = wrong_ops(program, numbers_of(config));
    if (wrong.empty()) wrong = wrong_states(program, config.training);
    return wrong.empty() ? wrong_moments(program, compile::types_of(config).moments) : wrong;
}

}  // namespace lockstep::meaning
