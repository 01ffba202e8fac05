// A catalog from data: kernels of a device that is not here, as a cluster file lists them ([[catalog]], docs/plan.md). Each
// says which ops it serves, stored in which types, what workspace it needs and how fast it is. A kind
// of table that is added here is added to sim/catalog_file.cpp, which reads it.
#pragma once

#include <string>
#include <vector>

#include "ops/catalog.h"

namespace lockstep::ops {

// bytes times the sizes of `per`; without any: per launch.
struct WorkspaceTerm {
    double bytes = 0;
    // Local sizes: of the op's dim with that role (ir::DimRole; 1 if it has none), or "columns": the last dim of its largest
    // tensor.
    std::vector<std::string> per;
    bool only_grouped = false;  // only if several query heads share keys and values
};
const std::vector<std::string>& workspace_sizes();  // what `per` may name

struct DescribedKernel {
    std::string kernel;
    std::vector<std::string> ops;  // kinds
    std::vector<Dtype> types;      // how its data is stored (stored_as); empty: any
    bool only_products = false;    // only einsums that are one product of matrices
    int accumulates = -1;          // KernelEntry's
    bool in_place = false;         // KernelEntry's
    std::vector<WorkspaceTerm> workspace;
    KernelRate rate;
};

// The narrowest float type among operands and results: bf16 for a product of bfloat16 that adds to float32. Integers, if there
// is no float. Nothing if both narrow types occur.
std::optional<Dtype> stored_as(const Routine& routine, const Op& op);

// In the order of `kernels`, for one thread a rank. `origin`: the file, for messages.
KernelCatalog described_catalog(const std::string& name, const std::string& origin, const std::vector<DescribedKernel>& kernels);

// For a cost table.
KernelRates rates_of(const std::vector<DescribedKernel>& kernels);

}  // namespace lockstep::ops
