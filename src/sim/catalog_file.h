// [[catalog]] of a cluster file: the kernels of a device (ops/described_catalog.h).
#pragma once

#include <string>
#include <vector>

#include "ops/described_catalog.h"
#include "sim/reader.h"

namespace lockstep::sim {

// The keys of a kernel's rate, in [[catalog]] and [[ops]]. UserError cluster.*.
void read_rate(Reader& row, const std::string& origin, ops::KernelRate& rate);
std::string print_rate(ops::KernelRate rate);

// UserError cluster.*.
std::vector<ops::DescribedKernel> read_catalog(Reader& top, const std::string& origin);
std::string print_catalog(const std::vector<ops::DescribedKernel>& kernels);

}  // namespace lockstep::sim
