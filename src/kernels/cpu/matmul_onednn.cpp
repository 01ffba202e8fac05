#include "kernels/cpu/matmul_onednn.h"

#include <dnnl.h>
#include <omp.h>

#include <string>

#include "base/error.h"

namespace lockstep::kernels::cpu {

bool onednn_is_built() { return true; }

void onednn_matmul(const MatmulShape& s, const float* a, const float* b, float* c, bool accumulate) {
    // Debian's oneDNN runs on OpenMP. The setting is per calling thread, so its calls stay inline on our own threads.
    thread_local const bool inline_calls = (omp_set_num_threads(1), true);
    (void)inline_calls;
    const dnnl_status_t status =
        dnnl_sgemm(s.transpose_a == Transpose::yes ? 'T' : 'N', s.transpose_b == Transpose::yes ? 'T' : 'N', s.m, s.n, s.k, 1.0f,
                   a, s.lda, b, s.ldb, accumulate ? 1.0f : 0.0f, c, s.ldc);
    ensure(status == dnnl_success, "onednn_matmul: dnnl_sgemm failed with status " + std::to_string(status));
}

}  // namespace lockstep::kernels::cpu
