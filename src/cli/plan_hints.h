// What a recipe does not ask for and might gain from, printed and as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "planning/hints.h"

namespace lockstep::cli {

planning::Hints hints_with_progress(const compile::Recipe& opened, const std::string& cluster_file, const planning::Plan& plan);
nlohmann::ordered_json hints_json(const planning::Hints& hints);
void print_hints(const planning::Hints& hints);

}  // namespace lockstep::cli
