// Small recipes for tests of the compiler, and the program that stands after each pass.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/equivalence/run.h"

namespace lockstep::testing {

using Settings = std::vector<std::pair<std::string, std::string>>;  // recipe keys and their values

// 2 layers, hidden 8, 4 heads in 2 groups of head_dim 4, ffn 12, vocab 16, seq 8, one sequence a microbatch; then `settings`.
compile::Recipe small_recipe(const Settings& settings = {});

// The small recipe after the pass of that name.
ir::Program program_after(const std::string& pass, const Settings& settings = {}, Backend backend = Backend::Reference);

struct NamedSettings {
    std::string name;
    Settings settings;
};
inline void PrintTo(const NamedSettings& s, std::ostream* stream) { *stream << s.name; }
// Are products in float8? No chip but processors has kernels of it.
bool converts(const Settings& settings);
// Together they use every pass and every technique.
const std::vector<NamedSettings>& sample_settings();

}  // namespace lockstep::testing
