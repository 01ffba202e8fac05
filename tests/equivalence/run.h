// Runs a recipe for a few steps on synthetic data, in this process, and returns what every layout must agree on.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.h"
#include "data/synthetic_source.h"
#include "runtime/trainer.h"

namespace lockstep::testing {

struct Outcome {
    std::vector<double> losses, grad_norms;
    std::vector<double> heldout_losses;  // after the first step and the last, where the recipe validates
    runtime::GlobalTensors weights;
    bool operator==(const Outcome&) const = default;
};

// EmulatedGpu: products and attention by the kernels of the host.
enum class Backend { Reference, Cpu, EmulatedGpu };

compile::Compiled compile_recipe(const compile::Recipe& recipe, Backend backend, const std::vector<std::string>& skip = {},
                                 const passes::RouteOptions& route = {});
data::SyntheticSource synthetic_data(const compile::Recipe& recipe, const compile::Compiled& compiled);
// Gives the weights values apart from their initial ones, so that every path matters from the first step.
void start(runtime::Trainer& trainer, const compile::Recipe& recipe);
// Weights for Trainer::fill_weights. `tensors` outlives them.
runtime::ValuesOf values_in(const runtime::GlobalTensors& tensors);
// Steps, appended to the outcome; its weights are those at the end. `heldout`: validates on it, too.
void go_on(runtime::Trainer& trainer, int steps, Outcome& outcome, const data::Dataset* heldout = nullptr);
Outcome run(const compile::Recipe& recipe, const compile::Compiled& compiled, const data::Source& source, int steps);
// As a configuration that the recipe alone does not make.
Outcome run(const compile::Recipe& recipe, const compile::Config& config, const compile::Compiled& compiled, int steps);
Outcome run(const compile::Recipe& recipe, const compile::Compiled& compiled, int steps);
Outcome run(const compile::Recipe& recipe, Backend backend, int steps);

// Largest difference of losses, norms and final weights, and of validation where both have it, each relative to the larger of 1
// and its tensor's scale. `where` names the place of the largest.
double difference(const Outcome& a, const Outcome& b, std::string* where = nullptr);

}  // namespace lockstep::testing
