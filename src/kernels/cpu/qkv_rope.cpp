#include "kernels/cpu/qkv_rope.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep::kernels::cpu {

constexpr int64_t kRowUnit = 16;

MatmulShape QkvRope::product(int which, int64_t rows) const {
    return {rows, n[which], hidden, Transpose::no, Transpose::yes, hidden, hidden, n[which]};
}

int64_t QkvRope::workspace_floats() const {
    int64_t most = 0;
    for (int i = 0; i < 3; ++i)
        most = std::max(most, packed_matmul_workspace_floats(product(i, split(tokens, threads, 0, kRowUnit).count()), result));
    return most;
}

int64_t QkvRope::workspace_bytes() const { return threads * workspace_floats() * 4; }

template <class T>
void QkvRope::run(ThreadPool& pool, const T* x, const T* w, const int32_t* pos, const double* frequencies, float sign,
                  T* const (&out)[3], void* workspace) const {
    ensure(pool.threads() == threads, "QkvRope::run: the pool has another number of threads than prepared for");
    const int64_t floats = workspace_floats();
    pool.parallel([&](int thread, int) {
        const Range rows = split(tokens, threads, thread, kRowUnit);
        if (rows.count() == 0) return;
        const T* rows_of_w = w;
        for (int i = 0; i < 3; rows_of_w += n[i] * hidden, ++i) {
            packed_matmul(product(i, rows.count()), x + rows.begin * hidden, rows_of_w, out[i] + rows.begin * n[i],
                          static_cast<const T*>(nullptr), static_cast<float*>(workspace) + thread * floats);
            if (i < 2) rope(rows, n[i] / head_dim, head_dim, out[i], pos, frequencies, sign, out[i]);
        }
    });
}
template void QkvRope::run(ThreadPool&, const float*, const float*, const int32_t*, const double*, float, float* const (&)[3],
                           void*) const;
template void QkvRope::run(ThreadPool&, const Bf16*, const Bf16*, const int32_t*, const double*, float, Bf16* const (&)[3],
                           void*) const;
template void QkvRope::run(ThreadPool&, const F16*, const F16*, const int32_t*, const double*, float, F16* const (&)[3],
                           void*) const;

}  // namespace lockstep::kernels::cpu
