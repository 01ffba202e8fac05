// Compiled once per instruction set.
#include "kernels/cpu/float8_runs.h"

#include <algorithm>
#include <bit>

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
extern const TypedCodesToBf16 codes_to_bf16;
extern const TypedScaledCodesToBf16 scaled_codes_to_bf16;
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
LOCKSTEP_INLINE BitVec size_of(const T* x) {
    return reinterpret_cast<BitVec>(load(x)) & 0x7fffffffu;
}
LOCKSTEP_INLINE BitVec larger(BitVec a, BitVec b) { return a > b ? a : b; }

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
        BitVec so_far;
        __builtin_memcpy(&so_far, most + i, sizeof so_far);
        so_far = larger(size_of(x + i), so_far);
        __builtin_memcpy(most + i, &so_far, sizeof so_far);
    }
    for (; i < n; ++i) most[i] = std::max(most[i], std::bit_cast<uint32_t>(static_cast<float>(x[i])) & 0x7fffffffu);
}

template <class T>
void largest_of_blocks_of(int64_t blocks, int64_t block, const T* x, uint32_t* most) {
    for (int64_t b = 0; b < blocks; ++b, x += block) {
        if (block % kLanes != 0 || block > kPiece) {
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
    alignas(64) float wide[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = std::min(kPiece, n - i);
        widen_piece(count, x + i, wide);
        for (int64_t k = 0; k < count; ++k) q[i + k] = Q(wide[k] * scale);
    }
}

template <class Q>
void codes_of_piece(int64_t n, const float* wide, Q* q) {
    for (int64_t k = 0; k < n; ++k) q[k] = Q(wide[k]);
}

template <class T, class Q>
void columns_to_float8_of(int64_t n, const T* x, const float* scales, Q* q) {
    alignas(64) float wide[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = std::min(kPiece, n - i);
        for (int64_t k = 0; k < count; k += kLanes) store(wide + k, load(x + i + k, count - k) * load(scales + i + k, count - k));
        codes_of_piece(count, wide, q + i);
    }
}

template <class T, class Q>
void blocks_to_float8_of(int64_t blocks, int64_t block, const T* x, const float* scales, Q* q) {
    if (block % kLanes != 0 || kPiece % block != 0) {
        for (int64_t b = 0; b < blocks; ++b) run_to_float8_of(block, x + b * block, scales[b], q + b * block);
        return;
    }
    alignas(64) float wide[kPiece];
    const int64_t together = kPiece / block;
    for (int64_t b = 0; b < blocks; b += together) {
        const int64_t count = std::min(together, blocks - b);
        for (int64_t j = 0; j < count; ++j) {
            for (int64_t k = 0; k < block; k += kLanes)
                store(wide + j * block + k, load(x + (b + j) * block + k) * scales[b + j]);
        }
        codes_of_piece(count * block, wide, q + b * block);
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

// Where the lower halves are zeros.
LOCKSTEP_INLINE void store_upper(Bf16* x, Vec v) {
    const ShortVec upper = __builtin_convertvector(reinterpret_cast<BitVec>(v) >> 16, ShortVec);
    __builtin_memcpy(x, &upper, sizeof upper);
}
template <class Q>
void codes_to_bf16_of(int64_t n, const Q* q, Bf16* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store_upper(x + i, load_codes(q + i));
    if (i < n) store(x + i, load_codes(q + i, n - i), n - i);
}
template <class Q>
void scaled_codes_to_bf16_of(int64_t n, const Q* q, const float* scales, Bf16* x) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store_upper(x + i, load_codes(q + i) * load(scales + i));
    if (i < n) store(x + i, load_codes(q + i, n - i) * load(scales + i, n - i), n - i);
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
constinit const TypedCodesToBf16 codes_to_bf16([]<class Q>() { return codes_to_bf16_of<Q>; });
constinit const TypedScaledCodesToBf16 scaled_codes_to_bf16([]<class Q>() { return scaled_codes_to_bf16_of<Q>; });
constinit const Typed<ScaleSums> scale_sums([]<class T>() { return scale_sums_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
