// The fastest algorithms of cuBLASLt for the products of programs, on the GPU that is here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "kernels/cuda/planned_products.h"

namespace lockstep::measure {

struct ProductOptions {
    int cpu = 0;  // gives work to the GPU
    // Of the GPU before each product is timed, so that its clocks are those of a training, and of each algorithm.
    double burn_s = 0.2, each_s = 0.02;
    std::function<void(const std::string& what, double share_done)> progress;
};

// Each product of the programs, once: up to kMostAlgorithms for each of kProductWorkspaces are timed. A row has the fastest one if
// it is kLeastGain faster than the one that the library names first, else that one. Ops whose operands do not fit into the GPU's
// memory are left out. UserError runtime.no_gpu, bench.memory.
inline constexpr int kMostAlgorithms = 16;
inline constexpr int64_t kProductWorkspaces[] = {int64_t{32} << 20, int64_t{128} << 20};
inline constexpr double kLeastGain = 1.02;
kernels::cuda::ChosenProducts products(const compile::Compiled& compiled, const ProductOptions& options);

}  // namespace lockstep::measure
