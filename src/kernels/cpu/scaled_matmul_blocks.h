// What a thread multiplies of a product of float8 matrices, and in which blocks.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// Rows or columns of a factor. The scale of element (i, k) is scales[outer[i] + inner[k]].
struct FactorPart {
    Dtype type;
    const void* codes;
    int64_t stride;       // elements between rows
    bool along_outer;     // rows are steps of K
    int64_t outer_count;  // rows or columns that may be read
    bool scales_codes;    // codes get the scales, which are powers of two; else the sums get them
    int64_t run;          // steps along K with the same scales
    const float* scales;
    const int64_t *outer, *inner;
};

struct ScaledPart {
    int64_t m, n, k;
    int64_t run;  // steps along K whose sums have the same scales; divides k
    FactorPart a, b;
    int64_t ldc;
};

// A block has whole runs along K, or is part of one. Its pieces are of one run each, and are packed one after the other.
struct ScaledBlocks {
    int64_t m = 0, n = 0, k = 0;
    int64_t piece = 0;                                                                // of K, at most
    int64_t steps = 0;                                                                // of all pieces, in elements of four bytes
    int64_t packed_floats(int64_t outer) const { return (outer + 32) * steps + 64; }  // m or n; room for a panel that is not full
    int64_t scales_floats(int64_t outer) const { return (outer + 32) * (k / piece); }
};
ScaledBlocks scaled_blocks(const ScaledPart& part, MatmulKernel kernel);

// C = product, or before + product. `before`: laid out as C.
template <class Out>
using PackedScaledMatmul = void(const ScaledPart& part, Out* c, const float* before, float* workspace);
using ScaledMatmulKernel = Typed<PackedScaledMatmul>;
struct ScaledMatmuls {
    ScaledMatmulKernel packed, dot, amx;
};
extern ScaledMatmuls packed_scaled_matmul;

}  // namespace lockstep::kernels::cpu
