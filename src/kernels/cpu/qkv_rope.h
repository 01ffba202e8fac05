// Queries, keys and values of attention: x [tokens, hidden] times the weight [rows, hidden], which holds the rows of queries,
// of keys, then of values. A thread makes whole rows of each and rotates its queries and keys while they are in its cache.
#pragma once

#include "kernels/cpu/matmul.h"

namespace lockstep::kernels::cpu {

struct QkvRope {
    int64_t tokens = 0, hidden = 0, head_dim = 0;
    int64_t n[3] = {};  // of q, k and v: heads * head_dim
    int threads = 1;
    Matmul::Result result = Matmul::Result::f32;

    // Every thread packs all of the weights: worth it where its rows are many.
    bool is_worthwhile() const { return tokens >= 128 * threads; }
    int64_t workspace_bytes() const;
    // out: q, k and v. pos, frequencies, sign: as rope's. T float, or a narrow type where result is narrow.
    template <class T>
    void run(ThreadPool& pool, const T* x, const T* w, const int32_t* pos, const double* frequencies, float sign,
             T* const (&out)[3], void* workspace) const;

private:
    MatmulShape product(int which, int64_t rows) const;
    int64_t workspace_floats() const;  // of a thread
};

}  // namespace lockstep::kernels::cpu
