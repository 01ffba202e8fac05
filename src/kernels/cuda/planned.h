// What the module for NVIDIA's GPUs has, in every build: a computer without a GPU compiles the program that one will run.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// Of the module's kernels, here or planned; of several for one op the first is taken. Its origin is the caller's to say.
ops::KernelCatalog catalog_of(const std::vector<const std::vector<Registered>*>& kernels);

// For GPUs of that compute capability (90: Hopper), with attention as cuDNN 9.19 plans it. `origin`: the cluster file, for
// messages.
ops::KernelCatalog planned_catalog(const std::string& origin, int compute_capability);

// Why cuDNN does not serve an op of attention on such a GPU, in words with numbers. Empty: it does, or the op is none.
std::string why_not_cudnn(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op, int compute_capability);

// Why cuBLASLt does not serve a product of float8 of which this op is a part. Empty: it is a part of none.
std::string why_not_float8(const ir::Op& op, int compute_capability);

}  // namespace lockstep::kernels::cuda
