// The CPU as a backend of kernels/registry: its kernels share their work among the threads of the queue.
#pragma once

#include <limits>
#include <vector>

#include "kernels/cpu/bias.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/kernel.h"

namespace lockstep::kernels::cpu {

struct Backend {
    static constexpr const char* kName = "cpu";
    static constexpr int kMostTerms = 64;
    static constexpr int64_t kMostColumns = std::numeric_limits<int64_t>::max();
    static ThreadPool& place(const KernelArgs& k) { return k.queue.pool(); }

    static constexpr auto& add = cpu::add;
    static constexpr auto& scale = cpu::scale;
    static constexpr auto& narrow_to = cpu::narrow_to;
    static constexpr auto& widen_from = cpu::widen_from;
    static constexpr auto& accumulate = cpu::accumulate;
    static constexpr auto& swiglu = cpu::swiglu;
    static constexpr auto& swiglu_backward = cpu::swiglu_backward;
    static constexpr auto& swiglu_packed = cpu::swiglu_packed;
    static constexpr auto& swiglu_packed_backward = cpu::swiglu_packed_backward;
    static constexpr int64_t kMostFrequencies = std::numeric_limits<int64_t>::max();
    using Frequencies = std::vector<double>;
    static const Frequencies& frequencies(const std::vector<double>& all) { return all; }
    template <class T>
    static void split_qkv(ThreadPool& pool, const QkvShape& s, const T* qkv, const int32_t* pos, const Frequencies& frequencies,
                          float sign, T* q, T* k, T* v) {
        pool.parallel([&](int thread, int threads) {
            cpu::split_qkv(split(s.tokens, threads, thread), s, qkv, pos, frequencies.data(), sign, q, k, v);
        });
    }
    template <class T>
    static void join_qkv(ThreadPool& pool, const QkvShape& s, const T* q, const T* k, const T* v, const int32_t* pos,
                         const Frequencies& frequencies, float sign, T* qkv) {
        pool.parallel([&](int thread, int threads) {
            cpu::join_qkv(split(s.tokens, threads, thread), s, q, k, v, pos, frequencies.data(), sign, qkv);
        });
    }
    static constexpr auto& embedding = cpu::embedding;
    static constexpr auto& embedding_backward = cpu::embedding_backward;
    static constexpr auto& bias = cpu::bias;
    static constexpr auto& bias_gelu = cpu::bias_gelu;
    static constexpr auto& bias_gelu_backward = cpu::bias_gelu_backward;
    static constexpr auto& dropout = cpu::dropout;
    static constexpr auto& bias_dropout_add = cpu::bias_dropout_add;
    static constexpr auto& rms_norm = cpu::rms_norm;
    static constexpr auto& add_rms_norm = cpu::add_rms_norm;
    static constexpr auto& rms_norm_backward = cpu::rms_norm_backward;
    static constexpr auto& layer_norm = cpu::layer_norm;
    static constexpr auto& layer_norm_backward = cpu::layer_norm_backward;
    static constexpr auto& row_max = cpu::row_max;
    static constexpr auto& cross_entropy = cpu::cross_entropy;
    static constexpr auto& cross_entropy_backward = cpu::cross_entropy_backward;
    static constexpr auto& cross_entropy_gradient = cpu::cross_entropy_gradient;
    static constexpr auto& adamw = cpu::adamw;
    static constexpr auto& adamw_of_narrow_moments = cpu::adamw_of_narrow_moments;
    static constexpr auto& sgd = cpu::sgd;
    static constexpr auto& muon_momentum = cpu::muon_momentum;
    static constexpr auto& muon = cpu::muon;
    static constexpr auto& outer_gradient = cpu::outer_gradient;
    static constexpr auto& outer_sgd = cpu::outer_sgd;

    static void sum_of_squares(ThreadPool& pool, int64_t n, const float* x, bool counts, bool adds, double* total,
                               void* workspace) {
        const double sum = counts ? cpu::sum_of_squares(pool, n, x, workspace).sum : 0;
        *total = adds ? *total + sum : sum;
    }
    static int64_t sum_of_squares_workspace_bytes(int64_t n) { return cpu::sum_of_squares_workspace_bytes(n); }

    template <class T>
    static void sum_rows(ThreadPool& pool, int64_t rows, int64_t n, const T* x, float* sum, bool adds, void*) {
        cpu::sum_rows(pool, rows, n, x, sum, adds);
    }
    static int64_t sum_rows_workspace_bytes(int64_t, int64_t) { return 0; }
    static int64_t row_sums_workspace_bytes(int64_t, int64_t n, int threads) { return cpu::row_sums_workspace_bytes(n, threads); }
    template <class S>
    static int64_t rms_norm_backward_workspace_bytes(int64_t, int64_t n, int threads) {
        return cpu::rms_norm_backward_workspace_bytes(n, threads);
    }
    template <class S>
    static int64_t layer_norm_backward_workspace_bytes(int64_t, int64_t n, int threads) {
        return cpu::layer_norm_backward_workspace_bytes(n, threads);
    }
};

}  // namespace lockstep::kernels::cpu
