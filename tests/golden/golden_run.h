// A golden case as this system runs it: weights, tokens and masks by the formulas of README.md, 20 steps at a constant rate.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compile/recipe.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {

struct GoldenFigures {
    std::vector<double> losses, grad_norms;                                   // of each step, before its update
    std::map<std::string, double> step1_param_grad_norms, final_param_norms;  // by Hugging Face's names
    double final_loss = 0;                                                    // of the batch after the last one
};

using Settings = std::vector<std::pair<std::string, std::string>>;  // recipe keys and their values

nlohmann::json golden_case(const std::string& name);  // the name of a .json file here
GoldenFigures golden_figures(const nlohmann::json& golden, const std::string& precision);

// The case as a recipe, then `settings` on top.
compile::Recipe golden_recipe(const nlohmann::json& golden, const Settings& settings);
// `watcher` sees every tensor that is made, and may spoil it.
using Watcher = std::function<void(const runtime::Produced&)>;
GoldenFigures run_golden(const nlohmann::json& golden, Backend backend, const Settings& settings);
// Losses and gradient norms of the first `steps` alone.
GoldenFigures run_steps(const nlohmann::json& golden, const Settings& settings, int steps, const Watcher& watcher = {});

// The gradients of the first step, before clipping, by Hugging Face's names (the order of elements is ours).
runtime::GlobalTensors first_gradients(const nlohmann::json& golden, Backend backend, const Settings& settings,
                                       const Watcher& watcher = {});

// Largest difference relative to `want` and where it is.
struct Worst {
    double relative = 0;
    std::string where;
};
Worst compare(const GoldenFigures& want, const GoldenFigures& got);

}  // namespace lockstep::testing
