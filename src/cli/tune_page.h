// What the page of `tune --html` draws (report/page.h), from the search itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tune/search.h"

namespace lockstep::cli {

// {name, search (as `tune --json` prints it), recipe (TOML of the fastest), capacity (bytes of a rank; 0: not said),
//  points: [{layout, microbatch, step_s (0: it needs too much memory, and was not timed), bytes, fits,
//  keys: {key: value}}]}: every layout that was planned
nlohmann::ordered_json tune_page_data(const tune::Problem& problem, const tune::Found& found, const std::string& name,
                                      const std::string& recipe, const nlohmann::ordered_json& printed);

}  // namespace lockstep::cli
