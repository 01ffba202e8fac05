#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/matmul_onednn.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kRowUnit = 16;       // borders between threads: a cache line of A transposed
constexpr int64_t kTileRowsUnit = 42;  // a multiple of the tile rows of AVX2 (6) and AVX-512 (14)
constexpr int64_t kColumnUnit = 32;    // a multiple of every set's tile columns (8, 16, 32), and of AMX's
constexpr int64_t kAmxTile = 32;       // rows, and steps of K

MatmulShape with_leading_dimensions(MatmulShape s) {
    if (s.lda == 0) s.lda = s.transpose_a == Transpose::yes ? s.m : s.k;
    if (s.ldb == 0) s.ldb = s.transpose_b == Transpose::yes ? s.k : s.n;
    if (s.ldc == 0) s.ldc = s.n;
    return s;
}

// `size` cut into equal blocks of at most `most`, rounded up to `unit`.
int64_t even_block(int64_t size, int64_t most, int64_t unit) {
    const int64_t count = std::max<int64_t>(1, (size + most - 1) / most);
    const int64_t block = (size + count - 1) / count;
    return std::max<int64_t>(unit, (block + unit - 1) / unit * unit);
}

template <class In, class Out>
PackedMatmul<In, Out>* kernel_for(MatmulKernel kernel) {
    if constexpr (std::is_same_v<In, Bf16>) {
        if (kernel == MatmulKernel::amx) return packed_matmul.amx;
        if (kernel == MatmulKernel::bf16_dot) return packed_matmul.dot;
    }
    return packed_matmul;
}

MatmulShape part_shape(const MatmulShape& s, int64_t m, int64_t n) {
    MatmulShape part = s;
    part.m = m, part.n = n;
    return part;
}

}  // namespace

MatmulBlocks matmul_blocks(const MatmulShape& s, MatmulKernel kernel) {
    const int64_t n = even_block(s.n, 2048, kColumnUnit);
    if (kernel == MatmulKernel::amx) {
        // On a Xeon with 2 MiB of second-level cache no size from 320 to 1,024 along K and 128 to 512 rows was best for all
        // shapes (one run each, one thread; they differed by up to a third).
        const int64_t k = even_block(s.k, 512, kAmxTile);
        return {even_block(s.m, 256, kAmxTile), n, k, k / 2};
    }
    const int64_t k = even_block(s.k, 512, 8);
    return {even_block(s.m, 84, kTileRowsUnit), n, k, k};
}

int64_t packed_matmul_workspace_floats(const MatmulShape& shape, Matmul::Result result, MatmulKernel kernel) {
    const MatmulBlocks blocks = matmul_blocks(shape, kernel);
    const int64_t sums = result == Matmul::Result::narrow && shape.k > blocks.k ? shape.m * blocks.n : 0;
    return (blocks.packed_a_floats() + blocks.packed_b_floats() + sums + 15) / 16 * 16;
}

// Zen 3, AVX2, GFLOP/s on one thread, best call, spread 3, FMA roof 103 (oneDNN 2.6.3; OpenBLAS 0.3.21 and BLIS 0.9 lay at
// 86 to 93 except for the 128-token head, 62 to 86):
//   tokens x out x in      packed fwd / dX / dW    oneDNN fwd / dX / dW
//   1024 x   512 x  512         96 / 95 / 92            95 / 94 / 61
//   1024 x  1408 x  512         96 / 94 / 93            96 / 91 / 94
//   1024 x   512 x 1408         94 / 95 / 93            92 / 96 / 94
//   1024 x 32000 x  512         94 / 91 / 94            88 / 91 / 89
//    128 x 32000 x  512         81 / 84 / 93            81 / 63 / 89   (oneDNN dX: 63 to 87)
//    512 x   512 x  512         95 / 96 / 94            94 / 67 / 61
// Two threads: packed 172 to 188 of 206, oneDNN 118 to 187. For an untransposed B and M, N up to about 512 oneDNN
// chooses kernels that do not pack, at 37 to 67; a share of a product over threads is nearly always that small.
// Not measured with AVX-512.
MatmulKernel default_matmul_kernel(const MatmulShape&) { return MatmulKernel::packed; }

Range MatmulParts::rows_of(const MatmulShape& s, int thread) const { return split(s.m, rows, thread / columns, kRowUnit); }
Range MatmulParts::columns_of(const MatmulShape& s, int thread) const {
    return split(s.n, columns, thread % columns, kColumnUnit);
}

// The grid whose shares of C have the smallest half perimeter: each thread packs its rows of A and columns of B.
MatmulParts matmul_parts(const MatmulShape& shape, int threads) {
    ensure(threads >= 1, "Matmul: threads must be at least 1");
    MatmulParts out;
    int64_t least = -1;
    for (int rows = 1; rows <= threads; ++rows) {
        if (threads % rows != 0) continue;
        const MatmulParts some{rows, threads / rows};
        const int64_t perimeter = some.rows_of(shape, 0).count() + some.columns_of(shape, 0).count();
        if (least >= 0 && perimeter >= least) continue;
        least = perimeter, out = some;
    }
    return out;
}

Matmul::Matmul(const MatmulShape& shape, int threads, Result result)
    : Matmul(shape, threads, default_matmul_kernel(shape), result) {}

Matmul::Matmul(const MatmulShape& shape, int threads, MatmulKernel kernel, Result result)
    : shape_(with_leading_dimensions(shape)), kernel_(kernel), result_(result), parts_(matmul_parts(shape, threads)) {}

int64_t Matmul::workspace_bytes() const {
    if (kernel_ == MatmulKernel::onednn) return 0;
    int64_t most = 0;  // not always that of the largest part: its blocks may be more and smaller
    for (int thread = 0; thread < parts_.rows * parts_.columns; ++thread) {
        const MatmulShape part =
            part_shape(shape_, parts_.rows_of(shape_, thread).count(), parts_.columns_of(shape_, thread).count());
        most = std::max(most, packed_matmul_workspace_floats(part, result_, kernel_));
    }
    return parts_.rows * parts_.columns * most * 4;
}

template <class In, class Out>
void Matmul::run(ThreadPool& pool, const In* a, const In* b, Out* c, const std::type_identity_t<Out>* before,
                 void* workspace) const {
    constexpr bool kIsFloat = std::is_same_v<In, float>;
    ensure(pool.threads() == parts_.rows * parts_.columns,
           "Matmul::run: the pool has another number of threads than prepared for");
    ensure(std::is_same_v<Out, float> || (result_ == Result::narrow && !before), "Matmul::run: not prepared for a narrow result");
    ensure(kernel_ != MatmulKernel::onednn || !before || static_cast<const void*>(before) == c,
           "Matmul::run: oneDNN adds only to what is in C");
    ensure(kernel_ != MatmulKernel::amx || has_amx(), "Matmul::run: this processor has no AMX for bfloat16");
    const bool of_bf16 = kernel_ == MatmulKernel::bf16_dot || kernel_ == MatmulKernel::amx;
    ensure((!of_bf16 || std::is_same_v<In, Bf16>)&&(kIsFloat || kernel_ != MatmulKernel::onednn),
           "Matmul::run: this kernel does not take these operands");
    const MatmulShape& s = shape_;
    const int64_t floats = workspace_bytes() / 4 / pool.threads();
    pool.parallel([&](int thread, int) {
        const Range rows = parts_.rows_of(s, thread), columns = parts_.columns_of(s, thread);
        if (rows.count() == 0 || columns.count() == 0) return;
        const MatmulShape part = part_shape(s, rows.count(), columns.count());
        const In* part_a = a + rows.begin * (s.transpose_a == Transpose::yes ? 1 : s.lda);
        const In* part_b = b + columns.begin * (s.transpose_b == Transpose::yes ? s.ldb : 1);
        Out* part_c = c + rows.begin * s.ldc + columns.begin;
        if constexpr (kIsFloat) {
            if (kernel_ == MatmulKernel::onednn) return onednn_matmul(part, part_a, part_b, part_c, before != nullptr);
        }
        const Out* part_before = before ? before + (part_c - c) : nullptr;
        float* const own = static_cast<float*>(workspace) + thread * floats;
        kernel_for<In, Out>(kernel_)(part, part_a, part_b, part_c, part_before, own);
    });
}
template void Matmul::run(ThreadPool&, const float*, const float*, float*, const float*, void*) const;
template void Matmul::run(ThreadPool&, const Bf16*, const Bf16*, Bf16*, const Bf16*, void*) const;
template void Matmul::run(ThreadPool&, const Bf16*, const Bf16*, float*, const float*, void*) const;
template void Matmul::run(ThreadPool&, const F16*, const F16*, F16*, const F16*, void*) const;
template void Matmul::run(ThreadPool&, const F16*, const F16*, float*, const float*, void*) const;

}  // namespace lockstep::kernels::cpu
