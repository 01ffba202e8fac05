// The fake of cuBLASLt does what the documentation says.
#include <cublasLt.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "base/elements.h"
#include "tests/fakes/cuda/test_calls.h"

namespace lockstep::fakes::cuda {
namespace {

class FakesCublasLt : public ::testing::Test {
protected:
    void SetUp() override { reset(1); }
};

Dtype dtype(cudaDataType_t type) {
    switch (type) {
        case CUDA_R_32F: return Dtype::F32;
        case CUDA_R_16BF: return Dtype::BF16;
        case CUDA_R_8F_E4M3: return Dtype::F8E4M3;
        case CUDA_R_8F_E5M2: return Dtype::F8E5M2;
        default: return Dtype::F16;
    }
}
size_t bytes_of(cudaDataType_t type) { return static_cast<size_t>(lockstep::bytes_of(dtype(type))); }
// The largest relative error of one rounding.
double rounding(cudaDataType_t type) { return type == CUDA_R_32F ? 1e-6 : type == CUDA_R_16BF ? 0x1p-8 : 0x1p-11; }

struct Matrix {
    cudaDataType_t type = CUDA_R_32F;
    int64_t rows = 0, cols = 0, ld = 0;
    int32_t order = CUBLASLT_ORDER_COL, batches = 1;
    int64_t stride = 0;
    char* data = nullptr;

    int64_t at(int64_t batch, int64_t i, int64_t j) const {
        return batch * stride + (order == CUBLASLT_ORDER_COL ? i + j * ld : i * ld + j);
    }
    double get(int64_t batch, int64_t i, int64_t j) const { return element(data, dtype(type), at(batch, i, j)); }
    void set(int64_t batch, int64_t i, int64_t j, double value) { set_element(data, dtype(type), at(batch, i, j), value); }
};

// With room between columns and between batches, which stays NaN.
Matrix new_matrix(cudaDataType_t type, int64_t rows, int64_t cols, int32_t batches = 1, int32_t order = CUBLASLT_ORDER_COL) {
    Matrix m{type, rows, cols, (order == CUBLASLT_ORDER_COL ? rows : cols) + 8, order, batches};
    m.stride = m.ld * (order == CUBLASLT_ORDER_COL ? cols : rows) + 16;
    m.data = device_memory<char>(static_cast<size_t>(m.stride * batches) * bytes_of(type));
    return m;
}

void fill(Matrix& m, int64_t start) {
    for (int64_t b = 0; b < m.batches; ++b) {
        for (int64_t i = 0; i < m.rows; ++i) {
            for (int64_t j = 0; j < m.cols; ++j)
                m.set(b, i, j, static_cast<double>((start + b * 53 + i * 37 + j * 11) % 23 - 11) / 16);
        }
    }
}

// One product and all that its calls are given. Tests change a member, then run it.
struct Call {
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType_t scale = CUDA_R_32F;
    int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N, pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    Matrix a, b, c, d, bias, aux;
    int32_t bias_type = -1;
    const void *a_scale = nullptr, *b_scale = nullptr;
    int32_t scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    int8_t fast_accumulation = 0;
    float alpha = 1.5f, beta = 0;
    const void *alpha_at = &alpha, *beta_at = &beta;
    bool asks_heuristic = true;
    uint64_t most_workspace = 1 << 20;
    uint32_t alignment = 256;
    cublasLtMatmulHeuristicResult_t found = {};  // of the heuristic
    char* workspace = nullptr;                   // null: it is allocated
    size_t workspace_bytes = 0;
    cudaStream_t stream = new_stream();

    Call(Call&&) = delete;

    // op(A) is of m x k, op(B) of k x n.
    Call(int64_t m, int64_t n, int64_t k, cudaDataType_t in = CUDA_R_32F, cudaDataType_t out = CUDA_R_32F, int32_t batches = 1,
         int32_t op_a = CUBLAS_OP_N, int32_t op_b = CUBLAS_OP_N, int32_t order = CUBLASLT_ORDER_COL)
        : transposed_a(op_a), transposed_b(op_b) {
        a = op_a == CUBLAS_OP_N ? new_matrix(in, m, k, batches, order) : new_matrix(in, k, m, batches, order);
        b = op_b == CUBLAS_OP_N ? new_matrix(in, k, n, batches, order) : new_matrix(in, n, k, batches, order);
        c = new_matrix(out, m, n, batches, order), d = new_matrix(out, m, n, batches, order);
        fill(a, 1), fill(b, 2), fill(c, 3);
    }

    template <class T>
    static void set(cublasLtMatmulDesc_t o, cublasLtMatmulDescAttributes_t attribute, const T& value) {
        ASSERT_EQ(cublasLtMatmulDescSetAttribute(o, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS) << refusal();
    }
    template <class T>
    static void set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
        ASSERT_EQ(cublasLtMatrixLayoutSetAttribute(l, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS) << refusal();
    }
    template <class T>
    static void set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
        ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(p, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS) << refusal();
    }

    static cublasLtMatrixLayout_t layout(const Matrix& m) {
        cublasLtMatrixLayout_t l = nullptr;
        EXPECT_EQ(cublasLtMatrixLayoutCreate(&l, m.type, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.cols), m.ld),
                  CUBLAS_STATUS_SUCCESS);
        set(l, CUBLASLT_MATRIX_LAYOUT_ORDER, m.order);
        set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, m.batches);
        set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.stride);
        return l;
    }

    cublasLtMatmulDesc_t operation() const {
        cublasLtMatmulDesc_t o = nullptr;
        EXPECT_EQ(cublasLtMatmulDescCreate(&o, compute, scale), CUBLAS_STATUS_SUCCESS);
        set(o, CUBLASLT_MATMUL_DESC_TRANSA, transposed_a);
        set(o, CUBLASLT_MATMUL_DESC_TRANSB, transposed_b);
        set(o, CUBLASLT_MATMUL_DESC_POINTER_MODE, pointer_mode);
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        set(o, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
        set(o, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, bias.stride);
        set(o, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data);
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux.ld);
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, aux.stride);
        set(o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale);
        set(o, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale);
        set(o, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode);
        set(o, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b_scale_mode);
        set(o, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast_accumulation);
        return o;
    }

    cublasStatus_t run() {
        cublasLtHandle_t handle = nullptr;
        EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
        const cublasLtMatmulDesc_t o = operation();
        const cublasLtMatrixLayout_t la = layout(a), lb = layout(b), lc = layout(c), ld = layout(d);
        cublasLtMatmulPreference_t preference = nullptr;
        EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
        set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace);
        for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(preference, which, alignment);
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        int returned = 0;
        if (asks_heuristic && found.workspaceSize == 0)
            status = cublasLtMatmulAlgoGetHeuristic(handle, o, la, lb, lc, ld, preference, 1, &found, &returned);
        if (asks_heuristic && !workspace && found.workspaceSize > 0) {
            workspace = device_memory<char>(found.workspaceSize);
            workspace_bytes = found.workspaceSize;
        }
        if (status == CUBLAS_STATUS_SUCCESS) {
            status = cublasLtMatmul(handle, o, alpha_at, a.data, la, b.data, lb, beta_at, c.data, lc, d.data, ld,
                                    asks_heuristic ? &found.algo : nullptr, workspace, workspace_bytes, stream);
        }
        for (const cublasLtMatrixLayout_t l : {la, lb, lc, ld}) EXPECT_EQ(cublasLtMatrixLayoutDestroy(l), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(cublasLtMatmulDescDestroy(o), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
        return status;
    }

    void must_run() {
        ASSERT_EQ(run(), CUBLAS_STATUS_SUCCESS) << refusal();
        ok(cudaStreamSynchronize(stream));
    }

    void refused(cublasStatus_t expected, const std::string& why) {
        EXPECT_STREQ(cublasLtGetStatusName(run()), cublasLtGetStatusName(expected));
        EXPECT_NE(refusal().find(why), std::string::npos) << refusal();
    }

    // In double, before the epilogue.
    double sum(int64_t batch, int64_t i, int64_t j, double of_c) const {
        const int64_t depth = transposed_a == CUBLAS_OP_N ? a.cols : a.rows;
        double sum = 0;
        for (int64_t p = 0; p < depth; ++p) {
            sum += (transposed_a == CUBLAS_OP_N ? a.get(batch, i, p) : a.get(batch, p, i)) *
                   (transposed_b == CUBLAS_OP_N ? b.get(batch, p, j) : b.get(batch, j, p));
        }
        return alpha * sum + (beta == 0 ? 0 : beta * of_c);
    }

    // D is `of(sum, ...)` at each position, given C as it was.
    void expect_d(const std::vector<double>& old_c,
                  const std::function<double(double sum, int64_t, int64_t, int64_t)>& of) const {
        size_t next = 0;
        for (int64_t batch = 0; batch < d.batches; ++batch) {
            for (int64_t i = 0; i < d.rows; ++i) {
                for (int64_t j = 0; j < d.cols; ++j) {
                    const double wanted = of(sum(batch, i, j, old_c[next++]), batch, i, j);
                    ASSERT_NEAR(d.get(batch, i, j), wanted, 1e-5 + rounding(d.type) * std::abs(wanted))
                        << batch << " " << i << " " << j;
                }
            }
        }
    }
    void expect_d(const std::vector<double>& old_c) const {
        expect_d(old_c, [](double x, int64_t, int64_t, int64_t) { return x; });
    }
};

std::vector<double> values(const Matrix& m) {
    std::vector<double> all;
    for (int64_t batch = 0; batch < m.batches; ++batch) {
        for (int64_t i = 0; i < m.rows; ++i) {
            for (int64_t j = 0; j < m.cols; ++j) all.push_back(m.get(batch, i, j));
        }
    }
    return all;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_gradient(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

struct Types {
    cudaDataType_t in, out;
};
constexpr Types kTypes[] = {{CUDA_R_32F, CUDA_R_32F},
                            {CUDA_R_16BF, CUDA_R_16BF},
                            {CUDA_R_16BF, CUDA_R_32F},
                            {CUDA_R_16F, CUDA_R_16F},
                            {CUDA_R_16F, CUDA_R_32F}};

TEST_F(FakesCublasLt, ProductsOfAllTypesTransposesBatchesAndOrders) {
    for (const Types& types : kTypes) {
        for (int32_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
            for (int32_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
                for (int32_t batches : {1, 3}) {
                    for (int32_t order : {CUBLASLT_ORDER_COL, CUBLASLT_ORDER_ROW}) {
                        for (float beta : {0.0f, 0.5f}) {
                            reset(1);
                            SCOPED_TRACE(fmt::format("types {} {}, ops {} {}, {} batches, order {}, beta {}",
                                                     static_cast<int>(types.in), static_cast<int>(types.out), op_a, op_b, batches,
                                                     order, beta));
                            Call call(19, 13, 17, types.in, types.out, batches, op_a, op_b, order);
                            call.beta = beta;
                            const std::vector<double> old_c = values(call.c);
                            call.must_run();
                            call.expect_d(old_c);
                        }
                    }
                }
            }
        }
    }
}

TEST_F(FakesCublasLt, LargerProductsAgreeToo) {
    for (int32_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        Call call(130, 70, 200, CUDA_R_16BF, CUDA_R_32F, 1, op_a);
        call.must_run();
        call.expect_d(values(call.c));
    }
}

TEST_F(FakesCublasLt, ProductTouchesNothingBetweenColumns) {
    Call call(5, 4, 3);
    call.must_run();
    for (int64_t j = 0; j < 4; ++j) EXPECT_TRUE(std::isnan(element(call.d.data, Dtype::F32, 5 + j * call.d.ld)));
}

TEST_F(FakesCublasLt, TensorFloat32RoundsOperands) {
    const auto product = [](cublasComputeType_t compute) {
        Call call(1, 1, 1);
        call.compute = compute, call.alpha = 1;
        call.a.set(0, 0, 0, 1 + 0x1p-12);
        call.b.set(0, 0, 0, 1 + 0x1p-10);
        call.must_run();
        return call.d.get(0, 0, 0);
    };
    EXPECT_EQ(product(CUBLAS_COMPUTE_32F), (1 + 0x1p-12) * (1 + 0x1p-10));
    EXPECT_EQ(product(CUBLAS_COMPUTE_32F_FAST_TF32), 1 + 0x1p-10);
}

// ---- Epilogues.

Call& with_bias(Call& call) {
    call.bias = {call.d.type, call.d.rows, 1, call.d.rows, CUBLASLT_ORDER_COL, call.d.batches, call.d.rows};
    call.bias.data = device_memory<char>(static_cast<size_t>(call.d.rows * call.d.batches) * bytes_of(call.d.type));
    fill(call.bias, 7);
    return call;
}

Call& with_aux(Call& call) {
    call.aux = {call.d.type, call.d.rows, call.d.cols, 24, CUBLASLT_ORDER_COL, call.d.batches, 24 * call.d.cols};
    call.aux.data = device_memory<char>(static_cast<size_t>(call.aux.stride * call.d.batches) * bytes_of(call.d.type));
    fill(call.aux, 5);
    return call;
}

TEST_F(FakesCublasLt, EpiloguesOfTheForwardPass) {
    for (const Types& types : kTypes) {
        for (uint32_t epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
                                  CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}) {
            reset(1);
            SCOPED_TRACE(epilogue);
            Call call(19, 13, 17, types.in, types.out, 2, CUBLAS_OP_T);
            call.epilogue = epilogue, call.beta = 0.5f;
            with_aux(with_bias(call));
            const bool has_bias = epilogue & CUBLASLT_EPILOGUE_BIAS, has_gelu = epilogue & CUBLASLT_EPILOGUE_GELU;
            const std::vector<double> old_aux = values(call.aux);
            call.must_run();
            const auto before_gelu = [&](double x, int64_t batch, int64_t i) {
                return x + (has_bias ? call.bias.get(batch, i, 0) : 0);
            };
            call.expect_d(values(call.c), [&](double x, int64_t batch, int64_t i, int64_t) {
                return has_gelu ? gelu(before_gelu(x, batch, i)) : before_gelu(x, batch, i);
            });
            if ((epilogue & CUBLASLT_EPILOGUE_GELU_AUX) != CUBLASLT_EPILOGUE_GELU_AUX) {
                EXPECT_EQ(values(call.aux), old_aux);
                continue;
            }
            std::swap(call.aux, call.d);
            call.expect_d(values(call.c), [&](double x, int64_t batch, int64_t i, int64_t) { return before_gelu(x, batch, i); });
        }
    }
}

TEST_F(FakesCublasLt, EpiloguesOfTheBackwardPass) {
    for (const Types& types : kTypes) {
        for (uint32_t epilogue : {CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD}) {
            reset(1);
            Call call(19, 13, 17, types.in, types.out, 2);
            call.epilogue = epilogue;
            with_aux(with_bias(call));
            call.must_run();
            call.expect_d(values(call.c), [&](double x, int64_t batch, int64_t i, int64_t j) {
                return x * gelu_gradient(call.aux.get(batch, i, j));
            });
            for (int64_t i = 0; epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD && i < 19; ++i) {
                double sum = 0;
                for (int64_t j = 0; j < 13; ++j) sum += call.d.get(1, i, j);
                EXPECT_NEAR(call.bias.get(1, i, 0), sum, 13 * rounding(types.out));
            }
        }
    }
}

TEST_F(FakesCublasLt, GradientsOfABiasFromTheOperands) {
    for (int32_t op : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        for (uint32_t epilogue : {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
            Call call(19, 13, 17, CUDA_R_16BF, CUDA_R_32F, 1, op, op);
            call.epilogue = epilogue;
            with_bias(call);
            call.must_run();
            call.expect_d(values(call.c));
            const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
            const Matrix& m = of_a ? call.a : call.b;
            for (int64_t i = 0; i < (of_a ? 19 : 13); ++i) {
                double sum = 0;
                for (int64_t k = 0; k < 17; ++k) sum += (op == CUBLAS_OP_N) == of_a ? m.get(0, i, k) : m.get(0, k, i);
                EXPECT_NEAR(call.bias.get(0, i, 0), sum, 1e-5);
            }
        }
    }
}

TEST_F(FakesCublasLt, EpiloguesHaveConditions) {
    {
        Call call(16, 8, 8, CUDA_R_16BF, CUDA_R_16BF, 1, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_ORDER_ROW);
        call.epilogue = CUBLASLT_EPILOGUE_BIAS;
        with_bias(call).refused(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue needs D in column-major order");
    }
    Call call(16, 8, 8, CUDA_R_16BF, CUDA_R_16BF);
    call.epilogue = CUBLASLT_EPILOGUE_BIAS;
    static float host[16];
    call.bias.data = reinterpret_cast<char*>(host);
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the bias: this is no memory of a device");
    call.found = {};
    with_bias(call).bias_type = CUDA_R_32F;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "the type of the bias is not the one of D");
    call.bias_type = CUDA_R_16BF;
    call.must_run();
    call.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, call.found = {};
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "must be a multiple of 8 and at least 16");
    with_aux(call).aux.stride = 4;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "must be a multiple of 8");
    call.epilogue = CUBLASLT_EPILOGUE_RELU;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "the fake does not know epilogue 2");
}

// An address says how the bias and the auxiliary matrix will be aligned, long before they are read.
TEST_F(FakesCublasLt, HeuristicTakesTheAlignmentOfAnEpiloguesAddresses) {
    Call call(8, 8, 8);
    call.epilogue = CUBLASLT_EPILOGUE_BIAS;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the address of the bias is null");
    with_bias(call).bias.data += 2;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "an alignment is less than an element's");
    call.epilogue = CUBLASLT_EPILOGUE_DGELU;
    with_aux(call).aux.data = nullptr;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the address of the auxiliary matrix is null");
    with_aux(call).must_run();
}

TEST_F(FakesCublasLt, HeuristicMayHaveNoAlgorithmForAnEpilogue) {
    Call call(8, 8, 8);
    set_epilogue_without_algorithm(CUBLASLT_EPILOGUE_BIAS);
    call.must_run();
    call.epilogue = CUBLASLT_EPILOGUE_BIAS, call.found = {};
    with_bias(call).refused(CUBLAS_STATUS_NOT_SUPPORTED, "a test lets it lack an algorithm");
    set_epilogue_without_algorithm(0);
    call.must_run();
}

// ---- C and D.

TEST_F(FakesCublasLt, ResultMayReplaceC) {
    Call call(19, 13, 17);
    call.beta = 2;
    const std::vector<double> old_c = values(call.c);
    call.d = call.c;
    call.must_run();
    call.expect_d(old_c);
    call.d.ld -= 4;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "another product");
    call.found = {};
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "C and D are one matrix, but their layouts differ");
}

TEST_F(FakesCublasLt, CIsNotReadWithoutBetaAndMayBeBroadcast) {
    Call call(6, 5, 4);
    call.c = new_matrix(CUDA_R_32F, 6, 5);
    call.must_run();
    call.expect_d(values(call.c));
    Call broadcast(6, 5, 4);
    broadcast.beta = 1, broadcast.c.ld = 0;
    broadcast.must_run();
    broadcast.expect_d(values(broadcast.c));
}

TEST_F(FakesCublasLt, WhatIsWrittenOverlapsNothingElse) {
    Call call(8, 8, 8);
    call.d.data = call.a.data;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "D overlaps A");
    call.d.data = call.c.data = device_memory<char>(4000);
    call.c.data += 256;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "D overlaps C");
}

// Heads of attention lie beside each other in one row: batches of a product lie between each other's columns.
TEST_F(FakesCublasLt, MatricesMayLieBetweenEachOthersColumns) {
    Call call(8, 6, 8, CUDA_R_32F, CUDA_R_32F, 3);
    Matrix both = new_matrix(CUDA_R_32F, 2 * 64, 6);
    call.d.data = both.data, call.d.ld = both.ld, call.d.stride = 8;
    call.c = call.d;
    call.b = call.d;
    call.b.data = both.data + 64 * 4;
    fill(call.b, 2);
    call.must_run();
    call.expect_d(values(call.c));
    call.d.stride = call.c.stride = 7, call.found = {};
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "batches of D overlap");
}

// ---- What is supported.

TEST_F(FakesCublasLt, OtherTypesAreNotSupported) {
    const auto refused = [](cudaDataType_t in, cudaDataType_t out, cublasComputeType_t compute) {
        Call call(8, 8, 8, in, out);
        call.compute = compute;
        call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "there is no product of compute type");
    };
    refused(CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
    refused(CUDA_R_16F, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
    refused(CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F_FAST_TF32);
    refused(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_64F);
    Call mixed(8, 8, 8, CUDA_R_16BF, CUDA_R_32F);
    mixed.b = new_matrix(CUDA_R_16F, 8, 8);
    mixed.refused(CUBLAS_STATUS_NOT_SUPPORTED, "there is no product");
    Call scaled(8, 8, 8);
    scaled.scale = CUDA_R_16F;
    scaled.refused(CUBLAS_STATUS_NOT_SUPPORTED, "there is no product");
}

TEST_F(FakesCublasLt, LayoutsMustFitEachOther) {
    const auto refused = [](const std::string& why, const std::function<void(Call&)>& change) {
        Call call(8, 6, 4);
        change(call);
        call.refused(CUBLAS_STATUS_INVALID_VALUE, why);
    };
    refused("op(A) is of 8 x 4, op(B) of 5 x 6", [](Call& c) { c.b.rows = 5; });
    refused("D of 8 x 7", [](Call& c) { c.d.cols = 7; });
    refused("A's leading dimension 7 is less than 8", [](Call& c) { c.a.ld = 7; });
    refused("D's leading dimension 0", [](Call& c) { c.d.ld = 0; });
    refused("different numbers of batches", [](Call& c) { c.b.batches = 2; });
    refused("C and D are of different orders", [](Call& c) { c.c.order = CUBLASLT_ORDER_ROW; });
    refused("no such operation", [](Call& c) { c.transposed_a = 9; });
}

TEST_F(FakesCublasLt, OperandsAreMemoryOfTheDevice) {
    const auto refused = [](const std::string& why, const std::function<void(Call&)>& change) {
        Call call(8, 6, 4);
        change(call);
        call.refused(CUBLAS_STATUS_INVALID_VALUE, why);
    };
    static float host[1000];
    refused("A: this is no memory of a device", [](Call& c) { c.a.data = reinterpret_cast<char*>(host); });
    refused("B: this is no memory of a device", [](Call& c) { c.b.data = pinned_memory<char>(10000); });
    refused("D: 296 bytes at offset 0 leave their allocation of 295 bytes", [](Call& c) {
        c.d.ld = c.c.ld = 14;
        c.d.cols = c.c.cols = c.b.cols = 6;
        c.d.data = device_memory<char>(14 * 5 * 4 + 8 * 4 - 17);
        c.d.rows = c.c.rows = c.a.rows = 4;
    });
    refused("an address is null", [](Call& c) { c.d.data = nullptr; });
    set_device_count(2);
    refused("A: this is memory of another device", [](Call& c) {
        ok(cudaSetDevice(1));
        c.a = new_matrix(CUDA_R_32F, 8, 4);
        ok(cudaSetDevice(0));
    });
}

// ---- Float8.

// op(A) is transposed, op(B) is not: what compute capability 9.0 has.
class Float8Call : public Call {
public:
    Float8Call(int64_t m, int64_t n, int64_t k, cudaDataType_t a_type, cudaDataType_t b_type, cudaDataType_t out,
               int32_t op_a = CUBLAS_OP_T, int32_t op_b = CUBLAS_OP_N)
        : Call(m, n, k, CUDA_R_32F, out, 1, op_a, op_b) {
        a = without_room(a_type, a.rows, a.cols, 1), b = without_room(b_type, b.rows, b.cols, 2);
        c = without_room(out, m, n, 3), d = without_room(out, m, n, 4);
        auto* const scales = device_memory<float>(2);
        scales[0] = 0.5f, scales[1] = 3;
        a_scale = scales, b_scale = scales + 1;
        alpha = 1;
    }

private:
    static Matrix without_room(cudaDataType_t type, int64_t rows, int64_t cols, int64_t start) {
        Matrix m{type, rows, cols, rows};
        m.stride = rows * cols;
        m.data = device_memory<char>(static_cast<size_t>(m.stride) * bytes_of(type));
        fill(m, start);
        return m;
    }
};

TEST_F(FakesCublasLt, ProductsOfFloat8AreScaled) {
    for (const auto& [a, b] :
         {std::pair{CUDA_R_8F_E4M3, CUDA_R_8F_E4M3}, {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}, {CUDA_R_8F_E5M2, CUDA_R_8F_E4M3}}) {
        for (const cudaDataType_t out : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F}) {
            for (const float beta : {0.0f, 1.0f}) {
                reset(1);
                Float8Call call(32, 16, 48, a, b, out);
                call.beta = beta, call.fast_accumulation = 1;
                const std::vector<double> old_c = values(call.c);
                call.must_run();
                call.alpha = 1.5;  // and so are the scales' product
                call.expect_d(old_c);
            }
        }
    }
}

TEST_F(FakesCublasLt, Float8IsTransposedAsTheGpuHasIt) {
    const auto of = [](int major, int minor, int32_t op_a, int32_t op_b) {
        reset(1);
        DeviceProperties properties;
        properties.major = major, properties.minor = minor;
        set_device_properties(properties);
        return std::make_unique<Float8Call>(16, 16, 16, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, op_a, op_b);
    };
    for (const auto& [op_a, op_b] :
         {std::pair{CUBLAS_OP_N, CUBLAS_OP_N}, {CUBLAS_OP_N, CUBLAS_OP_T}, {CUBLAS_OP_T, CUBLAS_OP_T}}) {
        for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {12, 0}})
            of(major, minor, op_a, op_b)->refused(CUBLAS_STATUS_NOT_SUPPORTED, "op(A) of float8 is transposed and op(B) is not");
        of(10, 0, op_a, op_b)->must_run();
    }
    of(8, 9, CUBLAS_OP_T, CUBLAS_OP_N)->must_run();
    of(8, 6, CUBLAS_OP_T, CUBLAS_OP_N)->refused(CUBLAS_STATUS_NOT_SUPPORTED, "compute capability 86 has no float8");
}

constexpr int32_t kOne = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                  kBlock = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, kTile = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                  kPower = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;

// The documentation's layouts, written out: where the scale of an element is, how many there are, and their values.
int64_t place_of_scale(int32_t mode, int64_t row, int64_t k, int64_t rows, int64_t depth) {
    if (mode == kRow) return row;
    if (mode == kBlock) return k / 128 * rows + row;
    const int64_t blocks = (depth + (mode == kTile ? 127 : 31)) / (mode == kTile ? 128 : 32), padded = (blocks + 3) / 4 * 4;
    if (mode == kTile) return row / 128 * padded + k / 128;
    const int64_t outer = row % 128, inner = k / 32 % 4;
    return (k / 128 * 4 + row / 128 * padded) * 128 + outer % 32 * 16 + outer / 32 * 4 + inner;
}
double scale_value(int64_t place) { return std::ldexp(1, static_cast<int>(place * 7 % 5) - 2); }
const void* new_scales(int32_t mode, int64_t rows, int64_t depth) {
    const int64_t count = (rows + 127) / 128 * 128 * ((depth + 127) / 128 * 4);
    auto* const bytes = device_memory<char>(static_cast<size_t>(4 * count));
    for (int64_t i = 0; i < count; ++i) set_element(bytes, mode == kPower ? Dtype::E8M0 : Dtype::F32, i, scale_value(i));
    return bytes;
}
void set_capability(int major, int minor) {
    DeviceProperties properties;
    properties.major = major, properties.minor = minor;
    set_device_properties(properties);
}

TEST_F(FakesCublasLt, ScalesOfFloat8LieAsTheDocumentationSays) {
    struct Modes {
        int32_t a, b;
        int major;
    };
    for (const Modes& modes : {Modes{kRow, kRow, 9},
                               {kRow, kRow, 10},
                               {kBlock, kBlock, 9},
                               {kBlock, kTile, 9},
                               {kTile, kBlock, 9},
                               {kPower, kPower, 10}}) {
        for (const int64_t depth : {144, 272}) {
            reset(1);
            set_capability(modes.major, 0);
            Float8Call call(160, 272, depth, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F);
            call.scale_mode = modes.a, call.b_scale_mode = modes.b;
            call.a_scale = new_scales(modes.a, 160, depth), call.b_scale = new_scales(modes.b, 272, depth);
            call.must_run();
            for (int64_t i = 0; i < 160; i += 3) {
                for (int64_t j = 0; j < 272; ++j) {
                    double sum = 0;
                    for (int64_t k = 0; k < depth; ++k)
                        sum += call.a.get(0, k, i) * scale_value(place_of_scale(modes.a, i, k, 160, depth)) *
                               call.b.get(0, k, j) * scale_value(place_of_scale(modes.b, j, k, 272, depth));
                    ASSERT_NEAR(call.d.get(0, i, j), sum, 1e-4 + 1e-5 * std::abs(sum))
                        << modes.a << modes.b << " " << i << " " << j;
                }
            }
        }
    }
}

TEST_F(FakesCublasLt, ScalesOfFloat8AreRefusedAsByGpus) {
    const auto call = [](int32_t a, int32_t b, int major, int minor = 0) {
        reset(1);
        set_capability(major, minor);
        auto made = std::make_unique<Float8Call>(128, 128, 128, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF);
        made->scale_mode = a, made->b_scale_mode = b;
        made->a_scale = new_scales(a, 128, 128), made->b_scale = new_scales(b, 128, 128);
        return made;
    };
    for (const auto& [a, b] : {std::pair{kTile, kTile}, {kRow, kOne}, {kOne, kRow}, {kRow, kBlock}, {kPower, kBlock}}) {
        for (const int major : {9, 10})
            call(a, b, major)->refused(CUBLAS_STATUS_NOT_SUPPORTED, fmt::format("the modes {} and {} of scales", a, b));
    }
    for (const auto& [a, b] : {std::pair{kRow, kRow}, {kBlock, kBlock}, {kBlock, kTile}, {kTile, kBlock}, {kPower, kPower}}) {
        for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}}) {
            const bool has = a == kPower ? major == 10 : a == kRow ? major == 9 || major == 10 : major == 9;
            if (has) call(a, b, major, minor)->must_run();
            else call(a, b, major, minor)->refused(CUBLAS_STATUS_NOT_SUPPORTED, "has no scales of the modes");
        }
    }
    auto fast = call(kBlock, kTile, 9);
    fast->fast_accumulation = 1;
    fast->refused(CUBLAS_STATUS_NOT_SUPPORTED, "sums of blocks are not accumulated fast");
    auto none = call(kRow, kRow, 9);
    none->b_scale = nullptr;
    none->refused(CUBLAS_STATUS_INVALID_VALUE, "scales of these modes have addresses");
    auto unaligned = call(kPower, kPower, 10);
    unaligned->a_scale = static_cast<const char*>(unaligned->a_scale) + 8;
    unaligned->refused(CUBLAS_STATUS_INVALID_VALUE, "scales are aligned to 16 bytes");
    auto few = call(kRow, kRow, 9);
    few->a_scale = device_memory<float>(64);
    few->refused(CUBLAS_STATUS_INVALID_VALUE, "a scale: ");
}

TEST_F(FakesCublasLt, Float8IsRefusedWhereTheDocumentationHasNone) {
    const auto refused = [](cublasStatus_t status, const std::string& why, const std::function<void(Call&)>& change) {
        reset(1);
        Float8Call call(32, 32, 32, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F);
        change(call);
        call.refused(status, why);
    };
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "there is no product", [](Call& c) { c.a.type = c.b.type = CUDA_R_8F_E5M2; });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "there is no product", [](Call& c) { c.b.type = CUDA_R_16BF; });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "the modes 1 and 0 of scales",
            [](Call& c) { c.scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3; });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "aligned to 16 bytes", [](Call& c) { c.alignment = 8; });
    refused(CUBLAS_STATUS_INVALID_VALUE, "the algorithm needs B aligned to 16 bytes", [](Call& c) {
        c.alignment = 16;
        c.b.data = device_memory<char>(32 * 32 + 8) + 8;
    });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "16, 24 and 32 of a product of float8 are no multiples of 16",
            [](Call& c) { c.b.cols = c.c.cols = c.d.cols = 24, c.a.cols = c.c.rows = c.d.rows = 16; });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "40 bytes apart, no multiple of 16", [](Call& c) {
        c.a.ld = 40;
        c.a.data = device_memory<char>(40 * 32);
    });
    refused(CUBLAS_STATUS_NOT_SUPPORTED, "no epilogues of float8", [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_GELU; });
    static float host = 1;
    refused(CUBLAS_STATUS_INVALID_VALUE, "a scale: this is no memory of a device", [](Call& c) { c.a_scale = &host; });
    Call wide(8, 8, 8);
    wide.fast_accumulation = 1;
    wide.refused(CUBLAS_STATUS_INVALID_VALUE, "scales and fast accumulation are for products of float8");
}

// ---- Algorithms and workspaces.

TEST_F(FakesCublasLt, HeuristicKeepsToTheWorkspaceThatIsPreferred) {
    for (uint64_t most : {uint64_t{256}, uint64_t{1000}, uint64_t{32} << 20}) {
        Call call(64, 64, 64);
        call.most_workspace = most;
        call.must_run();
        EXPECT_GT(call.found.workspaceSize, 0u);
        EXPECT_LE(call.found.workspaceSize, most);
        EXPECT_EQ(call.found.state, CUBLAS_STATUS_SUCCESS);
    }
    Call without(8, 8, 8);
    without.most_workspace = 0;
    without.must_run();
    EXPECT_EQ(without.found.workspaceSize, 0u);
    Call implicit(8, 8, 8);
    implicit.asks_heuristic = false;
    implicit.must_run();
}

TEST_F(FakesCublasLt, WorkspaceIsLargeAlignedAndApart) {
    Call call(64, 64, 64);
    call.must_run();
    const size_t bytes = call.workspace_bytes;
    call.workspace_bytes = bytes - 1;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, fmt::format("needs a workspace of {} bytes, it has {}", bytes, bytes - 1));
    call.workspace_bytes = bytes;
    char* const memory = device_memory<char>(bytes + 128);
    call.workspace = memory + 128;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the workspace is not aligned to 256 bytes");
    call.workspace = memory, call.workspace_bytes = bytes + 129;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the workspace: ");
    call.workspace = call.d.data, call.workspace_bytes = bytes;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the workspace overlaps D");
}

TEST_F(FakesCublasLt, WorkspaceIsOverwritten) {
    Call call(64, 64, 64);
    call.must_run();
    std::set<char> bytes(call.workspace, call.workspace + call.workspace_bytes);
    EXPECT_GT(bytes.size(), 100u);
}

// Two products in two streams must not have one workspace at a time.
TEST_F(FakesCublasLt, SharedWorkspaceIsNoticed) {
    const auto run = [](bool waits) {
        return results([waits] {
            Call one(16, 16, 16), other(16, 16, 16);
            EXPECT_EQ(one.run(), CUBLAS_STATUS_SUCCESS);
            other.workspace = one.workspace, other.workspace_bytes = one.workspace_bytes;
            if (waits) wait_for(other.stream, one.stream);
            EXPECT_EQ(other.run(), CUBLAS_STATUS_SUCCESS);
            const cudaError_t error = cudaDeviceSynchronize();
            if (error != cudaSuccess) {
                EXPECT_NE(refusal().find("cublasLtMatmul failed on the device: something else has used its workspace"),
                          std::string::npos);
            }
            return error;
        });
    };
    EXPECT_EQ(run(true), (std::set{cudaSuccess}));
    EXPECT_EQ(run(false), (std::set{cudaSuccess, cudaErrorLaunchFailure}));
}

TEST_F(FakesCublasLt, AddressesAreAlignedAsWasPreferred) {
    Call call(8, 8, 8);
    call.a.data += 16;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the algorithm needs A aligned to 256 bytes");
    call.found = {}, call.alignment = 16;
    call.must_run();
    call.found = {}, call.alignment = 2;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "an alignment is less than an element's");
    call.alignment = 24;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "an alignment is no power of 2");
}

TEST_F(FakesCublasLt, BiasIsAlignedAsWhenTheHeuristicWasAsked) {
    Call call(8, 8, 8);
    call.epilogue = CUBLASLT_EPILOGUE_BIAS;
    with_bias(call).must_run();
    call.bias.data = device_memory<char>(100) + 4;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "the algorithm needs the bias aligned to 256 bytes");
}

TEST_F(FakesCublasLt, AlgorithmIsForOneProduct) {
    Call call(8, 8, 8);
    call.must_run();
    call.transposed_a = CUBLAS_OP_T;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm was chosen for another product");
}

// Several algorithms for one product: each sums in another order, and all are right.
TEST_F(FakesCublasLt, AlgorithmsOfAProductDifferInTheOrderOfSums) {
    Call call(8, 8, 64);
    call.must_run();
    cublasLtMatmulAlgo_t words = call.found.algo;
    const auto number = [&](uint32_t n) {
        auto* const bytes = reinterpret_cast<char*>(&words);
        std::memcpy(bytes + 28, &n, sizeof n);  // behind hash, workspace and alignments
        call.found.algo = words;
    };
    number(2);
    call.must_run();
    number(3);
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "these words are no algorithm");
    number(0);
    call.found.algo.data[7] = 1;
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "these words are no algorithm");
}

TEST_F(FakesCublasLt, HeuristicRefusesWhatItCannotUse) {
    cublasLtHandle_t handle = nullptr;
    ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    Call call(8, 8, 8);
    const cublasLtMatmulDesc_t o = call.operation();
    const cublasLtMatrixLayout_t l = Call::layout(call.a);
    cublasLtMatmulPreference_t preference = nullptr;
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulHeuristicResult_t found;
    int returned = 7;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, o, l, l, l, l, preference, 0, &found, &returned),
              CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(nullptr, o, l, l, l, l, preference, 1, &found, &returned),
              CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, o, l, l, l, l, nullptr, 1, &found, &returned), CUBLAS_STATUS_INVALID_VALUE);
    const uint32_t epilogue = CUBLASLT_EPILOGUE_RELU;
    Call::set(o, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, o, l, l, l, l, preference, 1, &found, &returned),
              CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(returned, 0);
    cublasLtMatmulPreferenceDestroy(preference), cublasLtMatrixLayoutDestroy(l), cublasLtMatmulDescDestroy(o);
    cublasLtDestroy(handle);
}

// ---- How a product is given.

TEST_F(FakesCublasLt, ScalesOfTheHostAreReadAtOnceAndTheDevicesLate) {
    const auto run = [](bool on_device) {
        return results([on_device] {
            Call call(1, 1, 1);
            call.a.set(0, 0, 0, 1), call.b.set(0, 0, 0, 1);
            call.alpha = 2;
            auto* const scales = device_memory<float>(2);
            scales[0] = 2, scales[1] = 0;
            if (on_device) {
                call.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE;
                call.alpha_at = scales, call.beta_at = scales + 1;
            }
            EXPECT_EQ(call.run(), CUBLAS_STATUS_SUCCESS) << refusal();
            call.alpha = scales[0] = 3;
            ok(cudaStreamSynchronize(call.stream));
            return call.d.get(0, 0, 0);
        });
    };
    EXPECT_EQ(run(false), (std::set{2.0}));
    EXPECT_EQ(run(true), (std::set{2.0, 3.0}));
    Call call(1, 1, 1);
    call.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE;
    call.refused(CUBLAS_STATUS_INVALID_VALUE, "alpha: this is no memory of a device");
    call.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE_VECTOR;
    call.found = {};
    call.refused(CUBLAS_STATUS_NOT_SUPPORTED, "no vectors of alpha");
}

TEST_F(FakesCublasLt, ProductIsWorkOfItsStreamAndIsCaptured) {
    Call call(4, 4, 4);
    ok(cudaStreamBeginCapture(call.stream, cudaStreamCaptureModeRelaxed));
    ASSERT_EQ(call.run(), CUBLAS_STATUS_SUCCESS) << refusal();
    cudaGraph_t graph = nullptr;
    ok(cudaStreamEndCapture(call.stream, &graph));
    size_t nodes = 0;
    ok(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 1u);
    EXPECT_EQ(counts().launches, 1);
    ok(cudaStreamSynchronize(call.stream));
    EXPECT_TRUE(std::isnan(call.d.get(0, 0, 0)));
    cudaGraphExec_t executable = nullptr;
    ok(cudaGraphInstantiate(&executable, graph, 0));
    ok(cudaGraphLaunch(executable, call.stream));
    ok(cudaStreamSynchronize(call.stream));
    call.expect_d(values(call.c));
    call.stream = nullptr;
    call.refused(CUBLAS_STATUS_EXECUTION_FAILED, "cublasLtMatmul: this is a default stream");
}

TEST_F(FakesCublasLt, HandleIsOfADevice) {
    set_device_count(2);
    Call call(4, 4, 4);
    cublasLtHandle_t handle = nullptr;
    ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ok(cudaSetDevice(1));
    const cublasLtMatmulDesc_t o = call.operation();
    const cublasLtMatrixLayout_t l = Call::layout(call.a);
    EXPECT_EQ(cublasLtMatmul(handle, o, &call.alpha, call.a.data, l, call.b.data, l, &call.beta, call.c.data, l, call.d.data, l,
                             nullptr, nullptr, 0, call.stream),
              CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_NE(refusal().find("the handle is of another device"), std::string::npos);
    EXPECT_EQ(cublasLtMatmul(nullptr, o, &call.alpha, call.a.data, l, call.b.data, l, &call.beta, call.c.data, l, call.d.data, l,
                             nullptr, nullptr, 0, call.stream),
              CUBLAS_STATUS_NOT_INITIALIZED);
    cublasLtMatrixLayoutDestroy(l), cublasLtMatmulDescDestroy(o), cublasLtDestroy(handle);
    set_driver({});
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(FakesCublasLt, AttributesHaveSizes) {
    cublasLtMatmulDesc_t o = nullptr;
    ASSERT_EQ(cublasLtMatmulDescCreate(&o, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    int32_t type = 0;
    size_t written = 0;
    EXPECT_EQ(cublasLtMatmulDescGetAttribute(o, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type, &written),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(type, -1);
    EXPECT_EQ(written, 4u);
    EXPECT_EQ(cublasLtMatmulDescGetAttribute(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, nullptr, 0, &written),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(written, 8u);
    const auto invalid = [](cublasStatus_t status) { EXPECT_EQ(status, CUBLAS_STATUS_INVALID_VALUE); };
    invalid(cublasLtMatmulDescGetAttribute(o, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 0, nullptr));
    invalid(cublasLtMatmulDescGetAttribute(o, CUBLASLT_MATMUL_DESC_TRANSA, &type, 8, nullptr));
    invalid(cublasLtMatmulDescSetAttribute(o, CUBLASLT_MATMUL_DESC_TRANSA, &type, 1));
    invalid(cublasLtMatmulDescSetAttribute(o, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4));
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(o, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &type, 4), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(refusal(), "cublasLtMatmulDescSetAttribute: the fake does not know attribute 15");
    cublasLtMatmulDescDestroy(o);
    EXPECT_EQ(cublasLtGetVersion(), static_cast<size_t>(CUBLAS_VERSION));
    EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
    EXPECT_STREQ(cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS), "success");
}

}  // namespace
}  // namespace lockstep::fakes::cuda
