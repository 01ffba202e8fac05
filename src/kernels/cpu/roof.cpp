#include "kernels/cpu/roof.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/tile_configuration.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::cpu {
namespace {

// The factors are hidden from the compiler, else it finds the fixed point; the results count as used.
#define LOCKSTEP_FMA_LOOP(Chains)                                                      \
    V x[Chains];                                                                       \
    V b = V{} + 0.9999f, c = V{} + 1e-4f;                                              \
    for (int j = 0; j < Chains; ++j) x[j] = V{} + 0.1f * static_cast<float>(j);        \
    asm volatile("" : "+m"(b), "+m"(c));                                               \
    for (int64_t i = 0; i < rounds; ++i) {                                             \
        _Pragma("GCC unroll 32") for (int j = 0; j < Chains; ++j) x[j] = x[j] * b + c; \
    }                                                                                  \
    for (V & chain : x) asm volatile("" : "+m"(chain));                                \
    return static_cast<double>(rounds) * Chains * 2 * static_cast<double>(sizeof(V)) / 4;

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) double fma_avx512(int64_t rounds) {
    using V = float __attribute__((vector_size(64)));
    LOCKSTEP_FMA_LOOP(16)
}
__attribute__((target("avx512f,avx512bf16"), noinline)) double dot_avx512(int64_t rounds) {
    using V = float __attribute__((vector_size(64)));
    constexpr int kChains = 16;
    V x[kChains] = {};
    V pairs = V{} + 0.01f;
    asm volatile("" : "+m"(pairs));
    const auto factor = reinterpret_cast<__m512bh>(pairs);
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (V& sum : x) sum = reinterpret_cast<V>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), factor, factor));
    }
    for (V& chain : x) asm volatile("" : "+m"(chain));
    return static_cast<double>(rounds) * kChains * 2 * 32;
}
// A tile of 16 x 16 sums takes 32 steps of K at a time: a round is one such for each of four tiles, on zeros.
__attribute__((target("amx-tile,amx-bf16"), noinline)) double tiles_amx(int64_t rounds) {
    _tile_loadconfig(&kWholeTiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return static_cast<double>(rounds) * 4 * 2 * 16 * 16 * 32;
}
__attribute__((target("avx2,fma"), noinline)) double fma_avx2(int64_t rounds) {
    using V = float __attribute__((vector_size(32)));
    LOCKSTEP_FMA_LOOP(12)
}
#endif
__attribute__((noinline)) double fma_baseline(int64_t rounds) {
    using V = float __attribute__((vector_size(16)));
    LOCKSTEP_FMA_LOOP(12)
}

}  // namespace

double fma_flops(int64_t rounds) {
#if defined(__x86_64__)
    if (isa() == Isa::avx512) return fma_avx512(rounds);
    if (isa() == Isa::avx2) return fma_avx2(rounds);
#endif
    return fma_baseline(rounds);
}

double bf16_flops(int64_t rounds) {
#if defined(__x86_64__)
    if (has_amx()) return tiles_amx(rounds);
    if (prefers_bf16_dot()) return dot_avx512(rounds);
#endif
    return fma_flops(rounds);
}

}  // namespace lockstep::kernels::cpu
