// [[catalog]] of a cluster file: the kernels of a device (ops/described_catalog.h).
#pragma once

#include <string>
#include <vector>

#include "ops/described_catalog.h"
#include "sim/reader.h"

namespace lockstep::sim {

// UserError cluster.*.
std::vector<ops::DescribedKernel> read_catalog(Reader& top, const std::string& origin);
std::string print_catalog(const std::vector<ops::DescribedKernel>& kernels);

}  // namespace lockstep::sim
