// Compiled once per instruction set.
#include "kernels/cpu/float8_runs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8_values.h"
#include "kernels/cpu/float8_words.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

BlockScales block_scales;
FloatScales float_scales;
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

// What elements are multiplied by: those from i on; of pairs of neighbours the first ones and the second ones. fetch: asks for
// elements that come later.
struct OneScale {
    Vec all;
    LOCKSTEP_INLINE void fetch(const Bf16* x, const void*) const { __builtin_prefetch(x + kAhead); }
    LOCKSTEP_INLINE Vec of(int64_t, int64_t) const { return all; }
    LOCKSTEP_INLINE std::array<Vec, 2> of_pairs(int64_t) const { return {all, all}; }
};
struct ScaleOfEach {
    const float* scales;
    LOCKSTEP_INLINE void fetch(const Bf16* x, const void*) const { __builtin_prefetch(x + kAhead); }
    LOCKSTEP_INLINE Vec of(int64_t i, int64_t count) const { return load(scales + i, count); }
    LOCKSTEP_INLINE std::array<Vec, 2> of_pairs(int64_t i) const {
        return of_pairs(load(scales + i), load(scales + i + kLanes), std::make_integer_sequence<int, kLanes>());
    }
    template <int... lane>
    LOCKSTEP_INLINE static std::array<Vec, 2> of_pairs(Vec a, Vec b, std::integer_sequence<int, lane...>) {
        return {__builtin_shufflevector(a, b, (2 * lane)...), __builtin_shufflevector(a, b, (2 * lane + 1)...)};
    }
};

LOCKSTEP_INLINE std::array<Vec, 2> times_pairs(const Bf16* x, const std::array<Vec, 2>& by) {
    BitVec both;
    __builtin_memcpy(&both, x, sizeof both);
    return {reinterpret_cast<Vec>(both << 16) * by[0], reinterpret_cast<Vec>(both & 0xffff0000u) * by[1]};
}

#if defined(__AVX2__)
// Of rows that are no neighbours. ahead: by how many elements those come later that are converted next.
struct ScaleOfColumn : ScaleOfEach {
    int64_t ahead;
    LOCKSTEP_INLINE void fetch(const Bf16* x, const void* q) const {
        constexpr int64_t kBytesAhead = 512;
        __builtin_prefetch(x + ahead);
        __builtin_prefetch(static_cast<const char*>(q) + kBytesAhead, 1);
    }
};
// pairs: of each 2 kLanes columns the first ones of pairs, then the second ones.
struct PairsOfColumns : ScaleOfColumn {
    const float* pairs;
    LOCKSTEP_INLINE std::array<Vec, 2> of_pairs(int64_t i) const { return {load(pairs + i), load(pairs + i + kLanes)}; }
};

// Scales of blocks, of whose codes few are neither normal nor zero. store: false if one is, and nothing is stored.
template <class Scales, class Q>
struct OfBlock : Scales {
    const NormalCodes<Q>& codes;
    LOCKSTEP_INLINE bool store(const Bf16* x, int64_t i, Q* q) const {
        const std::array<Vec, 2> products = times_pairs(x + i, this->of_pairs(i));
        return codes.store(upper_halves(products[0], products[1]), WordVec{} + NormalCodes<Q>::kLess, q + i);
    }
};
// Scales that are powers of two. less: gives that of NormalCodes for the elements from i on.
template <class Scales, class Q, class Less>
struct OfPowers : Scales {
    const NormalCodes<Q>& codes;
    Less less;
    LOCKSTEP_INLINE bool store(const Bf16* x, int64_t i, Q* q) const { return codes.store(load_words(x + i), less(i), q + i); }
};
// The same for all elements.
LOCKSTEP_INLINE auto all_of(WordVec less) {
    return [less](int64_t) __attribute__((always_inline)) { return less; };
}
template <class Scales, class Q, class Less>
LOCKSTEP_INLINE OfPowers<Scales, Q, Less> of_powers(const Scales& scales, const NormalCodes<Q>& codes, const Less& less) {
    return {scales, codes, less};
}
#endif

template <class T, class Q, class Scales>
LOCKSTEP_INLINE void to_codes(int64_t n, const T* x, const Scales& scales, Q* q) {
    int64_t i = 0;
    if constexpr (std::is_same_v<T, Bf16>) {  // a pair in each lane
        for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
            scales.fetch(x + i, q + i);
            if constexpr (requires { scales.store(x, i, q); })
                if (scales.store(x, i, q)) [[likely]]
                    continue;
            const std::array<Vec, 2> products = times_pairs(x + i, scales.of_pairs(i));
            store_words(q + i, reinterpret_cast<WordVec>(codes_of<Q>(products[0]) | codes_of<Q>(products[1]) << 16));
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
LOCKSTEP_INLINE void largest_of_row(int64_t n, const T* x, uint32_t* most) {
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

// Columns of several rows that are worked on at once: whole rows, so that memory is read in its order.
constexpr int64_t kColumns = 4096;

template <class T>
void largest_of_columns_of(int64_t rows, int64_t n, int64_t stride, const T* x, uint32_t* most) {
    if constexpr (std::is_same_v<T, Bf16>) {  // its sizes are in order as their bits are
        WordVec largest[kColumns / (2 * kLanes)];
        while (rows > 1 && n >= 2 * kLanes) {
            const int64_t words = std::min(kColumns, n) / (2 * kLanes), some = words * 2 * kLanes;
            for (int64_t i = 0; i < words; ++i) largest[i] = load_words(x + i * 2 * kLanes) & 0x7fff;
            for (int64_t r = 1; r < rows; ++r) {
                const Bf16* row = x + r * stride;
                for (int64_t i = 0; i < words; ++i, row += 2 * kLanes) {
                    __builtin_prefetch(row + kAhead);
                    largest[i] = larger(load_words(row) & 0x7fff, largest[i]);
                }
            }
            largest_of_row(some, reinterpret_cast<const Bf16*>(largest), most);
            x += some, most += some, n -= some;
        }
    }
    for (int64_t r = 0; r < rows; ++r) largest_of_row(n, x + r * stride, most);
}

#if defined(__AVX2__)
// Runs of 2 `each` words become runs of `each`, the larger ones of their halves: those of a, then those of b.
template <int each, int... lane>
LOCKSTEP_INLINE WordVec larger_halves(WordVec a, WordVec b, std::integer_sequence<int, lane...>) {
    return larger(__builtin_shufflevector(a, b, (lane / each * 2 * each + lane % each)...),
                  __builtin_shufflevector(a, b, (lane / each * 2 * each + each + lane % each)...));
}
template <int count>
LOCKSTEP_INLINE WordVec larger_together(const WordVec* all) {
    if constexpr (count == 1) return all[0];
    else
        return larger_halves<2 * kLanes / count>(larger_together<count / 2>(all), larger_together<count / 2>(all + count / 2),
                                                 std::make_integer_sequence<int, 2 * kLanes>());
}
// Of bfloat16. block: a multiple of 2 kLanes.
LOCKSTEP_INLINE void largest_of_words(int64_t blocks, int64_t block, const Bf16* x, uint32_t* most) {
    using Eight = uint16_t __attribute__((vector_size(16)));
    constexpr int kTogether = 2 * kLanes / 8;
    const auto some = [&](int64_t count) __attribute__((always_inline)) {
        WordVec largest[kTogether] = {};
        for (int64_t j = 0; j < count; ++j, x += block) {
            WordVec so_far = load_words(x) & 0x7fff;
            for (int64_t k = 2 * kLanes; k < block; k += 2 * kLanes) so_far = larger(load_words(x + k) & 0x7fff, so_far);
            largest[j] = so_far;
        }
        Eight parts[kTogether];
        const WordVec complements = ~larger_together<kTogether>(largest);  // the processor looks for the least of eight
        __builtin_memcpy(parts, &complements, sizeof complements);
        for (int64_t j = 0; j < count; ++j, ++most) {
            const __m128i least = _mm_minpos_epu16(reinterpret_cast<__m128i>(parts[j]));
            *most = (~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) & 0x7fffu) << 16;
        }
    };
    for (; blocks >= kTogether; blocks -= kTogether) some(kTogether);
    if (blocks > 0) some(blocks);
}
#endif
template <class T>
void largest_of_blocks_of(int64_t blocks, int64_t block, const T* x, uint32_t* most) {
#if defined(__AVX2__)
    if constexpr (std::is_same_v<T, Bf16>) {
        if (block == 32) return largest_of_words(blocks, 32, x, most);  // no loop within a block
        if (block % (2 * kLanes) == 0) return largest_of_words(blocks, block, x, most);
    }
#endif
    for (int64_t b = 0; b < blocks; ++b, x += block) {
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
#if defined(__AVX2__)
    if constexpr (std::is_same_v<T, Bf16>) {
        uint16_t less;
        if (are_powers<Q>(1, &scale, &less))
            return to_codes(n, x, of_powers(OneScale{splat(scale)}, NormalCodes<Q>(), all_of(WordVec{} + less)), q);
    }
#endif
    to_codes(n, x, OneScale{splat(scale)}, q);
}

template <class T, class Q>
void columns_to_float8_of(int64_t rows, int64_t n, int64_t stride, [[maybe_unused]] int64_t next, const T* x, const float* scales,
                          Q* q) {
#if defined(__AVX2__)
    if constexpr (std::is_same_v<T, Bf16>) {
        const NormalCodes<Q> codes;
        for (int64_t some = kColumns; rows > 1 && n > 0; x += some, scales += some, q += some, n -= some) {
            some = std::min(kColumns, n);
            const auto all_rows = [&](const auto& of_each) __attribute__((always_inline)) {
                for (int64_t r = 0; r < rows; ++r) to_codes(some, x + r * stride, of_each, q + r * stride);
            };
            uint16_t less[kColumns];
            if (are_powers<Q>(some, scales, less)) {
                all_rows(of_powers(
                    ScaleOfColumn{{scales}, next},
                    codes, [&](int64_t i) __attribute__((always_inline)) { return load_words(less + i); }));
                continue;
            }
            alignas(64) float pairs[kColumns];
            for (int64_t i = 0; i + 2 * kLanes <= some; i += 2 * kLanes) {
                const std::array<Vec, 2> of = ScaleOfEach{scales}.of_pairs(i);
                cpu::LOCKSTEP_ISA::store(pairs + i, of[0]), cpu::LOCKSTEP_ISA::store(pairs + i + kLanes, of[1]);
            }
            all_rows(OfBlock<PairsOfColumns, Q>{{{{scales}, next}, pairs}, codes});
        }
    }
#endif
    for (int64_t r = 0; r < rows; ++r) to_codes(n, x + r * stride, ScaleOfEach{scales}, q + r * stride);
}

template <class T, class Q>
void blocks_to_float8_of(int64_t blocks, int64_t block, const T* x, const float* scales, Q* q) {
    constexpr int64_t kTogether = 64;
    for (int64_t first = 0; first < blocks; first += kTogether) {
        const int64_t end = std::min(blocks, first + kTogether);
        const auto each = [&](const auto& scale_of) __attribute__((always_inline)) {
            const auto all = [&](int64_t size) __attribute__((always_inline)) {
                for (int64_t b = first; b < end; ++b) to_codes(size, x + b * size, scale_of(b), q + b * size);
            };
            if (block == 32) all(32);  // no loop within a block
            else if (block == 128) all(128);
            else all(block);
        };
#if defined(__AVX2__)
        if constexpr (std::is_same_v<T, Bf16>) {
            uint32_t less[kTogether];
            const NormalCodes<Q> codes;
            if (are_powers<Q>(end - first, scales + first, less)) {
                each([&](int64_t b) __attribute__((always_inline)) {
                    return of_powers(OneScale{splat(scales[b])}, codes,
                                     all_of(reinterpret_cast<WordVec>(BitVec{} + less[b - first])));
                });
            } else {
                each([&](int64_t b) __attribute__((always_inline)) { return OfBlock<OneScale, Q>{{splat(scales[b])}, codes}; });
            }
            continue;
        }
#endif
        each([&](int64_t b) __attribute__((always_inline)) { return OneScale{splat(scales[b])}; });
    }
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

void float_scales(int64_t n, const uint32_t* most, float largest, float* s, float* by) {
    for (int64_t i = 0; i < n; ++i) {
        by[i] = scale_of(static_cast<double>(std::bit_cast<float>(most[i])), largest, false);
        s[i] = 1 / by[i];
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
