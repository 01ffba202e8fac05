// Compiled once per instruction set.
#include "kernels/cpu/float8_runs.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<LargestSize> largest_size;
extern const TypedFloat8<RunToFloat8> run_to_float8;
extern const TypedFloat8<RunFromFloat8> run_from_float8;
extern const TypedCodesToBf16 codes_to_bf16;
extern const Typed<ScaleSums> scale_sums;

namespace {

using ByteVec = uint8_t __attribute__((vector_size(kLanes)));

// The values of codes. E5M2 is the upper half of float16. E4M3 has its bits one place further right: its values are those of
// float16 times 2^8, but for its NaN.
template <class Q>
LOCKSTEP_INLINE Vec values_of(ByteVec codes) {
#if defined(__AVX2__)
    const ShortVec wide = __builtin_convertvector(codes, ShortVec);
    if constexpr (Q::kHasInfinity) return widen(F16(), wide << 8);
    const ShortVec size = wide & 0x7f;
    const ShortVec nan = reinterpret_cast<ShortVec>(size == 0x7f) & 0x7c00;
    return widen(F16(), (wide & 0x80) << 8 | size << 7 | nan) * 0x1p8F;
#else
    Vec v;
    for (int i = 0; i < kLanes; ++i) {
        Q q;
        q.bits = codes[i];
        v[i] = q;
    }
    return v;
#endif
}
template <class Q>
LOCKSTEP_INLINE Vec load_codes(const Q* q) {
    ByteVec codes;
    __builtin_memcpy(&codes, q, sizeof codes);
    return values_of<Q>(codes);
}
// The first `count` < kLanes; behind them zeros.
template <class Q>
LOCKSTEP_INLINE Vec load_codes(const Q* q, int64_t count) {
    ByteVec codes{};
    __builtin_memcpy(&codes, q, static_cast<size_t>(count));
    return values_of<Q>(codes);
}

// Elements that are widened, then worked on by plain loops, which compilers turn into vectors.
constexpr int64_t kPiece = 256;

template <class T>
void widen_piece(int64_t n, const T* x, float* out) {
    for (int64_t k = 0; k < n; k += kLanes) store(out + k, load(x + k, n - k));
}

template <class T>
uint32_t largest_size_of(int64_t n, const T* x) {
    alignas(64) float wide[kPiece];
    BitVec most[4] = {};
    uint32_t all = 0;
    int64_t i = 0;
    for (; i + kPiece <= n; i += kPiece) {
        for (int64_t k = 0; k < kPiece; k += 4 * kLanes) {
            for (int j = 0; j < 4; ++j) {
                const BitVec bits = reinterpret_cast<BitVec>(load(x + i + k + j * kLanes)) & 0x7fffffffu;
                most[j] = bits > most[j] ? bits : most[j];
            }
        }
    }
    widen_piece(n - i, x + i, wide);
    for (int64_t k = 0; k < n - i; ++k) all = std::max(all, std::bit_cast<uint32_t>(wide[k]) & 0x7fffffffu);
    for (const BitVec& m : most) {
        for (int k = 0; k < kLanes; ++k) all = std::max(all, uint32_t{m[k]});
    }
    return all;
}

template <class T, class Q>
void run_to_float8_of(int64_t n, const T* x, float scale, Q* q) {
    alignas(64) float wide[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = std::min(kPiece, n - i);
        widen_piece(count, x + i, wide);
        for (int64_t k = 0; k < count; ++k) q[i + k] = Q(wide[k] * scale);
    }
}

template <class T, class Q>
void run_from_float8_of(int64_t n, const Q* q, float scale, T* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(x + i, load_codes(q + i) * scale);
    if (i < n) store(x + i, load_codes(q + i, n - i) * scale, n - i);
}

template <class Q>
void codes_to_bf16_of(int64_t n, const Q* q, Bf16* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const BitVec bits = reinterpret_cast<BitVec>(load_codes(q + i)) >> 16;
        const ShortVec upper = __builtin_convertvector(bits, ShortVec);
        __builtin_memcpy(x + i, &upper, sizeof upper);
    }
    if (i < n) store(x + i, load_codes(q + i, n - i), n - i);
}

template <class T>
void scale_sums_of(int64_t n, const float* sums, float of_row, const float* of_columns, const float* before, T* out) {
    for (int64_t i = 0; i < n; i += kLanes) {
        Vec v = load(sums + i, n - i) * of_row * load(of_columns + i, n - i);
        if (before) v += load(before + i, n - i);
        store(out + i, v, n - i);
    }
}

}  // namespace

constinit const Typed<LargestSize> largest_size([]<class T>() { return largest_size_of<T>; });
constinit const TypedFloat8<RunToFloat8> run_to_float8([]<class T, class Q>() { return run_to_float8_of<T, Q>; });
constinit const TypedFloat8<RunFromFloat8> run_from_float8([]<class T, class Q>() { return run_from_float8_of<T, Q>; });
constinit const TypedCodesToBf16 codes_to_bf16([]<class Q>() { return codes_to_bf16_of<Q>; });
constinit const Typed<ScaleSums> scale_sums([]<class T>() { return scale_sums_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
