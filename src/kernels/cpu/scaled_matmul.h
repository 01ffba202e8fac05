// Products of float8 matrices: C[M, N] = (op(A) SA)[M, K] (op(B) SB)[K, N], or something plus the same. Codes are brought to
// bfloat16, which is exact, a block at a time, and multiplied by a Matmul (matmul.h); sums are float and get their scales behind
// it, one sum for each run of steps along K that have the same scales. Scales along K that are powers of two go to the codes
// instead, which stay exact, but for values below 2^-126, which some processors take for 0. The bits do not depend on the number
// of threads.
#pragma once

#include <array>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/matmul.h"

namespace lockstep::kernels::cpu {

// A float8 matrix: the scale of element (i, k) is the one at outer[i] + inner[k], i of M or N.
struct ScaledFactor {
    Dtype type = Dtype::F8E4M3;
    std::vector<int64_t> outer, inner;
    bool has_powers = false;  // scales are powers of two

    bool varies_along_k() const;
    bool scales_codes() const { return has_powers && varies_along_k(); }
};

class ScaledMatmul {
public:
    // Dense operands.
    ScaledMatmul(const MatmulShape& shape, ScaledFactor a, ScaledFactor b, int threads, MatmulKernel kernel);

    int64_t workspace_bytes() const;

    // As Matmul::run. Out: float, Bf16, F16.
    template <class Out>
    void run(ThreadPool& pool, const void* a, const void* b, const float* scales_of_a, const float* scales_of_b, Out* c,
             const float* before, void* workspace) const;

private:
    struct Block {
        int64_t begin, count;
    };
    const Matmul& matmul(int64_t rows, int64_t columns) const;
    void decode(ThreadPool& pool, const ScaledFactor& factor, const void* codes, const float* scales, bool along_k, Block outer,
                int64_t all, float* lines, Bf16* to) const;
    int64_t line_floats() const;

    MatmulShape shape_;
    ScaledFactor a_, b_;
    int threads_;
    int64_t rows_, columns_;       // of a block of C
    int64_t run_;                  // steps along K with the same scales
    std::vector<Matmul> matmuls_;  // of blocks and of the last ones
};

}  // namespace lockstep::kernels::cpu
