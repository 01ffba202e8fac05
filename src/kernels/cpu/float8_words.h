// Codes of bfloat16 times powers of two, in whole numbers of 16 bits. Include only from sources compiled once per instruction set.
#pragma once

#include <bit>

#include "base/float8.h"
#include "kernels/cpu/float8_values.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

using WordVec = uint16_t __attribute__((vector_size(4 * kLanes)));

// Of each lane.
template <class V>
LOCKSTEP_INLINE V larger(V a, V b) {
    return a > b ? a : b;
}
template <class V>
LOCKSTEP_INLINE V smaller(V a, V b) {
    return a < b ? a : b;
}
LOCKSTEP_INLINE WordVec load_words(const void* p) {
    WordVec words;
    __builtin_memcpy(&words, p, sizeof words);
    return words;
}

// One code in each word.
template <class Q>
LOCKSTEP_INLINE void store_words(Q* q, WordVec codes) {
    using Bytes = uint8_t __attribute__((vector_size(2 * kLanes)));
#if defined(__AVX512BW__)
    const auto bytes = reinterpret_cast<Bytes>(_mm512_maskz_cvtepi16_epi8(0xffffffffu, reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
    const auto all = reinterpret_cast<__m256i>(codes);
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_packus_epi16(all, all), 0x08);
    const __m128i bytes = _mm256_castsi256_si128(twice);
#else
    const Bytes bytes = __builtin_convertvector(codes, Bytes);
#endif
    static_assert(sizeof bytes == sizeof(Bytes));
    __builtin_memcpy(q, &bytes, sizeof bytes);
}

#if defined(__AVX2__)
// `less` of NormalCodes for each scale; twice, if Word has 32 bits. False if a scale is no power of two, is below 2^-126, or is so
// large that normal codes come of numbers that are not normal.
template <class Q, class Word>
LOCKSTEP_INLINE bool are_powers(int64_t n, const float* scales, Word* less) {
    uint32_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
        const auto bits = std::bit_cast<uint32_t>(scales[i]);
        const uint32_t exponents = 254u - Q::kBias - (bits >> 23);
        wrong |= bits << 9 | exponents >> 31 | (bits - (1u << 23)) >> 31;
        less[i] = static_cast<Word>((exponents << 7 & 0xffffu) * 0x10001u);
    }
    return wrong == 0;
}

// The upper halves of floats, those of pairs of neighbours. The last bit says that something was cut off: rounded further, to fewer
// bits, they are as if they had been rounded once.
LOCKSTEP_INLINE WordVec upper_halves(Vec first, Vec second) {
    const auto a = reinterpret_cast<BitVec>(first), b = reinterpret_cast<BitVec>(second);
    const auto lower = reinterpret_cast<WordVec>((a & 0xffffu) | b << 16);
    return reinterpret_cast<WordVec>(a >> 16 | (b & 0xffff0000u)) | smaller(lower, WordVec{} + 1);
}

// Q(x 2^e) = round((size - less) / 2^kShift) with less = 2^7 (127 - bias - e), where size is the bits of bfloat16 |x| and the code
// is normal.
template <class Q>
struct NormalCodes {
    static constexpr int kShift = Q::kHasInfinity ? 5 : 4;  // bits of the mantissa, less those of a code
    static constexpr auto kTop = (std::bit_cast<uint32_t>(Q::kLargest) >> (16 + kShift)) - ((127 - Q::kBias) << (7 - kShift));
    // A constant that the compiler does not make again in each turn of a loop.
    LOCKSTEP_INLINE static WordVec kept(uint16_t x) {
        WordVec v = WordVec{} + x;
        asm("" : "+v"(v));
        return v;
    }
    WordVec sizes = kept(0x7fff), infinity = kept(0x7f80), least = kept(128), one = kept(1),
            below_half = kept((1 << (kShift - 1)) - 1), top = kept(kTop), sign = kept(0x80);

    static constexpr uint16_t kLess = (127 - Q::kBias) << 7;  // of e = 0

    // Stores the codes of x. False if one is neither normal nor zero: then nothing is stored.
    LOCKSTEP_INLINE bool store(WordVec x, WordVec less, Q* q) const {
        const WordVec size = x & sizes;
#if defined(__AVX512BW__)
        const auto wide = [](WordVec v) __attribute__((always_inline)) { return reinterpret_cast<__m512i>(v); };
        const auto u = reinterpret_cast<WordVec>(_mm512_subs_epu16(wide(size), wide(less)));
        const __mmask32 small =
            _mm512_mask_test_epi16_mask(_mm512_cmplt_epu16_mask(wide(u), wide(least)), wide(size), wide(size));
        if (!_kortestz_mask32_u8(small, _mm512_cmpgt_epu16_mask(wide(size), wide(infinity)))) return false;
#else
        const auto wide = [](WordVec v) __attribute__((always_inline)) { return reinterpret_cast<__m256i>(v); };
        const __m256i zero = _mm256_setzero_si256(), u_ = _mm256_subs_epu16(wide(size), wide(less));
        const __m256i small = _mm256_andnot_si256(_mm256_cmpeq_epi16(wide(size), zero), _mm256_cmpgt_epi16(wide(least), u_));
        if (_mm256_movemask_epi8(_mm256_or_si256(small, _mm256_cmpgt_epi16(wide(size), wide(infinity)))) != 0) return false;
        const auto u = reinterpret_cast<WordVec>(u_);
#endif
        store_words(q, smaller((u + below_half + (u >> kShift & one)) >> kShift, top) | (x >> 8 & sign));
        return true;
    }
};
#endif

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
