// Compiled once per instruction set.
#include "kernels/cpu/float8_runs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8_values.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

BlockScales block_scales;
extern const Typed<LargestSize> largest_size;
extern const Typed<LargestOfColumns> largest_of_columns;
extern const Typed<LargestOfBlocks> largest_of_blocks;
extern const TypedFloat8<RunToFloat8> run_to_float8;
extern const TypedFloat8<ColumnsToFloat8> columns_to_float8;
extern const TypedFloat8<BlocksToFloat8> blocks_to_float8;
extern const TypedFloat8<RunFromFloat8> run_from_float8;
extern const TypedFloat8<ColumnsFromFloat8> columns_from_float8;

namespace {

// Elements that are asked for before they are read: those of the next blocks, while these are converted.
constexpr int64_t kAhead = 2048;

LOCKSTEP_INLINE BitVec larger(BitVec a, BitVec b) { return a > b ? a : b; }
LOCKSTEP_INLINE BitVec smaller(BitVec a, BitVec b) { return a < b ? a : b; }

// Q(v), in the lowest byte of each lane; the others are zero. The last bit of a sum with a power of two counts steps of the
// code's exponent, or of the least one; with the exponent's own steps that is the code.
template <class Q>
LOCKSTEP_INLINE BitVec codes_of(Vec v) {
    constexpr int kShift = Q::kHasInfinity ? 21 : 20;  // a float's bits of the mantissa, less those of a code
    constexpr auto kTop = std::bit_cast<uint32_t>(Q::kLargest), kLeast = static_cast<uint32_t>(128 - Q::kBias) << 23;
    // The sum's lowest byte begins at what the least exponent adds to it.
    constexpr uint32_t kMore = (uint32_t{kShift} << 23) + (0u - (kLeast >> kShift)) % 256u;
    static_assert(kMore % 2 == 0 && kMore % 256 <= 256 - 32);  // ties stay even, and no carry leaves the byte
    const BitVec bits = reinterpret_cast<BitVec>(v), size = bits & 0x7fffffffu;
    const BitVec u = smaller(size, BitVec{} + kTop);
    const BitVec exponent = larger(u & 0x7f800000u, BitVec{} + kLeast);
    const BitVec sum = reinterpret_cast<BitVec>(reinterpret_cast<Vec>(u) + reinterpret_cast<Vec>(exponent + kMore));
    const BitVec code = size > 0x7f800000u ? BitVec{} + 0x7fu : sum + (exponent >> kShift);
    return (code & 0x7fu) | (bits >> 24 & 0x80u);
}

template <class Q>
LOCKSTEP_INLINE void store_codes(Q* q, BitVec codes) {
#if defined(__AVX512F__)
    const auto bytes = reinterpret_cast<ByteVec>(_mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
    const __m256i all = reinterpret_cast<__m256i>(codes);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words));
#else
    const ByteVec bytes = __builtin_convertvector(codes, ByteVec);
#endif
    __builtin_memcpy(q, &bytes, kLanes);
}
template <class Q>
LOCKSTEP_INLINE void store_codes(Q* q, BitVec codes, int64_t count) {
    if (count >= kLanes) return store_codes(q, codes);
    Q all[kLanes];
    store_codes(all, codes);
    __builtin_memcpy(q, all, static_cast<size_t>(count));
}
// Codes of neighbours in the halves of each lane.
template <class Q>
LOCKSTEP_INLINE void store_pairs(Q* q, BitVec pairs) {
    using Bytes = uint8_t __attribute__((vector_size(2 * kLanes)));
#if defined(__AVX512BW__)
    const auto bytes = reinterpret_cast<Bytes>(_mm512_maskz_cvtepi16_epi8(0xffffffffu, reinterpret_cast<__m512i>(pairs)));
#elif defined(__AVX2__)
    const __m256i words = reinterpret_cast<__m256i>(pairs);
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
    const __m128i bytes = _mm256_castsi256_si128(twice);
#else
    using Words = uint16_t __attribute__((vector_size(4 * kLanes)));
    const Bytes bytes = __builtin_convertvector(reinterpret_cast<Words>(pairs), Bytes);
#endif
    static_assert(sizeof bytes == sizeof(Bytes));
    __builtin_memcpy(q, &bytes, sizeof bytes);
}

// What elements are multiplied by: those from i on; of pairs of neighbours the first ones and the second ones.
struct OneScale {
    Vec all;
    LOCKSTEP_INLINE Vec of(int64_t, int64_t) const { return all; }
    LOCKSTEP_INLINE std::array<Vec, 2> of_pairs(int64_t) const { return {all, all}; }
};
struct ScaleOfEach {
    const float* scales;
    LOCKSTEP_INLINE Vec of(int64_t i, int64_t count) const { return load(scales + i, count); }
    LOCKSTEP_INLINE std::array<Vec, 2> of_pairs(int64_t i) const {
        return of_pairs(load(scales + i), load(scales + i + kLanes), std::make_integer_sequence<int, kLanes>());
    }
    template <int... lane>
    LOCKSTEP_INLINE static std::array<Vec, 2> of_pairs(Vec a, Vec b, std::integer_sequence<int, lane...>) {
        return {__builtin_shufflevector(a, b, (2 * lane)...), __builtin_shufflevector(a, b, (2 * lane + 1)...)};
    }
};

template <class T, class Q, class Scales>
LOCKSTEP_INLINE void to_codes(int64_t n, const T* x, const Scales& scales, Q* q) {
    int64_t i = 0;
    if constexpr (std::is_same_v<T, Bf16>) {  // a pair in each lane
        for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
            BitVec both;
            __builtin_memcpy(&both, x + i, sizeof both);
            __builtin_prefetch(x + i + kAhead);
            const std::array by = scales.of_pairs(i);
            const BitVec low = codes_of<Q>(reinterpret_cast<Vec>(both << 16) * by[0]);
            const BitVec high = codes_of<Q>(reinterpret_cast<Vec>(both & 0xffff0000u) * by[1]);
            store_pairs(q + i, low | high << 16);
        }
    }
    for (; i < n; i += kLanes) store_codes(q + i, codes_of<Q>(load(x + i, n - i) * scales.of(i, n - i)), n - i);
}

template <class T>
LOCKSTEP_INLINE BitVec size_of(const T* x) {
    return reinterpret_cast<BitVec>(load(x)) & 0x7fffffffu;
}
// Halves onto each other.
template <int distance, int... lane>
LOCKSTEP_INLINE BitVec largest_lane(BitVec v, std::integer_sequence<int, lane...> lanes) {
    if constexpr (distance == 0) return v;
    else return largest_lane<distance / 2>(larger(v, __builtin_shufflevector(v, v, (lane ^ distance)...)), lanes);
}
template <class T>
LOCKSTEP_INLINE uint32_t largest_size_of(int64_t n, const T* x) {
    BitVec most[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        for (int j = 0; j < 4; ++j) most[j] = larger(size_of(x + i + j * kLanes), most[j]);
    }
    for (; i < n; i += kLanes) most[0] = larger(reinterpret_cast<BitVec>(load(x + i, n - i)) & 0x7fffffffu, most[0]);
    const BitVec all = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    return largest_lane<kLanes / 2>(all, std::make_integer_sequence<int, kLanes>())[0];
}

template <class T>
void largest_of_columns_of(int64_t n, const T* x, uint32_t* most) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        __builtin_prefetch(x + i + kAhead);
        BitVec so_far;
        __builtin_memcpy(&so_far, most + i, sizeof so_far);
        so_far = larger(size_of(x + i), so_far);
        __builtin_memcpy(most + i, &so_far, sizeof so_far);
    }
    for (; i < n; ++i) most[i] = std::max(most[i], std::bit_cast<uint32_t>(static_cast<float>(x[i])) & 0x7fffffffu);
}

#if defined(__AVX2__)
// Of bfloat16, whose sizes are in order as their bits are. n: a multiple of 2 kLanes.
LOCKSTEP_INLINE uint32_t largest_of_words(int64_t n, const Bf16* x) {
    using Words = uint16_t __attribute__((vector_size(4 * kLanes)));
    Words most{};
    for (int64_t k = 0; k < n; k += 2 * kLanes) {
        Words some;
        __builtin_memcpy(&some, x + k, sizeof some);
        some &= 0x7fff;
        most = some > most ? some : most;
    }
    using Eight = uint16_t __attribute__((vector_size(16)));
    Eight parts[2 * kLanes / 8];
    __builtin_memcpy(parts, &most, sizeof most);
    for (const Eight part : parts) parts[0] = part > parts[0] ? part : parts[0];
    const __m128i least = _mm_minpos_epu16(reinterpret_cast<__m128i>(~parts[0]));  // the largest one's complement
    return (~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) & 0x7fffu) << 16;
}
#endif
template <class T>
void largest_of_blocks_of(int64_t blocks, int64_t block, const T* x, uint32_t* most) {
    for (int64_t b = 0; b < blocks; ++b, x += block) {
#if defined(__AVX2__)
        if constexpr (std::is_same_v<T, Bf16>) {
            if (block % (2 * kLanes) == 0) {
                most[b] = largest_of_words(block, x);
                continue;
            }
        }
#endif
        if (block % kLanes != 0 || block > 256) {
            most[b] = largest_size_of(block, x);
            continue;
        }
        BitVec all{};
        for (int64_t k = 0; k < block; k += kLanes) all = larger(size_of(x + k), all);
        most[b] = largest_lane<kLanes / 2>(all, std::make_integer_sequence<int, kLanes>())[0];
    }
}

template <class T, class Q>
void run_to_float8_of(int64_t n, const T* x, float scale, Q* q) {
    to_codes(n, x, OneScale{splat(scale)}, q);
}

template <class T, class Q>
void columns_to_float8_of(int64_t n, const T* x, const float* scales, Q* q) {
    to_codes(n, x, ScaleOfEach{scales}, q);
}

template <class T, class Q>
void blocks_to_float8_of(int64_t blocks, int64_t block, const T* x, const float* scales, Q* q) {
    const auto all = [&](int64_t size) __attribute__((always_inline)) {
        for (int64_t b = 0; b < blocks; ++b) to_codes(size, x + b * size, OneScale{splat(scales[b])}, q + b * size);
    };
    if (block == 32) all(32);  // MX: no loop within a block
    else all(block);
}

template <class T, class Q>
void run_from_float8_of(int64_t n, const Q* q, float scale, T* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(x + i, load_codes(q + i) * scale);
    if (i < n) store(x + i, load_codes(q + i, n - i) * scale, n - i);
}

template <class T, class Q>
void columns_from_float8_of(int64_t n, const Q* q, const float* scales, T* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(x + i, load_codes(q + i) * load(scales + i));
    if (i < n) store(x + i, load_codes(q + i, n - i) * load(scales + i, n - i), n - i);
}

}  // namespace

void block_scales(int64_t n, const uint32_t* most, float largest, BlockRounding rounding, E8M0* s, float* by) {
    const auto top = std::bit_cast<uint32_t>(largest);
    const uint32_t above = rounding == BlockRounding::rceil ? top & 0x7fffffu : 0x7fffffu;  // no mantissa is larger than the last
    const int32_t shift = 127 - static_cast<int32_t>(top >> 23);
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t u = most[i];
        const int32_t power = static_cast<int32_t>(u >> 23) + shift + ((u & 0x7fffffu) > above ? 1 : 0);
        const int32_t bits = u >= 0x7f800000u ? int32_t{E8M0::kNan} : power < 0 ? 0 : power;
        s[i].bits = static_cast<uint8_t>(bits);
        by[i] = std::bit_cast<float>(bits == E8M0::kNan ? 0x7fc00000u : static_cast<uint32_t>(254 - bits) << 23);
    }
}

constinit const Typed<LargestSize> largest_size([]<class T>() { return largest_size_of<T>; });
constinit const Typed<LargestOfColumns> largest_of_columns([]<class T>() { return largest_of_columns_of<T>; });
constinit const Typed<LargestOfBlocks> largest_of_blocks([]<class T>() { return largest_of_blocks_of<T>; });
constinit const TypedFloat8<ColumnsToFloat8> columns_to_float8([]<class T, class Q>() { return columns_to_float8_of<T, Q>; });
constinit const TypedFloat8<BlocksToFloat8> blocks_to_float8([]<class T, class Q>() { return blocks_to_float8_of<T, Q>; });
constinit const TypedFloat8<ColumnsFromFloat8> columns_from_float8([]<class T, class Q>() {
    return columns_from_float8_of<T, Q>;
});
constinit const TypedFloat8<RunToFloat8> run_to_float8([]<class T, class Q>() { return run_to_float8_of<T, Q>; });
constinit const TypedFloat8<RunFromFloat8> run_from_float8([]<class T, class Q>() { return run_from_float8_of<T, Q>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
