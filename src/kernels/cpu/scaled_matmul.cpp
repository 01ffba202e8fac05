#include "kernels/cpu/scaled_matmul.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cpu/float8_runs.h"

namespace lockstep::kernels::cpu {
namespace {

// `size` cut into equal blocks of at most `most`.
int64_t block_of(int64_t size, int64_t most) {
    const int64_t count = std::max<int64_t>(1, (size + most - 1) / most);
    return std::max<int64_t>(1, round_up((size + count - 1) / count, int64_t{64}));
}

// The longest run of steps along K such that all runs have one scale.
int64_t run_of(const ScaledFactor& f) {
    auto run = static_cast<int64_t>(f.inner.size());
    for (size_t i = 1; i < f.inner.size(); ++i) {
        if (f.inner[i] != f.inner[i - 1]) run = std::gcd(run, static_cast<int64_t>(i));
    }
    return run;
}
// Of both, as far as their scales are applied to sums.
int64_t run_of(int64_t k, const ScaledFactor& a, const ScaledFactor& b) {
    return std::gcd(a.scales_codes() ? k : run_of(a), b.scales_codes() ? k : run_of(b));
}

// Bytes of n elements, so that what follows is aligned.
int64_t bytes_for(int64_t n, int64_t bytes) { return round_up(n * bytes, kAlignmentBytes); }

}  // namespace

bool ScaledFactor::varies_along_k() const {
    return std::adjacent_find(inner.begin(), inner.end(), std::not_equal_to<>()) != inner.end();
}

ScaledMatmul::ScaledMatmul(const MatmulShape& shape, ScaledFactor a, ScaledFactor b, int threads, MatmulKernel kernel)
    : shape_(shape),
      a_(std::move(a)),
      b_(std::move(b)),
      threads_(threads),
      rows_(block_of(shape.m, int64_t{256} * std::max(threads, 4))),
      columns_(block_of(shape.n, 2048)),
      run_(run_of(shape.k, a_, b_)) {
    for (const int64_t m : {std::min(rows_, shape.m), shape.m % rows_}) {
        for (const int64_t n : {std::min(columns_, shape.n), shape.n % columns_}) {
            MatmulShape part = shape;
            part.m = m, part.n = n, part.k = run_;
            part.lda = shape.transpose_a == Transpose::yes ? m : shape.k;
            part.ldb = shape.transpose_b == Transpose::yes ? shape.k : n;
            part.ldc = n;
            if (m > 0 && n > 0) matmuls_.emplace_back(part, threads, kernel);
        }
    }
}

const Matmul& ScaledMatmul::matmul(int64_t rows, int64_t columns) const {
    const auto it = std::find_if(matmuls_.begin(), matmuls_.end(),
                                 [&](const Matmul& m) { return m.shape().m == rows && m.shape().n == columns; });
    ensure(it != matmuls_.end(), "ScaledMatmul: a block of no size");
    return *it;
}

int64_t ScaledMatmul::workspace_bytes() const {
    int64_t most = 0;
    for (const Matmul& m : matmuls_) most = std::max(most, m.workspace_bytes());
    const int64_t sums = run_ < shape_.k ? 2 : 1;
    return bytes_for(rows_ * shape_.k, 2) + bytes_for(columns_ * shape_.k, 2) + sums * bytes_for(rows_ * columns_, 4) +
           threads_ * bytes_for(line_floats(), 4) + most;
}

// Of a thread: scales of the columns of a block, or of what decode() reads at once.
int64_t ScaledMatmul::line_floats() const {
    const bool scales_codes = a_.scales_codes() || b_.scales_codes();
    return scales_codes ? std::max({rows_, columns_, shape_.k}) : columns_;
}

// Rows or columns `outer` of a factor, of `all`, with all their steps along K. along_k: those of one are next to each other.
void ScaledMatmul::decode(ThreadPool& pool, const ScaledFactor& factor, const void* codes, const float* scales, bool along_k,
                          Block outer, int64_t all, float* lines, Bf16* to) const {
    const int64_t count = along_k ? outer.count : shape_.k, length = along_k ? shape_.k : outer.count;
    const int64_t stride = along_k ? shape_.k : all, first = along_k ? outer.begin * stride : outer.begin;
    const int64_t *const of_outer = factor.outer.data() + outer.begin, *const of_k = factor.inner.data();
    const int64_t run = run_of(factor);
    const auto of_type = [&]<class Q>(const Q* q) {
        pool.parallel([&](int thread, int threads) {
            const Range mine = split(count, threads, thread);
            float* const line = lines + thread * (bytes_for(line_floats(), 4) / 4);
            for (int64_t i = mine.begin; i < mine.end; ++i) {
                const Q* const from = q + first + i * stride;
                if (!factor.scales_codes()) {
                    codes_to_bf16(length, from, to + i * length);
                    continue;
                }
                if (along_k) {
                    for (int64_t k = 0; k < length; k += run) std::fill_n(line + k, run, scales[of_outer[i] + of_k[k]]);
                } else if (i == mine.begin || of_k[i] != of_k[i - 1]) {
                    for (int64_t k = 0; k < length; ++k) line[k] = scales[of_outer[k] + of_k[i]];
                }
                scaled_codes_to_bf16(length, from, line, to + i * length);
            }
        });
    };
    if (factor.type == Dtype::F8E4M3) of_type(static_cast<const F8E4M3*>(codes));
    else of_type(static_cast<const F8E5M2*>(codes));
}

template <class Out>
void ScaledMatmul::run(ThreadPool& pool, const void* a, const void* b, const float* scales_of_a, const float* scales_of_b, Out* c,
                       const float* before, void* workspace) const {
    char* at = static_cast<char*>(workspace);
    const auto take = [&]<class T>(int64_t n) {
        T* const taken = reinterpret_cast<T*>(at);
        at += bytes_for(n, sizeof(T));
        return taken;
    };
    Bf16* const left = take.template operator()<Bf16>(rows_ * shape_.k);
    Bf16* const right = take.template operator()<Bf16>(columns_ * shape_.k);
    float* const sums = take.template operator()<float>(rows_ * columns_);
    float* const so_far = take.template operator()<float>(run_ < shape_.k ? rows_ * columns_ : 0);  // of a narrow C, over runs
    const int64_t own_line = bytes_for(line_floats(), 4) / 4;
    float* const lines = take.template operator()<float>(threads_ * own_line);
    const bool scales_sums_of_a = !a_.scales_codes(), scales_sums_of_b = !b_.scales_codes();
    const bool a_along_k = shape_.transpose_a == Transpose::no, b_along_k = shape_.transpose_b == Transpose::yes;
    for (int64_t j = 0; j < shape_.n; j += columns_) {
        const Block columns{j, std::min(columns_, shape_.n - j)};
        decode(pool, b_, b, scales_of_b, b_along_k, columns, shape_.n, lines, right);
        for (int64_t i = 0; i < shape_.m; i += rows_) {
            const Block rows{i, std::min(rows_, shape_.m - i)};
            decode(pool, a_, a, scales_of_a, a_along_k, rows, shape_.m, lines, left);
            const Matmul& product = matmul(rows.count, columns.count);
            for (int64_t p = 0; p < shape_.k; p += run_) {
                product.run(pool, left + p * (a_along_k ? 1 : rows.count), right + p * (b_along_k ? 1 : columns.count), sums,
                            nullptr, at);
                const auto step = static_cast<size_t>(p);
                pool.parallel([&](int thread, int threads) {
                    float* const own = lines + thread * own_line;
                    for (int64_t n = 0; n < columns.count; ++n)
                        own[n] = scales_sums_of_b ? scales_of_b[b_.outer[static_cast<size_t>(j + n)] + b_.inner[step]] : 1;
                    const Range mine = split(rows.count, threads, thread);
                    for (int64_t m = mine.begin; m < mine.end; ++m) {
                        const float of_row =
                            scales_sums_of_a ? scales_of_a[a_.outer[static_cast<size_t>(i + m)] + a_.inner[step]] : 1;
                        const int64_t from = (i + m) * shape_.n + j;
                        const float* const sum = sums + m * columns.count;
                        float* between = so_far + m * columns.count;
                        if constexpr (std::is_same_v<Out, float>) between = c + from;
                        const float* const added = p > 0 ? between : before ? before + from : nullptr;
                        if (p + run_ < shape_.k) scale_sums(columns.count, sum, of_row, own, added, between);
                        else scale_sums(columns.count, sum, of_row, own, added, c + from);
                    }
                });
            }
        }
    }
}
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, float*, const float*,
                                void*) const;
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, Bf16*, const float*,
                                void*) const;
template void ScaledMatmul::run(ThreadPool&, const void*, const void*, const float*, const float*, F16*, const float*,
                                void*) const;

}  // namespace lockstep::kernels::cpu
