// What the page of `plan --html` draws (report/page.h), from the plan itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planning/plan.h"

namespace lockstep::cli {

// {name, facts: [[what, value]], plan (as `plan --json` prints it), recipe (TOML), causes: {cause: s},
//  step_s (of the microbatches that were played), microbatches: {played, all},
//  timeline: {causes: [word], names: [word], ranks: [{rank, threads: [[begin, length, cause, name, instance, microbatch, ...]]}]}:
//    six numbers a slice; times in units of unit_s; cause and name are indices,
//  memory: {kinds: [word], capacity, bins, ranks: [{rank, total, host, bytes: [[by kind] of a bin]}]}: each bin of the step has
//    the bytes of its fullest moment; `total` is the size of the arena, `host` that of the arena in the host's memory,
//  roofline: {flops_per_s, bytes_per_s, ops: [{name, kind, count, time_s, flops, bytes}]}: means of pipeline ranks,
//  communication: [{op, over, exposed_s, waiting_s, hidden_s, bytes}]: means of pipeline ranks}
nlohmann::ordered_json plan_page_data(const planning::Plan& plan, const std::string& name, const std::string& recipe,
                                      const nlohmann::ordered_json& printed);

}  // namespace lockstep::cli
