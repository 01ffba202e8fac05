#include "tests/fakes/cuda/product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bfloat16.h"
#include "base/error.h"
#include "base/float16.h"
#include "base/float8.h"
#include "base/round.h"

namespace lockstep::fakes::cuda {
namespace {

constexpr int64_t kWidth = 16;  // columns of the result at once, whose sums stay in registers

template <class F>
void with_type(cudaDataType_t type, const F& f) {
    switch (type) {
        case CUDA_R_32F: return f(float{});
        case CUDA_R_16BF: return f(Bf16{});
        case CUDA_R_16F: return f(F16{});
        case CUDA_R_8F_E4M3: return f(F8E4M3{});
        case CUDA_R_8F_E5M2: return f(F8E5M2{});
        default: throw InternalError("product: a type that the checks let pass");
    }
}

// Elements that lie beside each other, and how often that many do, `ld` apart.
struct Steps {
    int64_t inner, outer;
};

Steps steps(const Layout& l) {
    const auto rows = static_cast<int64_t>(l.rows), cols = static_cast<int64_t>(l.cols);
    return l.order == CUBLASLT_ORDER_ROW ? Steps{cols, rows} : Steps{rows, cols};
}

// A batch's matrix as element (row, column): where it is, and how many elements apart rows and columns are.
struct View {
    int64_t first, row_step, col_step;
    int64_t at(int64_t row, int64_t col) const { return first + row * row_step + col * col_step; }
    View transposed() const { return {first, col_step, row_step}; }
};

View view(const Layout& l, int64_t batch) {
    const int64_t first = batch * l.batch_stride;
    return l.order == CUBLASLT_ORDER_ROW ? View{first, l.ld, 1} : View{first, 1, l.ld};
}

View operand(const Layout& l, int32_t operation, int64_t batch) {
    return operation == CUBLAS_OP_N ? view(l, batch) : view(l, batch).transposed();
}

void load(const void* from, cudaDataType_t type, const View& v, int64_t rows, int64_t cols, int64_t padded_cols, float* to) {
    with_type(type, [&](auto element) {
        const auto* elements = static_cast<const decltype(element)*>(from);
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < cols; ++j) to[i * padded_cols + j] = static_cast<float>(elements[v.at(i, j)]);
        }
    });
}

float get(const void* from, cudaDataType_t type, int64_t i) {
    float value = 0;
    with_type(type, [&](auto element) { value = static_cast<float>(static_cast<const decltype(element)*>(from)[i]); });
    return value;
}

void set(void* to, cudaDataType_t type, int64_t i, float value) {
    with_type(type, [&](auto element) {
        using T = decltype(element);
        static_cast<T*>(to)[i] = T(value);
    });
}

// To ten bits of mantissa, to the nearest, ties to even.
float tf32(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    return std::isfinite(x) ? std::bit_cast<float>((u + 0xfff + (u >> 13 & 1)) & ~0x1fffu) : x;
}

// a: [rows, all], of which columns [begin, begin + depth), and so rows of b: [all, cols]; sums: [rows, cols]; all row-major, cols a
// multiple of kWidth.
void multiply_floats(const float* a, const float* b, float* sums, int64_t rows, int64_t all, int64_t begin, int64_t depth,
                     int64_t cols) {
    a += begin, b += begin * cols;
    std::vector<float> panel(static_cast<size_t>(depth * kWidth));
    for (int64_t j = 0; j < cols; j += kWidth) {
        for (int64_t p = 0; p < depth; ++p) std::copy_n(b + p * cols + j, kWidth, panel.data() + p * kWidth);
        for (int64_t i = 0; i < rows; i += 2) {
            const int64_t other = std::min(i + 1, rows - 1);  // the last row again if there is no second one
            float sum[2][kWidth] = {};
            for (int64_t p = 0; p < depth; ++p) {
                const float factor = a[i * all + p], others = a[other * all + p];
                const float* const row = panel.data() + p * kWidth;
                for (int64_t w = 0; w < kWidth; ++w) sum[0][w] += factor * row[w];
                for (int64_t w = 0; w < kWidth; ++w) sum[1][w] += others * row[w];
            }
            std::copy_n(sum[0], kWidth, sums + i * cols + j);
            std::copy_n(sum[1], kWidth, sums + other * cols + j);
        }
    }
}

// The scale of an element of op(A), or of op(B) with its columns as rows, by the layouts of the documentation.
float scale_at(const void* scales, int32_t mode, int64_t row, int64_t k, int64_t rows, int64_t depth) {
    const auto* const floats = static_cast<const float*>(scales);
    switch (mode) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return floats[row];
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return floats[k / 128 * rows + row];
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
            return floats[row / 128 * round_up((depth + 127) / 128, int64_t{4}) + k / 128];
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: break;
        default: throw InternalError("product: a mode of scales that the checks let pass");
    }
    const int64_t block = k / 32, tiles = ((depth + 31) / 32 + 3) / 4, tile = row / 128 * tiles + block / 4;
    return static_cast<const E8M0*>(scales)[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4];
}

constexpr float kGeluScale = 0.7978845608f, kGeluCubic = 0.044715f;  // sqrt(2 / pi); by the tanh formula

float gelu(float x) { return 0.5f * x * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x))); }

float gelu_gradient(float x) {
    const float t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}

// The sums of some parts of what is summed over, one after the other.
void multiply_in_parts(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& sums, int64_t rows,
                       int64_t depth, int64_t cols, int64_t parts) {
    multiply_floats(a.data(), b.data(), sums.data(), rows, depth, 0, depth / parts, cols);
    std::vector<float> more(parts > 1 ? sums.size() : 0);
    for (int64_t part = 1; part < parts; ++part) {
        const int64_t begin = depth * part / parts, end = depth * (part + 1) / parts;
        multiply_floats(a.data(), b.data(), more.data(), rows, depth, begin, end - begin, cols);
        std::transform(sums.begin(), sums.end(), more.begin(), sums.begin(), std::plus<>());
    }
}

void multiply_batch(const Product& p, int64_t batch, float alpha, float beta, int64_t parts) {
    const Operation& o = p.operation;
    const int64_t rows = p.rows(), cols = p.cols(), depth = p.depth(), padded_cols = round_up(cols, kWidth);
    std::vector<float> a(static_cast<size_t>(rows * depth)), b(static_cast<size_t>(depth * padded_cols)),
        sums(static_cast<size_t>(rows * padded_cols));
    load(p.at_a, p.a.type, operand(p.a, o.transposed_a, batch), rows, depth, depth, a.data());
    load(p.at_b, p.b.type, operand(p.b, o.transposed_b, batch), depth, cols, padded_cols, b.data());

    const auto bias_type = o.bias_type == -1 ? p.d.type : static_cast<cudaDataType_t>(o.bias_type);
    const int64_t first_bias = batch * o.bias_stride;
    for (int64_t i = 0; p.epilogue.sums_of_a && i < rows; ++i) {
        float sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += a[static_cast<size_t>(i * depth + k)];
        set(o.bias, bias_type, first_bias + i, sum);
    }
    for (int64_t j = 0; p.epilogue.sums_of_b && j < cols; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += b[static_cast<size_t>(k * padded_cols + j)];
        set(o.bias, bias_type, first_bias + j, sum);
    }
    if (o.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
        std::transform(a.begin(), a.end(), a.begin(), tf32);
        std::transform(b.begin(), b.end(), b.begin(), tf32);
    }
    if (o.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) {
        for (const void* scale : {o.a_scale, o.b_scale}) alpha *= scale ? *static_cast<const float*>(scale) : 1;
    } else {
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t i = 0; i < rows; ++i)
                a[static_cast<size_t>(i * depth + k)] *= scale_at(o.a_scale, o.a_scale_mode, i, k, rows, depth);
            for (int64_t j = 0; j < cols; ++j)
                b[static_cast<size_t>(k * padded_cols + j)] *= scale_at(o.b_scale, o.b_scale_mode, j, k, cols, depth);
        }
    }
    multiply_in_parts(a, b, sums, rows, depth, padded_cols, parts);

    const View c = view(p.c, batch), d = view(p.d, batch), aux{batch * o.aux_stride, 1, o.aux_ld};
    for (int64_t i = 0; i < rows; ++i) {
        const float bias = p.epilogue.bias ? get(o.bias, bias_type, first_bias + i) : 0;
        float row_sum = 0;
        for (int64_t j = 0; j < cols; ++j) {
            float x = alpha * sums[static_cast<size_t>(i * padded_cols + j)] + bias;
            if (beta != 0) x += beta * get(p.at_c, p.c.type, c.at(i, j));
            if (p.epilogue.gelu && p.epilogue.aux) set(o.aux, p.d.type, aux.at(i, j), x);
            if (p.epilogue.gelu) x = gelu(x);
            if (p.epilogue.gelu_gradient) x *= gelu_gradient(get(o.aux, p.d.type, aux.at(i, j)));
            set(p.at_d, p.d.type, d.at(i, j), x);
            row_sum += x;
        }
        if (p.epilogue.row_sums) set(o.bias, bias_type, first_bias + i, row_sum);
    }
}

}  // namespace

size_t scale_bytes(int32_t mode, int64_t outer, int64_t depth) {
    const auto blocks = [&](int64_t each) { return (depth + each - 1) / each; };
    switch (mode) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return static_cast<size_t>(4 * outer);
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return static_cast<size_t>(4 * outer * blocks(128));
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
            return static_cast<size_t>(4 * ((outer + 127) / 128) * round_up(blocks(128), int64_t{4}));
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
            return static_cast<size_t>(round_up(outer, int64_t{128}) * round_up(blocks(32), int64_t{4}));
        default: return sizeof(float);
    }
}

size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : is_float8(type) ? 1 : 2; }

size_t extent_bytes(const Layout& l) {
    const Steps s = steps(l);
    const int64_t elements = (l.batch_count - 1) * l.batch_stride + (s.outer - 1) * l.ld + s.inner;
    return static_cast<size_t>(elements) * element_bytes(l.type);
}

bool overlaps_itself(const Layout& l) {
    const Steps s = steps(l);
    std::pair<int64_t, int64_t> dims[] = {{1, s.inner}, {l.ld, s.outer}, {l.batch_stride, l.batch_count}};  // stride, count
    std::sort(std::begin(dims), std::end(dims));
    int64_t extent = 1;
    for (const auto& [stride, count] : dims) {
        if (count > 1 && stride < extent) return true;
        extent += stride * (count - 1);
    }
    return false;
}

Pitch pitch_of(const Layout& l) {
    const int64_t used = steps(l).inner + (l.batch_count - 1) * l.batch_stride;
    if (used > l.ld) return {};
    const size_t bytes = element_bytes(l.type);
    return {static_cast<size_t>(l.ld) * bytes, static_cast<size_t>(used) * bytes};
}

void multiply(const Product& product, float alpha, float beta, int64_t parts) {
    for (int64_t batch = 0; batch < product.d.batch_count; ++batch) multiply_batch(product, batch, alpha, beta, parts);
}

}  // namespace lockstep::fakes::cuda
