// One vector type per instruction set, for the sources that are compiled once per set (see CMakeLists.txt). Everything
// here lives in a namespace named after the set, so copies never collide at link time; include it from such sources only.
// Built on the compiler's vector extensions: the same code serves AVX-512, AVX2 with FMA, SSE2 and other architectures.
// load and store take float, Bf16 or F16: a kernel that is a template on its storage type computes in float for all. A new type
// needs widen and narrow here.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "base/bfloat16.h"
#include "base/float16.h"

#ifndef LOCKSTEP_ISA
#define LOCKSTEP_ISA baseline
#endif

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

// kTileRows x (2 vectors) accumulators of a matrix product, two vectors of one operand and a broadcast of the other
// fill the registers: 32 with AVX-512, 16 with AVX2 and SSE2. kTileRows <= kLanes.
#if defined(__AVX512F__)
inline constexpr int kLanes = 16, kTileRows = 14;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8, kTileRows = 6;
#else
inline constexpr int kLanes = 4, kTileRows = 4;
#endif
inline constexpr int kTileColumns = 2 * kLanes;

using Vec = float __attribute__((vector_size(kLanes * 4)));
using HalfVec = float __attribute__((vector_size(kLanes * 2)));
using IntVec = int32_t __attribute__((vector_size(kLanes * 4)));
using BitVec = uint32_t __attribute__((vector_size(kLanes * 4)));  // wraps around
using ShortVec = uint16_t __attribute__((vector_size(kLanes * 2)));
using DoubleVec = double __attribute__((vector_size(kLanes * 4)));  // half as many lanes
using LongVec = int64_t __attribute__((vector_size(kLanes * 4)));

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

LOCKSTEP_INLINE Vec splat(float x) { return x - Vec{}; }  // x + 0 would lose the sign of -0
LOCKSTEP_INLINE Vec load(const float* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
LOCKSTEP_INLINE IntVec splat(int32_t x) { return x - IntVec{}; }
LOCKSTEP_INLINE IntVec load(const int32_t* p) {
    IntVec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
// a - b, which wraps around: lanes that a mask hides may hold any number.
LOCKSTEP_INLINE IntVec minus(IntVec a, IntVec b) {
    return reinterpret_cast<IntVec>(reinterpret_cast<BitVec>(a) - reinterpret_cast<BitVec>(b));
}
LOCKSTEP_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// The first `count` <= kLanes lanes; the others read as zero and are not written.
LOCKSTEP_INLINE Vec load(const float* p, int64_t count) {
    if (count >= kLanes) return load(p);
    Vec v{};
    __builtin_memcpy(&v, p, static_cast<size_t>(count) * 4);
    return v;
}
LOCKSTEP_INLINE void store(float* p, Vec v, int64_t count) {
    if (count >= kLanes) return store(p, v);
    __builtin_memcpy(p, &v, static_cast<size_t>(count) * 4);
}

// bfloat16: the upper halves of floats. (GCC 12 takes three to five instructions where the processor has one; its unmasked
// AVX-512 intrinsics warn of uninitialised values.)
LOCKSTEP_INLINE Vec widen(Bf16, ShortVec half) {
#if defined(__AVX512F__)
    const BitVec wide = reinterpret_cast<BitVec>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(half)));
#elif defined(__AVX2__)
    const BitVec wide = reinterpret_cast<BitVec>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half)));
#else
    const BitVec wide = __builtin_convertvector(half, BitVec);
#endif
    return reinterpret_cast<Vec>(wide << 16);
}
LOCKSTEP_INLINE ShortVec narrow(Bf16, Vec v) {
    const BitVec bits = reinterpret_cast<BitVec>(v);
    const BitVec rounded = bits + 0x7fff + (bits >> 16 & 1);          // to nearest, ties to even
    const BitVec upper = (v == v ? rounded : bits | 0x400000) >> 16;  // NOLINT(misc-redundant-expression): NaN
#if defined(__AVX512F__)
    return reinterpret_cast<ShortVec>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(upper)));
#elif defined(__AVX2__)
    const __m256i words = reinterpret_cast<__m256i>(upper);
    return reinterpret_cast<ShortVec>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08)));
#else
    return __builtin_convertvector(upper, ShortVec);
#endif
}
// float16.
LOCKSTEP_INLINE Vec widen(F16, ShortVec half) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(half)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(half)));
#else
    Vec v;
    for (int i = 0; i < kLanes; ++i) {
        F16 x;
        x.bits = half[i];
        v[i] = x;
    }
    return v;
#endif
}
LOCKSTEP_INLINE ShortVec narrow(F16, Vec v) {
#if defined(__AVX512F__)
    return reinterpret_cast<ShortVec>(_mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
    return reinterpret_cast<ShortVec>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
    ShortVec half;
    for (int i = 0; i < kLanes; ++i) half[i] = F16(v[i]).bits;
    return half;
#endif
}
// T: a narrow type. The last lanes as above.
template <class T>
LOCKSTEP_INLINE Vec load(const T* p) {
    ShortVec half;
    __builtin_memcpy(&half, p, sizeof half);
    return widen(T(), half);
}
template <class T>
LOCKSTEP_INLINE void store(T* p, Vec v) {
    const ShortVec half = narrow(T(), v);
    __builtin_memcpy(p, &half, sizeof half);
}
template <class T>
LOCKSTEP_INLINE Vec load(const T* p, int64_t count) {
    if (count >= kLanes) return load(p);
    ShortVec half{};
    __builtin_memcpy(&half, p, static_cast<size_t>(count) * 2);
    return widen(T(), half);
}
template <class T>
LOCKSTEP_INLINE void store(T* p, Vec v, int64_t count) {
    if (count >= kLanes) return store(p, v);
    const ShortVec half = narrow(T(), v);
    __builtin_memcpy(p, &half, static_cast<size_t>(count) * 2);
}

LOCKSTEP_INLINE Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

// Lanes [half * kLanes / 2, (half + 1) * kLanes / 2) as doubles.
LOCKSTEP_INLINE DoubleVec widen(Vec v, int half) {
    HalfVec parts[2];  // a copy that stays in registers
    __builtin_memcpy(parts, &v, sizeof v);
    return __builtin_convertvector(parts[half], DoubleVec);
}

LOCKSTEP_INLINE Vec square_root(Vec v) {
    for (int i = 0; i < kLanes; ++i) v[i] = std::sqrt(v[i]);
    return v;
}

// Lanes are added in a fixed order: halves onto each other.
LOCKSTEP_INLINE float sum(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
    return lanes[0];
}
LOCKSTEP_INLINE float maximum(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) lanes[i] = lanes[i] > lanes[i + n] ? lanes[i] : lanes[i + n];
    return lanes[0];
}

// e^x within 2 units in the last place; 0 below ln(2^-126), inf above ln(FLT_MAX), NaN for NaN.
// Range reduction x = n ln2 + r, |r| <= ln2/2, and the degree-5 polynomial of Cephes' expf.
LOCKSTEP_INLINE Vec exp(Vec x) {
    constexpr float kLowest = -87.336544f, kHighest = 88.722839f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low mantissa bits
    const Vec shifted = x * 1.44269504f + kRound;
    const Vec n = shifted - kRound;
    const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Vec result = reinterpret_cast<Vec>(reinterpret_cast<BitVec>(p) + (reinterpret_cast<BitVec>(shifted) << 23));
    result = x < kLowest ? Vec{} : result;
    result = x > kHighest ? splat(__builtin_inff()) : result;
    return x == x ? result : x;  // NOLINT(misc-redundant-expression): NaN
}

// Of the two rows of blocks of side `Distance` that `a` and `b` belong to, swaps the blocks off the diagonal.
template <int Distance, int... Lane>
LOCKSTEP_INLINE void swap_blocks(Vec& a, Vec& b, std::integer_sequence<int, Lane...>) {
    const Vec low = __builtin_shufflevector(a, b, ((Lane & Distance) ? kLanes + Lane - Distance : Lane)...);
    b = __builtin_shufflevector(a, b, ((Lane & Distance) ? kLanes + Lane : Lane + Distance)...);
    a = low;
}

// Transposes kLanes vectors of kLanes lanes in place.
template <int Distance = 1>
LOCKSTEP_INLINE void transpose(Vec* rows) {
    if constexpr (Distance < kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            if (i & Distance) continue;
            swap_blocks<Distance>(rows[i], rows[i + Distance], std::make_integer_sequence<int, kLanes>());
        }
        transpose<2 * Distance>(rows);
    }
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
