// Stands in for matmul_onednn.cpp where oneDNN is not installed.
#include "base/error.h"
#include "kernels/cpu/matmul_onednn.h"

namespace lockstep::kernels::cpu {

bool onednn_is_built() { return false; }

void onednn_matmul(const MatmulShape&, const float*, const float*, float*, bool) {
    throw InternalError("onednn_matmul: this build has no oneDNN");
}

}  // namespace lockstep::kernels::cpu
