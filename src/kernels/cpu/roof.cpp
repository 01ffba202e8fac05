#include "kernels/cpu/roof.h"

#include "kernels/cpu/isa.h"

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
    return static_cast<double>(rounds) * Chains * 2 * (sizeof(V) / 4);

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline, optimize("fp-contract=fast"))) double fma_avx512(int64_t rounds) {
    using V = float __attribute__((vector_size(64)));
    LOCKSTEP_FMA_LOOP(16)
}
__attribute__((target("avx2,fma"), noinline, optimize("fp-contract=fast"))) double fma_avx2(int64_t rounds) {
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
    if (detect_isa() == Isa::avx512) return fma_avx512(rounds);
    if (detect_isa() == Isa::avx2) return fma_avx2(rounds);
#endif
    return fma_baseline(rounds);
}

}  // namespace lockstep::kernels::cpu
