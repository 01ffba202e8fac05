// A GPU as a backend of kernels/registry: its kernels go to the vendor's queue.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/gpu/columns.h"
#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/loss.h"
#include "kernels/gpu/norm.h"
#include "kernels/gpu/tokens.h"
#include "kernels/gpu/update.h"
#include "kernels/kernel.h"

namespace lockstep::kernels::gpu {

struct Backend {
    static constexpr const char* kName = "gpu";
    static constexpr int kMostTerms = gpu::kMostTerms;
    static constexpr int64_t kMostColumns = gpu::kMostColumns;
    static Stream place(const KernelArgs& k) { return k.queue.handle(); }

    static constexpr int64_t kMostFrequencies = gpu::Frequencies::kMost;
    using Frequencies = gpu::Frequencies;
    static Frequencies frequencies(const std::vector<double>& all) {
        Frequencies out = {};
        std::copy(all.begin(), all.end(), out.of);
        return out;
    }

#define FORWARD(name)                  \
    template <class... A>              \
    static void name(A... arguments) { \
        gpu::name(arguments...);       \
    }
    FORWARD(add)
    FORWARD(scale)
    FORWARD(accumulate)
    FORWARD(swiglu)
    FORWARD(swiglu_backward)
    FORWARD(swiglu_packed)
    FORWARD(swiglu_packed_backward)
    FORWARD(split_qkv)
    FORWARD(join_qkv)
    FORWARD(embedding)
    FORWARD(embedding_backward)
    FORWARD(bias)
    FORWARD(bias_gelu)
    FORWARD(bias_gelu_backward)
    FORWARD(sum_rows)
    FORWARD(dropout)
    FORWARD(bias_dropout_add)
    FORWARD(rms_norm)
    FORWARD(add_rms_norm)
    FORWARD(rms_norm_backward)
    FORWARD(layer_norm)
    FORWARD(layer_norm_backward)
    FORWARD(row_max)
    FORWARD(cross_entropy)
    FORWARD(cross_entropy_backward)
    FORWARD(cross_entropy_gradient)
    FORWARD(adamw)
    FORWARD(adamw_of_narrow_moments)
    FORWARD(sgd)
    FORWARD(muon_momentum)
    FORWARD(muon)
    FORWARD(outer_gradient)
    FORWARD(outer_sgd)
#undef FORWARD
    template <class T>
    static void narrow_to(Stream stream, int64_t n, const float* x, T* out) {
        cast(stream, n, x, out);
    }
    template <class T>
    static void widen_from(Stream stream, int64_t n, const T* x, float* out) {
        cast(stream, n, x, out);
    }
    static void sum_of_squares(Stream stream, int64_t n, const float* x, bool counts, bool adds, double* total, void* workspace) {
        gpu::sum_of_squares(stream, n, x, counts, adds, total, static_cast<double*>(workspace));
    }
    static int64_t sum_of_squares_workspace_bytes(int64_t n) { return gpu::sum_of_squares_workspace_bytes(n); }
    static int64_t sum_rows_workspace_bytes(int64_t rows, int64_t n) { return gpu::sum_rows_workspace_bytes(rows, n); }
    static int64_t row_sums_workspace_bytes(int64_t rows, int64_t n, int) { return gpu::sum_rows_workspace_bytes(rows, n); }
    template <class S>
    static int64_t rms_norm_backward_workspace_bytes(int64_t rows, int64_t n, int) {
        return norm_backward_workspace_bytes(rows, n, 1, sizeof(S));
    }
    template <class S>
    static int64_t layer_norm_backward_workspace_bytes(int64_t rows, int64_t n, int) {
        return norm_backward_workspace_bytes(rows, n, 2, sizeof(S));
    }
};

}  // namespace lockstep::kernels::gpu
