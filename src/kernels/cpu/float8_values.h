// The values of float8 codes in vectors. Include only from sources compiled once per instruction set.
#pragma once

#include "base/float8.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

using ByteVec = uint8_t __attribute__((vector_size(kLanes)));

// Of codes, one in each lane. E5M2 is the upper half of float16. E4M3 has its bits one place further right: its values are those
// of float16 times 2^8, but for its NaN.
template <class Q>
LOCKSTEP_INLINE Vec values_of(ShortVec codes) {
#if defined(__AVX2__)
    if constexpr (Q::kHasInfinity) return widen(F16(), codes << 8);
    const ShortVec size = codes & 0x7f;
    const ShortVec nan = reinterpret_cast<ShortVec>(size == 0x7f) & 0x7c00;
    return widen(F16(), (codes & 0x80) << 8 | size << 7 | nan) * 0x1p8F;
#else
    Vec v;
    for (int i = 0; i < kLanes; ++i) {
        Q q;
        q.bits = static_cast<uint8_t>(codes[i]);
        v[i] = q;
    }
    return v;
#endif
}
template <class Q>
LOCKSTEP_INLINE Vec load_codes(const Q* q) {
    ByteVec codes;
    __builtin_memcpy(&codes, q, sizeof codes);
    return values_of<Q>(__builtin_convertvector(codes, ShortVec));
}
// The first `count` < kLanes; behind them zeros.
template <class Q>
LOCKSTEP_INLINE Vec load_codes(const Q* q, int64_t count) {
    ByteVec codes{};
    __builtin_memcpy(&codes, q, static_cast<size_t>(count));
    return values_of<Q>(__builtin_convertvector(codes, ShortVec));
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
