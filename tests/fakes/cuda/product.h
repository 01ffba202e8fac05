// Products of matrices in the ways of cublasLtMatmul, on the host: D = epilogue(alpha op(A) op(B) + beta C + bias). Sums are in
// float. Elements are float, bfloat16, float16, or float8 with scales.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <vector>

namespace lockstep::fakes::cuda {

struct Layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;  // elements between columns, or between rows if the order is CUBLASLT_ORDER_ROW
    int32_t order = CUBLASLT_ORDER_COL;
    int32_t batch_count = 1;
    int64_t batch_stride = 0;  // elements

    bool operator==(const Layout&) const = default;
};

struct Operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;     // read, or written by an epilogue with a gradient
    int64_t bias_stride = 0;  // elements between batches
    int32_t bias_type = -1;   // -1: D's
    void* aux = nullptr;      // what GELU is of: written by GELU_AUX, read by DGELU
    int64_t aux_ld = 0;
    int64_t aux_stride = 0;
    int32_t aux_type = -1;  // -1: D's
    // Of float8: addresses, and how they are meant (cublasLtMatmulMatrixScale_t).
    const void *a_scale = nullptr, *b_scale = nullptr;
    int32_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    int8_t fast_accumulation = 0;  // sums are in float even so
};

// What an epilogue consists of.
struct Epilogue {
    bool gelu = false, gelu_gradient = false, aux = false, bias = false;
    bool row_sums = false;  // of D: the bias' gradient
    bool sums_of_a = false, sums_of_b = false;
    bool uses_bias() const { return bias || row_sums || sums_of_a || sums_of_b; }
};

struct Product {
    Operation operation;
    Epilogue epilogue;
    Layout a, b, c, d;
    const void *at_a, *at_b, *at_c;
    void* at_d;

    int64_t rows() const { return static_cast<int64_t>(d.rows); }
    int64_t cols() const { return static_cast<int64_t>(d.cols); }
    int64_t depth() const { return static_cast<int64_t>(operation.transposed_a != CUBLAS_OP_N ? a.rows : a.cols); }
};

// Scales of a mode for [outer, depth] elements. Sums run over depth.
size_t scale_bytes(int32_t mode, int64_t outer, int64_t depth);

size_t element_bytes(cudaDataType_t type);
constexpr bool is_float8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
// From the first to the last element of all batches.
size_t extent_bytes(const Layout& layout);
// Of two positions of a matrix, or of two batches, one is the same element.
bool overlaps_itself(const Layout& layout);

// The matrix uses the first `used_bytes` of each `bytes`. 0: it has batches that do not lie between each other's columns.
struct Pitch {
    size_t bytes = 0, used_bytes = 0;
};
Pitch pitch_of(const Layout& layout);

// parts: of what is summed over, whose sums are added in their order.
void multiply(const Product& product, float alpha, float beta, int64_t parts);

}  // namespace lockstep::fakes::cuda
