#include "tests/fakes/cuda/product_rules.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::fakes::cuda {
namespace {

Epilogue parts(uint32_t epilogue) {
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return {};
        case CUBLASLT_EPILOGUE_BIAS: return {.bias = true};
        case CUBLASLT_EPILOGUE_GELU: return {.gelu = true};
        case CUBLASLT_EPILOGUE_GELU_BIAS: return {.gelu = true, .bias = true};
        case CUBLASLT_EPILOGUE_GELU_AUX: return {.gelu = true, .aux = true};
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return {.gelu = true, .aux = true, .bias = true};
        case CUBLASLT_EPILOGUE_DGELU: return {.gelu_gradient = true, .aux = true};
        case CUBLASLT_EPILOGUE_DGELU_BGRAD: return {.gelu_gradient = true, .aux = true, .row_sums = true};
        case CUBLASLT_EPILOGUE_BGRADA: return {.sums_of_a = true};
        case CUBLASLT_EPILOGUE_BGRADB: return {.sums_of_b = true};
        default: throw LtRefusal{kNotSupported, fmt::format("the fake does not know epilogue {}", epilogue)};
    }
}

// The table of types. C and D have one type, and so has the bias.
bool has_types(const Product& p) {
    const cudaDataType_t in = p.a.type, out = p.d.type;
    if (p.c.type != out || p.operation.scale != CUDA_R_32F) return false;
    if (is_float8(in) && is_float8(p.b.type))
        return p.operation.compute == CUBLAS_COMPUTE_32F && (in != CUDA_R_8F_E5M2 || p.b.type != CUDA_R_8F_E5M2) &&
               (out == CUDA_R_32F || out == CUDA_R_16BF || out == CUDA_R_16F);
    if (p.b.type != in) return false;
    switch (p.operation.compute) {
        case CUBLAS_COMPUTE_32F:
        case CUBLAS_COMPUTE_32F_PEDANTIC:
            return (in == CUDA_R_32F && out == CUDA_R_32F) ||
                   ((in == CUDA_R_16BF || in == CUDA_R_16F) && (out == in || out == CUDA_R_32F));
        case CUBLAS_COMPUTE_32F_FAST_TF32: return in == CUDA_R_32F && out == CUDA_R_32F;
        default: return false;
    }
}

void require_layout(const Layout& l, std::string_view name, bool may_broadcast) {
    require(l.order == CUBLASLT_ORDER_COL || l.order == CUBLASLT_ORDER_ROW, kNotSupported,
            fmt::format("the fake does not know {}'s order {}", name, l.order));
    require(l.rows > 0 && l.cols > 0, kInvalid, fmt::format("{} is of {} x {}", name, l.rows, l.cols));
    const auto least = static_cast<int64_t>(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows);
    require(l.ld >= least || (may_broadcast && l.ld == 0), kInvalid,
            fmt::format("{}'s leading dimension {} is less than {}", name, l.ld, least));
    require(l.batch_count > 0 && l.batch_stride >= 0, kInvalid,
            fmt::format("{} has {} batches with stride {}", name, l.batch_count, l.batch_stride));
}

// Sizes fit each other; op(A) is [m, k], op(B) [k, n], C and D [m, n].
void require_shapes(const Product& p) {
    const auto turned = [](const Layout& l, int32_t operation) {
        return operation == CUBLAS_OP_N ? std::pair(l.rows, l.cols) : std::pair(l.cols, l.rows);
    };
    const auto [m, k] = turned(p.a, p.operation.transposed_a);
    const auto [k_of_b, n] = turned(p.b, p.operation.transposed_b);
    require(k == k_of_b && p.d.rows == m && p.d.cols == n && p.c.rows == m && p.c.cols == n, kInvalid,
            fmt::format("op(A) is of {} x {}, op(B) of {} x {}, C of {} x {}, D of {} x {}", m, k, k_of_b, n, p.c.rows, p.c.cols,
                        p.d.rows, p.d.cols));
    const int32_t batches = p.d.batch_count;
    require(p.a.batch_count == batches && p.b.batch_count == batches && p.c.batch_count == batches, kInvalid,
            "A, B, C and D have different numbers of batches");
    require(!overlaps_itself(p.d), kInvalid, "batches of D overlap");
    require(p.c.order == p.d.order, kInvalid, "C and D are of different orders");
}

void require_epilogue(const Product& p) {
    const Operation& o = p.operation;
    require(o.epilogue == CUBLASLT_EPILOGUE_DEFAULT || p.d.order == CUBLASLT_ORDER_COL, kNotSupported,
            "an epilogue needs D in column-major order");
    require(!p.epilogue.uses_bias() || o.bias_type == -1 || o.bias_type == p.d.type, kNotSupported,
            "the type of the bias is not the one of D");
    if (!p.epilogue.aux) return;
    require(o.aux_type == -1 || o.aux_type == p.d.type, kInvalid, "the type of the auxiliary matrix is not the one of D");
    require(o.aux_ld % 8 == 0 && o.aux_ld >= p.rows(), kInvalid,
            fmt::format("the auxiliary matrix has the leading dimension {}; it must be a multiple of 8 and at least {}", o.aux_ld,
                        p.rows()));
    require(o.aux_stride % 8 == 0, kInvalid, "the stride between batches of the auxiliary matrix must be a multiple of 8");
}

// "Narrow precision data types usage" in the documentation of cuBLASLt: which modes go together, and on which GPUs.
void require_scale_modes(const Operation& o, int compute_capability) {
    constexpr auto kAll = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                   kBlock = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, kTile = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                   kPower = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    const auto are = [&](int32_t a, int32_t b) { return o.a_scale_mode == a && o.b_scale_mode == b; };
    if (are(kAll, kAll)) return;
    const bool is_in_blocks = are(kBlock, kBlock) || are(kBlock, kTile) || are(kTile, kBlock);
    require(is_in_blocks || are(kRow, kRow) || are(kPower, kPower), kNotSupported,
            fmt::format("the fake does not know the modes {} and {} of scales", o.a_scale_mode, o.b_scale_mode));
    const bool is_hopper = compute_capability == 90, is_blackwell = compute_capability / 10 == 10;
    require(are(kPower, kPower) ? is_blackwell
            : is_in_blocks      ? is_hopper
                                : is_hopper || is_blackwell,
            kNotSupported,
            fmt::format("compute capability {} has no scales of the modes {} and {}", compute_capability, o.a_scale_mode,
                        o.b_scale_mode));
    require(o.a_scale && o.b_scale, kInvalid, "scales of these modes have addresses");
    require(!is_in_blocks || o.fast_accumulation == 0, kNotSupported, "sums of blocks are not accumulated fast");
}

// "FP8 kernels" in the documentation of cublasLtMatmul.
void require_float8(const Product& p, int compute_capability) {
    const Operation& o = p.operation;
    const bool is_scaled = o.a_scale || o.b_scale || o.a_scale_mode != 0 || o.b_scale_mode != 0;
    require(is_float8(p.a.type) || (!is_scaled && o.fast_accumulation == 0), kInvalid,
            "scales and fast accumulation are for products of float8");
    if (!is_float8(p.a.type)) return;
    require(compute_capability >= 89, kNotSupported, fmt::format("compute capability {} has no float8", compute_capability));
    require_scale_modes(o, compute_capability);
    const bool takes_all = compute_capability / 10 == 10;
    require(takes_all || (o.transposed_a == CUBLAS_OP_T && o.transposed_b == CUBLAS_OP_N), kNotSupported,
            fmt::format("on compute capability {} op(A) of float8 is transposed and op(B) is not", compute_capability));
    require(o.epilogue == CUBLASLT_EPILOGUE_DEFAULT, kNotSupported, "the fake knows no epilogues of float8");
    for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) {
        require(l->order == CUBLASLT_ORDER_COL, kNotSupported, "matrices of a product of float8 are in column-major order");
        const auto bytes = l->ld * static_cast<int64_t>(element_bytes(l->type));
        require(bytes % kFloat8Alignment == 0, kNotSupported,
                fmt::format("columns of a product of float8 are {} bytes apart, no multiple of 16", bytes));
    }
    require(p.rows() % 16 == 0 && p.cols() % 16 == 0 && p.depth() % 16 == 0, kNotSupported,
            fmt::format("the sizes {}, {} and {} of a product of float8 are no multiples of 16", p.rows(), p.cols(), p.depth()));
}

}  // namespace

Product checked(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d, int compute_capability) {
    const auto is_operation = [](int32_t x) { return x == CUBLAS_OP_N || x == CUBLAS_OP_T || x == CUBLAS_OP_C; };
    require(is_operation(o.transposed_a) && is_operation(o.transposed_b), kInvalid, "there is no such operation on A or B");
    require(o.pointer_mode == CUBLASLT_POINTER_MODE_HOST || o.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE, kNotSupported,
            "the fake knows no vectors of alpha");
    const Product p{o, parts(o.epilogue), a, b, c, d, nullptr, nullptr, nullptr, nullptr};
    require(has_types(p), kNotSupported,
            fmt::format("there is no product of compute type {}, scale type {}, A {}, B {}, C {}, D {}",
                        static_cast<int>(o.compute), static_cast<int>(o.scale), static_cast<int>(a.type),
                        static_cast<int>(b.type), static_cast<int>(c.type), static_cast<int>(d.type)));
    require_layout(a, "A", false), require_layout(b, "B", false), require_layout(c, "C", true), require_layout(d, "D", false);
    require_shapes(p);
    require_epilogue(p);
    require_float8(p, compute_capability);
    return p;
}

}  // namespace lockstep::fakes::cuda
