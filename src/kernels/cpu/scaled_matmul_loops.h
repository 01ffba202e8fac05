// Products of float8 matrices by one thread, in the loops of matmul_loops.h. Codes become what a tile multiplies while they are
// packed, and sums get their scales when a tile is stored, piece by piece along K. `Math`:
//   Element, kKernel, kRows, kColumns, steps(k) as there
//   kSteps of K in an element; element(values of these steps)
//   is_by_rows<side>(): a panel's strips are [outer][element of K], not [element of K][outer]
//   put<side>(strip, rows, i, step, panel): the first `rows` vectors of a strip that begins at these outer and step of a panel
//   tile<Out>(rows, steps, a, b, partial, partial_stride, c, c_stride, SumScales)
// Include only from sources compiled once per instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu/float8_values.h"
#include "kernels/cpu/matmul_loops.h"
#include "kernels/cpu/scaled_matmul_blocks.h"
#include "kernels/cpu/tile.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

// Codes of kLanes rows or columns that a Math makes into vectors.
template <class Q, int kSteps>
LOCKSTEP_INLINE std::array<ShortVec, kSteps> codes_along_k(const Q* q) {
    if constexpr (kSteps == 1) {
        ByteVec codes;
        __builtin_memcpy(&codes, q, sizeof codes);
        return {__builtin_convertvector(codes, ShortVec)};
    } else {
        ShortVec both;
        __builtin_memcpy(&both, q, sizeof both);
        return {both & 0xff, both >> 8};
    }
}

// kLanes elements of one row that are next to each other along K, or of one step of elements along the other dim.
template <class Math, class Q, bool is_scaled>
class Strip {
public:
    static constexpr int kSteps = Math::kSteps;

    Strip(const FactorPart& x, int64_t k_end) : x_(x), codes_(static_cast<const Q*>(x.codes)), k_end_(k_end) {}

    // Of `count` rows from `outer` on and steps from `p` on.
    void read(int64_t outer, int64_t count, int64_t p, Vec* to) const {
        const int64_t last = std::min<int64_t>(p + kSteps * kLanes, k_end_) - 1;
        const bool is_plain = last + 1 - p == kSteps * kLanes && (!is_scaled || p / x_.run == last / x_.run);
        if (!is_plain) return read_any(outer, count, p, to);
        if (x_.along_outer) read_steps(outer, count, p, to);
        else read_rows(outer, count, p, to);
    }

private:
    float scale(int64_t i, int64_t p) const { return is_scaled ? x_.scales[x_.outer[i] + x_.inner[p]] : 1; }

    void read_rows(int64_t outer, int64_t count, int64_t p, Vec* to) const {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            to[i] = Vec{};
            if (i >= count) continue;
            std::array<Vec, kSteps> values;
            const std::array codes = codes_along_k<Q, kSteps>(codes_ + (outer + i) * x_.stride + p);
            for (int s = 0; s < kSteps; ++s) {
                values[s] = values_of<Q>(codes[s]);
                if (is_scaled) values[s] *= scale(outer + i, p);
            }
            to[i] = Math::element(values);
        }
    }

    void read_steps(int64_t outer, int64_t count, int64_t p, Vec* to) const {
        Vec by = splat(1.0F);
        if (is_scaled) {
            for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i) by[i] = scale(outer + i, p);
        }
        const Q* from = codes_ + p * x_.stride + outer;
        const auto read_all = [&](const auto& load) {
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) {
                std::array<Vec, kSteps> values;
                for (int s = 0; s < kSteps; ++s, from += x_.stride) {
                    values[s] = load(from);
                    if (is_scaled) values[s] *= by;
                }
                to[i] = Math::element(values);
            }
        };
        if (x_.outer_count - outer >= kLanes) read_all([](const Q* q) { return load_codes(q); });
        else read_all([count](const Q* q) { return load_codes(q, count); });
    }

    // Edges, and runs that end within a strip.
    __attribute__((noinline)) void read_any(int64_t outer, int64_t count, int64_t p, Vec* to) const {
        for (int i = 0; i < kLanes; ++i) {
            std::array<Vec, kSteps> values{};
            for (int lane = 0; lane < kLanes; ++lane) {
                for (int s = 0; s < kSteps; ++s) {
                    const int64_t row = x_.along_outer ? lane : i, step = p + (x_.along_outer ? i : lane) * kSteps + s;
                    if (row >= count || step >= k_end_) continue;
                    const int64_t at = x_.along_outer ? step * x_.stride + outer + row : (outer + row) * x_.stride + step;
                    values[s][lane] = static_cast<float>(codes_[at]) * scale(outer + row, step);
                }
            }
            to[i] = Math::element(values);
        }
    }

    const FactorPart& x_;
    const Q* codes_;
    int64_t k_end_;
};

// Panels of kRows or kColumns of the rows or columns [outer, outer + count), `steps_of_panel` steps in each, get the steps of K
// [p0, p0 + k). Behind them a last panel has zeros, or what follows in memory: of these no sum is stored.
template <class Math, Side side, class Q, bool is_scaled>
void pack_codes_of(const FactorPart& x, int64_t outer, int64_t count, int64_t p0, int64_t k, int64_t steps_of_panel,
                   typename Math::Element* to) {
    constexpr int kWidth = side == Side::left ? Math::kRows : Math::kColumns;
    constexpr int kInStrip = std::min(kWidth, kLanes);
    const Strip<Math, Q, is_scaled> strip(x, p0 + k);
    const int64_t steps = Math::steps(k);
    const auto pack = [&](int64_t i, int64_t step) {
        Vec block[kLanes];
        strip.read(outer + i, std::clamp<int64_t>(count - i, 0, kInStrip), p0 + step * Math::kSteps, block);
        if (x.along_outer == Math::template is_by_rows<side>()) transpose(block);
        Math::template put<side>(block, std::min<int64_t>(kLanes, steps - step), i % kWidth, step,
                                 to + i / kWidth * kWidth * steps_of_panel);
    };
    const int64_t whole = (count + kWidth - 1) / kWidth * kWidth;
    if (x.along_outer) {
        for (int64_t step = 0; step < steps; step += kLanes)
            for (int64_t i = 0; i < whole; i += kInStrip) pack(i, step);
    } else {
        for (int64_t i = 0; i < whole; i += kInStrip)
            for (int64_t step = 0; step < steps; step += kLanes) pack(i, step);
    }
}

template <class Math, Side side>
void pack_codes(const FactorPart& x, int64_t outer, int64_t count, int64_t p0, int64_t k, int64_t piece,
                typename Math::Element* to) {
    constexpr int kWidth = side == Side::left ? Math::kRows : Math::kColumns;
    const int64_t steps_of_panel = (k + piece - 1) / piece * Math::steps(piece);
    for (int64_t p = 0; p < k; p += piece, to += kWidth * Math::steps(piece)) {
        const auto pack = [&]<class Q>(Q) {
            const auto with = [&](auto is_scaled) {
                pack_codes_of<Math, side, Q, is_scaled.value>(x, outer, count, p0 + p, std::min(piece, k - p), steps_of_panel,
                                                              to);
            };
            if (x.scales_codes) with(std::true_type());
            else with(std::false_type());
        };
        if (x.type == Dtype::F8E4M3) pack(F8E4M3());
        else pack(F8E5M2());
    }
}

// Scales of sums, of each piece: [pieces, count + 32].
inline void gather_scales(const FactorPart& x, int64_t outer, int64_t count, int64_t p0, int64_t k, int64_t piece, float* to) {
    for (int64_t p = 0; p < k; p += piece, to += count + 32) {
        std::fill_n(to + count, 32, 0.0F);
        if (x.scales_codes) std::fill_n(to, count, 1.0F);
        else
            for (int64_t i = 0; i < count; ++i) to[i] = x.scales[x.outer[outer + i] + x.inner[p0 + p]];
    }
}

// All pieces of a tile of C.
template <class Math, class Out>
struct PiecesOfTile {
    using Element = typename Math::Element;
    int64_t rows, columns;
    int64_t pieces, steps;  // of a piece
    const Element *a, *b;   // panels
    const float *scales_of_a, *scales_of_b;
    int64_t a_stride, b_stride;  // of scales, from piece to piece
    const float* partial;
    int64_t partial_stride;
    Out* c;
    int64_t c_stride;

    template <class T>
    LOCKSTEP_INLINE static void prefetch(const T* row) {
        for (int64_t byte = 0; byte < Math::kColumns * static_cast<int64_t>(sizeof(T)); byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(row) + byte, 1);
    }

    // Sums before the last piece, and all of a tile that is narrower than C's columns, are in `sums`.
    void multiply() const {
        alignas(64) float sums[Math::kRows * Math::kColumns];
        const bool is_whole = columns == Math::kColumns;
        // They come from memory while the first piece is multiplied.
        for (int64_t i = 0; i < rows; ++i) prefetch(c + i * c_stride), prefetch(partial ? partial + i * partial_stride : sums);
        const float* before = partial;
        int64_t before_stride = partial_stride;
        if (partial && !is_whole) {
            for (int64_t i = 0; i < rows; ++i) std::copy_n(partial + i * partial_stride, columns, sums + i * Math::kColumns);
            before = sums, before_stride = Math::kColumns;
        }
        for (int64_t p = 0; p < pieces; ++p) {
            const Element *const left = a + p * steps * Math::kRows, *const right = b + p * steps * Math::kColumns;
            const SumScales scales{scales_of_a + p * a_stride, scales_of_b + p * b_stride};
            if (p + 1 == pieces && is_whole) {
                Math::template tile<Out>(rows, steps, left, right, before, before_stride, c, c_stride, scales);
            } else {
                Math::template tile<float>(rows, steps, left, right, before, before_stride, sums, Math::kColumns, scales);
                before = sums, before_stride = Math::kColumns;
            }
        }
        for (int64_t i = 0; i < rows && !is_whole; ++i)
            for (int64_t j = 0; j < columns; ++j) c[i * c_stride + j] = Out(sums[i * Math::kColumns + j]);
    }
};

template <class Math, class Out>
void scaled_matmul_of(const ScaledPart& s, Out* c, const float* before, float* workspace) {
    using Element = typename Math::Element;
    static_assert(sizeof(Element) == sizeof(float));
    const ScaledBlocks blocks = scaled_blocks(s, Math::kKernel);
    const auto take = [&workspace](int64_t floats) {
        float* const taken = workspace;
        workspace += (floats + 15) / 16 * 16;
        return taken;
    };
    auto* const packed_b = reinterpret_cast<Element*>(take(blocks.packed_floats(blocks.n)));
    auto* const packed_a = reinterpret_cast<Element*>(take(blocks.packed_floats(blocks.m)));
    float* const scales_of_b = take(blocks.scales_floats(blocks.n));
    float* const scales_of_a = take(blocks.scales_floats(blocks.m));
    float* const sums = workspace;  // of a narrow C, over blocks of K before the last: [m, blocks.n]
    for (int64_t i = 0; i < s.m && s.k == 0; ++i)
        for (int64_t j = i * s.ldc; j < i * s.ldc + s.n; ++j) c[j] = Out(before ? before[j] : 0.0F);

    // The same steps of rows [i, i + m) and columns [j, j + n).
    const auto multiply = [&]<class To>(int64_t m, int64_t n, int64_t k, int64_t piece, const float* partial,
                                        int64_t partial_stride, To* to, int64_t stride) {
        const int64_t pieces = (k + piece - 1) / piece, steps = Math::steps(piece), all = pieces * steps;
        for (int64_t j = 0; j < n; j += Math::kColumns) {
            for (int64_t i = 0; i < m; i += Math::kRows) {
                const float* const from = partial ? partial + i * partial_stride + j : nullptr;
                PiecesOfTile<Math, To>{std::min<int64_t>(Math::kRows, m - i),
                                       std::min<int64_t>(Math::kColumns, n - j),
                                       pieces,
                                       steps,
                                       packed_a + i * all,
                                       packed_b + j * all,
                                       scales_of_a + i,
                                       scales_of_b + j,
                                       m + 32,
                                       n + 32,
                                       from,
                                       partial_stride,
                                       to + i * stride + j,
                                       stride}
                    .multiply();
            }
        }
    };
    for (int64_t j = 0; j < s.n; j += blocks.n) {
        const int64_t n = std::min(blocks.n, s.n - j);
        for (int64_t p = 0, k = 0; p < s.k; p += k) {
            k = std::min(blocks.k, (s.run > blocks.k ? (p / s.run + 1) * s.run : s.k) - p);
            const int64_t piece = std::min(blocks.piece, k);
            pack_codes<Math, Side::right>(s.b, j, n, p, k, piece, packed_b);
            gather_scales(s.b, j, n, p, k, piece, scales_of_b);
            for (int64_t i = 0; i < s.m; i += blocks.m) {
                const int64_t m = std::min(blocks.m, s.m - i);
                pack_codes<Math, Side::left>(s.a, i, m, p, k, piece, packed_a);
                gather_scales(s.a, i, m, p, k, piece, scales_of_a);
                Out* const to = c + i * s.ldc + j;
                if constexpr (std::is_same_v<Out, float>) {
                    const float* const from = p > 0 ? to : before ? before + (to - c) : nullptr;
                    multiply(m, n, k, piece, from, s.ldc, to, s.ldc);
                } else {
                    float* const between = sums + i * blocks.n;
                    const float* const from = p > 0 ? between : nullptr;
                    if (p + k < s.k) multiply(m, n, k, piece, from, blocks.n, between, blocks.n);
                    else multiply(m, n, k, piece, from, blocks.n, to, s.ldc);
                }
            }
        }
    }
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
