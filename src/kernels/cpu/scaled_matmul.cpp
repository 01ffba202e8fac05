#include "kernels/cpu/scaled_matmul.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/scaled_matmul_blocks.h"

namespace lockstep::kernels::cpu {
namespace {

// The longest run of steps along K such that all runs have one scale.
int64_t run_of(const ScaledFactor& f) {
    auto run = static_cast<int64_t>(f.inner.size());
    for (size_t i = 1; i < f.inner.size(); ++i) {
        if (f.inner[i] != f.inner[i - 1]) run = std::gcd(run, static_cast<int64_t>(i));
    }
    return run;
}

int64_t steps_of(int64_t k, MatmulKernel kernel) {
    constexpr int64_t kStepOfTile = 32;
    if (kernel == MatmulKernel::amx) return round_up(k, kStepOfTile) / 2;
    return kernel == MatmulKernel::bf16_dot ? (k + 1) / 2 : k;
}

int64_t workspace_floats(const ScaledPart& part, MatmulKernel kernel, Matmul::Result result) {
    const ScaledBlocks b = scaled_blocks(part, kernel);
    int64_t floats = result == Matmul::Result::narrow && part.k > b.k ? part.m * b.n : 0;
    for (const int64_t outer : {b.m, b.n}) {
        for (const int64_t some : {b.packed_floats(outer), b.scales_floats(outer)}) floats += round_up(some, int64_t{16});
    }
    return round_up(floats, int64_t{16});
}

}  // namespace

bool ScaledFactor::varies_along_k() const {
    return std::adjacent_find(inner.begin(), inner.end(), std::not_equal_to<>()) != inner.end();
}

// A run is cut where it is longer than a block of Matmul's. Short ones are collected: 16 of them at most, as each has scales.
ScaledBlocks scaled_blocks(const ScaledPart& part, MatmulKernel kernel) {
    constexpr int64_t kMost = 512, kMostPieces = 16, kUnit = 32;  // the unit: a block of MX
    MatmulShape shape;
    shape.m = part.m, shape.n = part.n, shape.k = std::max<int64_t>(part.run, 1);
    const MatmulBlocks blocks = matmul_blocks(shape, kernel);
    ScaledBlocks out{blocks.m, blocks.n, round_up(blocks.k, kUnit), round_up(blocks.k, kUnit), 0};
    if (part.run <= kMost) {
        out.piece = shape.k;
        out.k = out.piece * std::clamp<int64_t>(std::min(kMost, part.k) / out.piece, 1, kMostPieces);
    }
    out.steps = out.k / out.piece * steps_of(out.piece, kernel);
    return out;
}

ScaledMatmul::ScaledMatmul(const MatmulShape& shape, ScaledFactor a, ScaledFactor b, int threads, MatmulKernel kernel,
                           Matmul::Result result)
    : shape_(shape),
      a_(std::move(a)),
      b_(std::move(b)),
      kernel_(kernel),
      result_(result),
      parts_(matmul_parts(shape, threads)),
      run_of_a_(run_of(a_)),
      run_of_b_(run_of(b_)),
      run_(std::gcd(a_.scales_codes() ? shape.k : run_of_a_, b_.scales_codes() ? shape.k : run_of_b_)) {}

int64_t ScaledMatmul::workspace_bytes() const {
    int64_t most = 0;
    for (int thread = 0; thread < parts_.rows * parts_.columns; ++thread) {
        ScaledPart part{};
        part.m = parts_.rows_of(shape_, thread).count(), part.n = parts_.columns_of(shape_, thread).count();
        part.k = shape_.k, part.run = run_;
        most = std::max(most, workspace_floats(part, kernel_, result_));
    }
    return parts_.rows * parts_.columns * most * 4;
}

template <class Out>
void ScaledMatmul::run(ThreadPool& pool, const void* a, const void* b, const float* scales_of_a, const float* scales_of_b, Out* c,
                       const float* before, void* workspace) const {
    ensure(pool.threads() == parts_.rows * parts_.columns, "ScaledMatmul::run: the pool has another number of threads");
    ensure(std::is_same_v<Out, float> || (result_ == Matmul::Result::narrow && !before),
           "ScaledMatmul::run: not prepared for a narrow result");
    ensure(kernel_ != MatmulKernel::amx || has_amx(), "ScaledMatmul::run: this processor has no AMX for bfloat16");
    const ScaledMatmulKernel& kernel = kernel_ == MatmulKernel::amx        ? packed_scaled_matmul.amx
                                       : kernel_ == MatmulKernel::bf16_dot ? packed_scaled_matmul.dot
                                                                           : packed_scaled_matmul.packed;
    PackedScaledMatmul<Out>* const multiply = kernel;
    const int64_t floats = workspace_bytes() / 4 / pool.threads();
    const auto of = [k = shape_.k](const ScaledFactor& f, const void* codes, const float* scales, int64_t run, bool along_outer,
                                   Range outer) {
        const auto all = static_cast<int64_t>(f.outer.size());
        const int64_t stride = along_outer ? all : k;
        return FactorPart{f.type,
                          static_cast<const char*>(codes) + outer.begin * (along_outer ? 1 : stride),
                          stride,
                          along_outer,
                          all - outer.begin,
                          f.scales_codes(),
                          run,
                          scales,
                          f.outer.data() + outer.begin,
                          f.inner.data()};
    };
    pool.parallel([&](int thread, int) {
        const Range rows = parts_.rows_of(shape_, thread), columns = parts_.columns_of(shape_, thread);
        if (rows.count() == 0 || columns.count() == 0) return;
        const FactorPart left = of(a_, a, scales_of_a, run_of_a_, shape_.transpose_a == Transpose::yes, rows);
        const FactorPart right = of(b_, b, scales_of_b, run_of_b_, shape_.transpose_b == Transpose::no, columns);
        const ScaledPart part{rows.count(), columns.count(), shape_.k, run_, left, right, shape_.n};
        const int64_t at = rows.begin * shape_.n + columns.begin;
        multiply(part, c + at, before ? before + at : nullptr, static_cast<float*>(workspace) + thread * floats);
    });
}
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, float*, const float*,
                                void*) const;
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, Bf16*, const float*,
                                void*) const;
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, F16*, const float*,
                                void*) const;

}  // namespace lockstep::kernels::cpu
