// The file of runtime.products, for the GPU that is here or that a cluster file describes.
#pragma once

#include <optional>

#include "compile/config.h"
#include "kernels/cuda/planned_products.h"
#include "sim/cluster.h"

namespace lockstep::planning {

// Its rows, if they are of this process's GPU, or of the cluster's; the version of cuBLASLt of a described machine is not known.
// A line says how many rows serve. Nothing: there is no file, or none of its rows serves. UserError runtime.products.
std::optional<kernels::cuda::ChosenProducts> products_here(const compile::Config& config);
std::optional<kernels::cuda::ChosenProducts> products_of(const compile::Config& config, const sim::Cluster& cluster);

}  // namespace lockstep::planning
