// Block sizes of the packed products: a k x m block of A stays in the second-level cache, a panel of B as wide as a tile in
// the first, a k x n block of B in the third. The same for all vector instruction sets, so a workspace fits each of them.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul.h"

namespace lockstep::kernels::cpu {

struct MatmulBlocks {
    int64_t m = 0, n = 0, k = 0;
    int64_t steps = 0;                                                 // k in elements of four bytes
    int64_t packed_a_floats() const { return (m + 16) * steps + 64; }  // room for a padded last panel and overrun
    int64_t packed_b_floats() const { return (n + 32) * steps + 64; }
};

MatmulBlocks matmul_blocks(const MatmulShape& shape, MatmulKernel kernel);

}  // namespace lockstep::kernels::cpu
