// How cuBLASLt takes the scales of a product of float8 (cublasLtMatmulMatrixScale_t in its documentation), and what is made of
// codes and scales before: also for who only plans such products.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "base/round.h"
#include "kernels/cuda/gpu_kind.h"
#include "kernels/float8_groups.h"
#include "kernels/gpu/float8.h"
#include "kernels/kernel.h"
#include "ops/rule.h"

namespace lockstep::kernels::cuda {

// Of a product's workspace, and of what it has there.
inline constexpr int64_t kProductAlignment = 256;
// Sizes of such products are multiples of this, and so are addresses.
inline constexpr int64_t kFloat8Block = 16;
// A factor where it is turned.
constexpr int64_t turned_bytes(int64_t rows, int64_t columns) { return round_up(rows * columns, kProductAlignment); }
// Where GPUs are not 10.x, both factors have the contraction innermost.
constexpr bool turns_float8(GpuKind kind) { return kind != GpuKind::Blackwell; }

// A scale of a factor is of all, of a row, of 128 elements of a row, of 128 x 128 elements, or a power of two of 32 elements of a
// row. Rows are those of the matrix whose columns are summed over.
enum class ScaleMode { All, Row, Block, Tile, Power };

constexpr bool has_scales(GpuKind kind, ScaleMode mode) {
    switch (mode) {
        case ScaleMode::All: return kind != GpuKind::Ampere;
        case ScaleMode::Row: return kind == GpuKind::Hopper || kind == GpuKind::Blackwell;
        case ScaleMode::Block:
        case ScaleMode::Tile: return kind == GpuKind::Hopper;
        case ScaleMode::Power: break;
    }
    return kind == GpuKind::Blackwell;
}

// A factor of rows x k, and its scales.
struct ScaledFactor {
    int operand = 0;  // of the op: codes; its scales are two later
    int64_t rows = 0, k = 0;
    bool is_transposed = false;                 // stored as [k, rows]
    int64_t rows_of_scale = 0, k_of_scale = 0;  // elements with one scale
    ScaleMode mode = ScaleMode::All;

    bool fits(ScaleMode as, Dtype scale) const {
        const auto is = [&](int64_t of_rows, int64_t of_k) { return rows_of_scale == of_rows && k_of_scale == of_k; };
        if (as == ScaleMode::Power) return scale == Dtype::E8M0 && is(1, 32);
        if (scale != Dtype::F32) return false;
        switch (as) {
            case ScaleMode::All: return is(rows, k);
            case ScaleMode::Row: return is(1, k) || is(rows, k);
            case ScaleMode::Block: return is(1, 128);
            default: return is(128, 128);
        }
    }
    // What the scales become in the workspace; nothing: the library reads them where they are.
    std::optional<gpu::Factors> factors() const {
        const int64_t blocks = k / k_of_scale, of_rows = rows / rows_of_scale;
        gpu::Factors f;
        f.rows = of_rows, f.blocks = blocks;
        f.row_stride = is_transposed ? 1 : blocks, f.block_stride = is_transposed ? of_rows : 1;
        switch (mode) {
            case ScaleMode::All: return std::nullopt;
            case ScaleMode::Row:
                if (rows_of_scale == 1) return std::nullopt;
                f.rows = rows, f.row_stride = 0;
                return f;
            case ScaleMode::Block: f.order = gpu::Factors::Order::BlocksOfRows; break;
            case ScaleMode::Tile: f.order = gpu::Factors::Order::RowsOfFour; break;
            case ScaleMode::Power: f.order = gpu::Factors::Order::Tiles; break;
        }
        return f.is_in_order() ? std::nullopt : std::optional(f);
    }
    // In the workspace.
    int64_t code_bytes(bool turns) const { return turns && is_transposed ? turned_bytes(rows, k) : 0; }
    int64_t scale_bytes() const {
        const std::optional<gpu::Factors> f = factors();
        return f ? round_up(f->count() * bytes_of(mode == ScaleMode::Power ? Dtype::E8M0 : Dtype::F32), kProductAlignment) : 0;
    }
};

struct ScaledProblem {
    ops::MatmulShape shape;
    ScaledFactor a, b;  // of the result's rows and columns

    int64_t bytes(bool turns) const { return a.code_bytes(turns) + b.code_bytes(turns) + a.scale_bytes() + b.scale_bytes(); }
};

// Elements with one scale along dims that lie next to each other, the last one first. `scales`: of the dims behind them; then also of
// these. Nothing: scales are in another order, or no number has it.
template <class It>
std::optional<int64_t> elements_of_scale(It first, It last, int64_t& scales) {
    int64_t each = 1;
    bool is_whole = true;
    for (; first != last; ++first) {
        if (first->size == 1) continue;
        const int64_t own = first->stride == 0 ? first->size : first->each;
        if (!is_whole && own != 1) return std::nullopt;
        if (own < first->size && first->stride != scales) return std::nullopt;
        each *= own, is_whole = own == first->size, scales *= first->size / own;
    }
    return each;
}

inline std::optional<ScaledFactor> scaled_factor(const KernelContext& c, int operand, int64_t rows, int64_t k,
                                                 bool is_transposed) {
    const auto at = static_cast<size_t>(operand);
    const Float8Groups groups = float8_groups(c, c.in(at), c.in(at + 2));
    const int64_t inner = is_transposed ? rows : k;
    auto split = groups.dims.rbegin();
    for (int64_t n = 1; split != groups.dims.rend() && n < inner; ++split) n *= split->size;
    int64_t scales = 1;
    const std::optional<int64_t> of_inner = elements_of_scale(groups.dims.rbegin(), split, scales),
                                 of_outer = elements_of_scale(split, groups.dims.rend(), scales);
    if (!of_inner || !of_outer) return std::nullopt;
    ScaledFactor f = {operand, rows, k, is_transposed};
    f.rows_of_scale = is_transposed ? *of_inner : *of_outer, f.k_of_scale = is_transposed ? *of_outer : *of_inner;
    return f;
}

// Of an op that cuBLASLt serves on such a GPU.
inline std::optional<ScaledProblem> scaled_problem(const KernelContext& c, GpuKind kind) {
    ScaledProblem p;
    ops::MatmulShape& s = p.shape;
    if (!ops::is_matmul(c.mesh, c.routine, c.op, &s)) return std::nullopt;
    if (s.m % kFloat8Block != 0 || s.n % kFloat8Block != 0 || s.k % kFloat8Block != 0) return std::nullopt;
    const std::optional<ScaledFactor> a = scaled_factor(c, s.swapped ? 1 : 0, s.m, s.k, s.a_transposed),
                                      b = scaled_factor(c, s.swapped ? 0 : 1, s.n, s.k, s.b_transposed);
    if (!a || !b) return std::nullopt;
    p.a = *a, p.b = *b;
    using enum ScaleMode;
    for (const auto& [of_a, of_b] :
         {std::pair{All, All}, {Row, Row}, {Block, Block}, {Block, Tile}, {Tile, Block}, {Power, Power}}) {
        p.a.mode = of_a, p.b.mode = of_b;
        const auto fits = [&](const ScaledFactor& f) {
            return has_scales(kind, f.mode) && f.fits(f.mode, c.in(static_cast<size_t>(f.operand + 2)).dtype);
        };
        if (fits(p.a) && fits(p.b)) return p;
    }
    return std::nullopt;
}

}  // namespace lockstep::kernels::cuda
