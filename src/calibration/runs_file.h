// A file of runs that were measured somewhere: a CSV table with a run in each line (docs/accuracy.md describes the columns).
// Columns with a dot in their names are keys of the recipe that ran.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compile/recipe.h"

namespace lockstep::calibration {

struct Run {
    std::string id, source;           // source: the id up to its last '-'
    std::string cluster, stack;       // names of files in clusters/ and clusters/stacks/, or paths; empty: not stated, Lockstep
    double step_time_s = 0;           // 0: not measured
    double memory_bytes = 0;          // of the fullest device; 0: not measured
    bool memory_is_reserved = false;  // by the allocator, rather than allocated
    bool out_of_memory = false;       // it did not run
    std::string assumed;              // inputs that the source does not state; empty: it states all
    std::string left_out;             // why it is not planned; empty: it is
    std::string at;                   // "runs.csv, line 7 (kort22-001)"
    std::optional<compile::Recipe> recipe;  // none: it is left out
};

// UserError runs.*, and recipe.* where a key's value is not allowed.
std::vector<Run> read_runs(const std::string& path);

}  // namespace lockstep::calibration
