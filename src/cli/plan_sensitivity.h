// What other values of the keys that a recipe leaves at their defaults would make of its plan, printed and as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "planning/sensitivity.h"

namespace lockstep::cli {

planning::Sensitivity sensitivity_with_progress(const compile::Recipe& opened, const std::string& cluster_file,
                                                const planning::Plan& plan);
nlohmann::ordered_json sensitivity_json(const planning::Sensitivity& sensitivity);
void print_sensitivity(const planning::Sensitivity& sensitivity);

}  // namespace lockstep::cli
