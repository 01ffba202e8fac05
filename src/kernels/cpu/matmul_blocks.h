// Block sizes of the packed product: a k x m block of A stays in the second-level cache, a k x 2-vector panel of B in
// the first, a k x n block of B in the third. The same for all instruction sets, so a workspace fits each of them.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cpu {

struct MatmulShape;

struct MatmulBlocks {
    int64_t m = 0, n = 0, k = 0;
    int64_t packed_a_floats() const { return (m + 16) * k + 64; }  // room for a padded last panel and overrun
    int64_t packed_b_floats() const { return (n + 32) * k + 64; }
};

MatmulBlocks matmul_blocks(const MatmulShape& shape);

}  // namespace lockstep::kernels::cpu
