// Products of float8 matrices: C[M, N] = (op(A) SA)[M, K] (op(B) SB)[K, N], or something plus the same. Codes are brought to
// bfloat16, or to float, while they are packed: both are exact. Sums are float. They get their scales when they are stored, one
// sum for each run of steps along K that have the same scales. Scales along K that are powers of two go to the codes instead,
// which stay exact, but for values below 2^-126, which some processors take for 0. The bits do not depend on the number of
// threads.
#pragma once

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
    // Dense operands. Kernel: packed multiplies floats, bf16_dot and amx multiply bfloat16.
    ScaledMatmul(const MatmulShape& shape, ScaledFactor a, ScaledFactor b, int threads, MatmulKernel kernel,
                 Matmul::Result result = Matmul::Result::narrow);

    int64_t workspace_bytes() const;

    // As Matmul::run. Out: float, or Bf16 and F16 where prepared for Result::narrow, without `before`.
    template <class Out>
    void run(ThreadPool& pool, const void* a, const void* b, const float* scales_of_a, const float* scales_of_b, Out* c,
             const float* before, void* workspace) const;

private:
    MatmulShape shape_;
    ScaledFactor a_, b_;
    MatmulKernel kernel_;
    Matmul::Result result_;
    MatmulParts parts_;
    int64_t run_of_a_, run_of_b_, run_;  // steps along K with the same scales: of a factor, and as far as sums get them
};

}  // namespace lockstep::kernels::cpu
