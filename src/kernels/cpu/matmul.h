// Matrix products on row-major matrices: C[M, N] = op(A)[M, K] * op(B)[K, N], or something plus the same. Operands are float,
// or of a narrow type (Bf16, F16) with C in it or in float; products and sums are float in any case, and a narrow C is rounded
// once and cannot be added to. A
// Matmul is prepared once for fixed sizes and a fixed number of threads; running it allocates nothing and is deterministic:
// threads share out M and N, never K, so the bits do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

enum class Transpose { no, yes };
// packed and onednn multiply floats, bf16_dot pairs of bfloat16: fast where the processor has that instruction at full rate.
// amx multiplies tiles of bfloat16, where the processor can and the system lets it.
enum class MatmulKernel { packed, onednn, bf16_dot, amx };
bool has_bf16_dot();      // the instruction; elsewhere bf16_dot is right and slow
bool prefers_bf16_dot();  // where nothing was measured: at twice the rate of floats on AMD, at half of it on Intel
bool has_amx();           // asks the system for it at the first call; elsewhere Matmul::run refuses amx
// Products of bfloat16 are faster than those of their widened floats.
inline bool has_fast_bf16() { return has_amx() || prefers_bf16_dot(); }

struct MatmulShape {
    int64_t m = 0, n = 0, k = 0;
    Transpose transpose_a = Transpose::no;  // no: A is [M, K]; yes: A is [K, M]
    Transpose transpose_b = Transpose::no;  // no: B is [K, N]; yes: B is [N, K]
    int64_t lda = 0, ldb = 0, ldc = 0;      // elements between rows; 0: dense
};

// The kernel for a shape where no table says otherwise: a static rule, with its measurements in matmul.cpp.
MatmulKernel default_matmul_kernel(const MatmulShape& shape);

// How threads share C: thread t computes part t / columns of the rows, part t % columns of the columns.
struct MatmulParts {
    int rows = 1, columns = 1;
    Range rows_of(const MatmulShape& shape, int thread) const;
    Range columns_of(const MatmulShape& shape, int thread) const;
};
MatmulParts matmul_parts(const MatmulShape& shape, int threads);

class Matmul {
public:
    enum class Result { f32, narrow };
    Matmul(const MatmulShape& shape, int threads, Result result = Result::f32);
    Matmul(const MatmulShape& shape, int threads, MatmulKernel kernel, Result result = Result::f32);

    const MatmulShape& shape() const { return shape_; }
    MatmulKernel kernel() const { return kernel_; }
    int64_t workspace_bytes() const;

    // pool.threads() must be the number that was prepared for. `workspace` holds workspace_bytes(), 64-byte aligned.
    // C = product, or before + product: `before` is laid out as C, and may be C. C overlaps neither operand. (In, Out): (float,
    // float), (T, float) and, where prepared for Result::narrow, (T, T), of a narrow T.
    template <class In, class Out>
    void run(ThreadPool& pool, const In* a, const In* b, Out* c, const std::type_identity_t<Out>* before, void* workspace) const;

private:
    MatmulShape shape_;
    MatmulKernel kernel_;
    Result result_;
    MatmulParts parts_;
};

// One thread's product by the packed kernel; leading dimensions must be given. For Matmul and its tests.
template <class In, class Out>
using PackedMatmul = void(const MatmulShape& shape, const In* a, const In* b, Out* c, const Out* before, float* workspace);
// Of bfloat16, by instructions of its own.
struct Bf16Matmuls {
    PackedMatmul<Bf16, Bf16>* narrow = nullptr;
    PackedMatmul<Bf16, float>* f32 = nullptr;

    operator PackedMatmul<Bf16, Bf16>*() const { return narrow; }
    operator PackedMatmul<Bf16, float>*() const { return f32; }
};
using FloatMatmuls = CopiesOfTwo<PackedMatmul, Stored<float>, Stored<Bf16>, Stored<Bf16, float>, Stored<F16>, Stored<F16, float>>;
struct PackedMatmuls : FloatMatmuls {  // all types, as floats
    constexpr PackedMatmuls() = default;
    constexpr explicit PackedMatmuls(FloatMatmuls floats, Bf16Matmuls pairs) : FloatMatmuls(floats), dot(pairs) {}
    Bf16Matmuls dot, amx;  // of bfloat16: in pairs; in tiles, only where has_amx()
};
extern PackedMatmuls packed_matmul;
int64_t packed_matmul_workspace_floats(const MatmulShape& shape, Matmul::Result result = Matmul::Result::f32,
                                       MatmulKernel kernel = MatmulKernel::packed);

}  // namespace lockstep::kernels::cpu
