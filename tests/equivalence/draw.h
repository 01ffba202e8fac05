// Random layouts of random small models, from a seed: the recipes that the equivalence tests run. The same seed gives the same
// recipe on every machine. Shapes are odd wherever the rules allow it, so that padding and remainders occur all the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "compile/compile.h"
#include "compile/recipe.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {

struct Draw {
    uint64_t seed = 0;
    compile::Recipe recipe;
    compile::Compiled compiled;
};

// Nothing where the compiler refuses the recipe (UserError), or where it has one rank. F64 runs on the reference kernels,
// F32 on the CPU's.
std::optional<Draw> draw(uint64_t seed, Dtype dtype);

// The same model, data and global batch on one rank: one microbatch, nothing split, recomputed, fused or overlapped.
compile::Recipe one_rank(const compile::Recipe& recipe);

Backend backend_of(Dtype dtype);

}  // namespace lockstep::testing
