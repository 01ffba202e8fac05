// Random layouts of random small models, from a seed: the recipes that the equivalence tests run. The same seed gives the same
// recipe on every machine. Shapes are odd wherever the rules allow it, so that padding and remainders occur all the time.
#pragma once

#include <cstdint>
#include <functional>
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
// F32 on the CPU's. `mixed`: parameters and activations are stored one type below, float32 under F64 and bfloat16 under F32.
// `wanted`: recipes for which it is false are not compiled.
std::optional<Draw> draw(uint64_t seed, Dtype dtype, bool mixed = false,
                         const std::function<bool(const compile::Recipe&)>& wanted = nullptr);

// A recipe of context ranks in a ring, on heads or not, that is also a pipeline or has asynchronous tensor parallelism.
bool rings_beside_others(const compile::Recipe& recipe);

// The same model, data and global batch on one rank: one microbatch, nothing split, recomputed, fused or overlapped.
compile::Recipe one_rank(const compile::Recipe& recipe);

// The same model, data and global batch on another random layout, which may be one rank.
Draw other_layout(const compile::Recipe& recipe, uint64_t seed, Dtype dtype);

// Why `lockstep check` refuses the program; empty where it does not.
std::string refusal(const compile::Compiled& compiled);
std::string refusal(const compile::Recipe& recipe, const compile::Compiled& compiled);  // or for its meaning

// How far a correct layout may be from `one`, the outcome of `recipe` on one rank.
// F64: 1e-10; 150 layouts are within 5e-13 after 5 steps.
// F32: four times what one rank differs from itself when its sums are taken otherwise (other threads, microbatches, chunks of
// the loss; reference kernels, which sum in double), where that is at least 2^-23, one ulp at 1: so small a model may have no
// sum that these change. Of 400 layouts the farthest reaches 0.48 of the bound; the defects that have a place are all beyond.
// Mixed: eight times what one rank differs from the same run in float64 throughout, that is, from what it would be if nothing
// were rounded when it is stored, or from itself in microbatches of one sequence, or of 2^-23: another layout rounds other
// partial sums, but as coarsely.
double tolerance(const compile::Recipe& recipe, const Outcome& one, Dtype dtype);

Backend backend_of(Dtype dtype);

}  // namespace lockstep::testing
