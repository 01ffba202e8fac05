#include "kernels/gpu/any_type.h"

#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

__device__ double get(const AnyIn& x, int64_t i) {
    switch (x.type) {
        case Dtype::F32: return static_cast<const float*>(x.data)[i];
        case Dtype::F64: return static_cast<const double*>(x.data)[i];
        case Dtype::BF16: return widen(static_cast<const Bf16*>(x.data)[i]);
        case Dtype::F16: return widen(static_cast<const F16*>(x.data)[i]);
        case Dtype::I32: return static_cast<const int32_t*>(x.data)[i];
        case Dtype::I8: return static_cast<const int8_t*>(x.data)[i];
        case Dtype::F8E4M3:
        case Dtype::F8E5M2:
        case Dtype::E8M0: return 0;  // no op here reads them
    }
    return 0;
}
// Only floats.
__device__ void put(const AnyOut& y, int64_t i, double value) {
    if (y.adds) value += get({y.data, y.type}, i);
    switch (y.type) {
        case Dtype::F32: static_cast<float*>(y.data)[i] = static_cast<float>(value); return;
        case Dtype::F64: static_cast<double*>(y.data)[i] = value; return;
        case Dtype::BF16: static_cast<Bf16*>(y.data)[i] = narrow<Bf16>(static_cast<float>(value)); return;
        case Dtype::F16: static_cast<F16*>(y.data)[i] = narrow<F16>(static_cast<float>(value)); return;
        case Dtype::I32:
        case Dtype::I8:
        case Dtype::F8E4M3:
        case Dtype::F8E5M2:
        case Dtype::E8M0: return;
    }
}

struct Operands {
    AnyIn of[Einsum::kMostOperands];
};

// Takes the index of dim d from `rest`, and moves the operands' offsets by it.
__device__ __forceinline__ void next_offsets(const Einsum& s, int d, int64_t& rest, int64_t (&offsets)[Einsum::kMostOperands]) {
    const int64_t quotient = rest / s.sizes[d], index = rest - quotient * s.sizes[d];
    UNROLL
    for (int k = 0; k < Einsum::kMostOperands; ++k) offsets[k] += index * s.strides[k][d];
    rest = quotient;
}

// `Threads` threads for a result.
template <int Threads>
__global__ void __launch_bounds__(kEachThreads) einsum_kernel(Einsum s, Operands in, AnyOut out) {
    __shared__ double parts[kEachThreads / kLanes];
    constexpr int64_t kResults = kEachThreads / Threads;  // of a block
    const int64_t member = thread() % Threads;
    for (int64_t first = block() * kResults; first < s.results; first += blocks() * kResults) {
        const int64_t own = first + thread() / Threads, i = own < s.results ? own : s.results - 1;
        int64_t begin[Einsum::kMostOperands] = {};
        int64_t rest = i;
        for (int d = s.outer - 1; d >= 0; --d) next_offsets(s, d, rest, begin);
        double sum = 0;
        for (int64_t term = member; term < s.terms; term += Threads) {
            int64_t at[Einsum::kMostOperands] = {begin[0], begin[1], begin[2], begin[3]};
            rest = term;
            for (int d = s.outer + s.inner - 1; d >= s.outer; --d) next_offsets(s, d, rest, at);
            double product = 1;
            UNROLL
            for (int k = 0; k < Einsum::kMostOperands; ++k) {
                if (k < s.operands) product *= get(in.of[k], at[k]);
            }
            sum += product;
        }
        if constexpr (Threads > 1) sum = sum_over<Threads>(sum, parts);
        if (member == 0 && own < s.results) put(out, i, sum);
    }
}

__device__ double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }

struct UnaryApplied {
    UnaryOf f;
    AnyIn x;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t i) const {
        put(y, i, of(get(x, i)));
    }
    __device__ double of(double v) const {
        constexpr double kRoot = 0.79788456080286535588, kCube = 0.044715;  // sqrt(2 / pi)
        constexpr double kHalfRoot = 0.70710678118654752440;                // sqrt(1 / 2)
        switch (f.fn) {
            case Unary::Valid: return v >= 0 ? 1 : 0;
            case Unary::Log: return log(v);
            case Unary::Recip: return 1 / v;
            case Unary::Silu: return v * sigmoid_of(v);
            case Unary::SiluSlope: {
                const double s = sigmoid_of(v);
                return s * (1 + v * (1 - s));
            }
            case Unary::Gelu: return 0.5 * v * (1 + tanh(kRoot * (v + kCube * v * v * v)));
            case Unary::GeluSlope: {
                const double t = tanh(kRoot * (v + kCube * v * v * v));
                return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kRoot * (1 + 3 * kCube * v * v);
            }
            case Unary::GeluErf: return v * 0.5 * erfc(-v * kHalfRoot);
            case Unary::GeluErfSlope: return 0.5 * erfc(-v * kHalfRoot) + v * exp(-0.5 * v * v) * 0.5 * kRoot;
            case Unary::RsqrtMean: return 1 / sqrt(v * f.factor + f.eps);
            case Unary::InverseNorm: {
                const double norm = sqrt(v);
                return 1 / (norm > f.eps ? norm : f.eps);
            }
        }
        return 0;
    }
};

struct RowsCopied {
    AnyRows rows;
    AnyIn x;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t row = i / rows.n, column = i - row * rows.n;
        put(y, row * rows.to_stride + column, get(x, row * rows.from_stride + column));
    }
};

struct AddAny {
    Terms terms;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t i) const {
        double sum = 0;
        for (int k = 0; k < terms.count; ++k) sum += get(terms.of[k], i);
        put(y, i, sum);
    }
};

// The column of a row's id among those that are here; -1: it is elsewhere.
__device__ int64_t column_of(const Picked& s, const int32_t* ids, int64_t row) {
    const int64_t column = ids[row] - s.first_id;
    return column >= 0 && column < s.n ? column : -1;
}
struct PickOf {
    Picked shape;
    const int32_t* ids;
    AnyIn x;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t row) const {
        const int64_t column = column_of(shape, ids, row);
        put(y, row, column < 0 ? 0 : get(x, row * shape.n + column));
    }
};
struct UnpickOf {
    Picked shape;
    const int32_t* ids;
    AnyIn x;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t row = i / shape.n;
        put(y, i, column_of(shape, ids, row) == i % shape.n ? get(x, row) : 0);
    }
};
struct ExpShifted {
    int64_t n;
    AnyIn x, of_row;
    AnyOut y;
    template <int W>
    __device__ void at(int64_t i) const {
        put(y, i, exp(get(x, i) - get(of_row, i / n)));
    }
};

__global__ void add_one_kernel(volatile uint64_t* counter) { *counter = *counter + 1; }
__global__ void owned_kernel(const double* x, double* y) { *y = x ? *x : 0; }
__global__ void inverse_count_kernel(const double* x, AnyOut y) { put(y, 0, 1 / (*x > 1 ? *x : 1.0)); }

// A number that is neither infinite nor NaN.
__device__ bool is_finite(double x) { return x - x == 0; }

__global__ void step_control_kernel(Control how, const double* norm2, const double* loss_sum, AnyIn inverse_count,
                                    const double* lr, const double* loss_scale, double* control, double* steps) {
    const double scale = loss_scale ? *loss_scale : 1, norm = sqrt(*norm2) / scale, loss = *loss_sum * get(inverse_count, 0);
    const bool commit = is_finite(norm) && is_finite(loss);
    const double fits = how.max_norm / (norm + 1e-6);
    const double clip = (how.max_norm > 0 && commit && fits < 1 ? fits : 1.0) / scale;
    if (commit) *steps += 1;
    const double exponent = *steps > 1 ? *steps : 1.0;
    const double values[] = {*lr,  clip, commit ? 1.0 : 0.0, 1 - pow(how.beta1, exponent), 1 - pow(how.beta2, exponent),
                             norm, loss};
    for (int i = 0; i < 7; ++i) control[i] = values[i];
}

__global__ void update_loss_scale_kernel(double least, const double* scale_before, const double* counted, const double* interval,
                                         const double* control, double* scale, double* tracker) {
    const double before = *scale_before, steps = *counted + 1, half = before / 2, floor = before < least ? before : least;
    const bool commit = control[2] != 0, grows = commit && steps >= *interval;
    const double twice = before * 2 < 0x1p126 ? before * 2 : 0x1p126;
    *scale = !commit ? (half > floor ? half : floor) : grows ? twice : before;
    *tracker = commit && !grows ? steps : 0;
}

constexpr Grid kOneThread = {1, 1};

}  // namespace

void einsum(Stream stream, const Einsum& shape, const AnyIn (&in)[Einsum::kMostOperands], AnyOut out) {
    Operands operands;
    for (int k = 0; k < Einsum::kMostOperands; ++k) operands.of[k] = in[k];
    const auto start = [&](auto* kernel, int64_t threads) {
        launch(kernel, grid_of_pieces(shape.results * threads), stream, shape, operands, out);
    };
    // Few results of many terms, as a loss is one, are shared by the threads of a block.
    if (shape.terms >= kEachThreads && shape.results < kEachBlocks) start(einsum_kernel<kEachThreads>, kEachThreads);
    else start(einsum_kernel<1>, 1);
}
void unary(Stream stream, int64_t n, const UnaryOf& f, AnyIn x, AnyOut y) { for_each(stream, n, UnaryApplied{f, x, y}); }
void copy_rows_of(Stream stream, const AnyRows& rows, AnyIn x, AnyOut y) {
    for_each(stream, rows.count * rows.n, RowsCopied{rows, x, y});
}
void add_any(Stream stream, int64_t n, const Terms& terms, AnyOut y) { for_each(stream, n, AddAny{terms, y}); }
void pick(Stream stream, const Picked& shape, const int32_t* ids, AnyIn x, AnyOut y) {
    for_each(stream, shape.rows, PickOf{shape, ids, x, y});
}
void unpick(Stream stream, const Picked& shape, const int32_t* ids, AnyIn x, AnyOut y) {
    for_each(stream, shape.rows * shape.n, UnpickOf{shape, ids, x, y});
}
void exp_shifted(Stream stream, int64_t rows, int64_t n, AnyIn x, AnyIn of_row, AnyOut y) {
    for_each(stream, rows * n, ExpShifted{n, x, of_row, y});
}
void add_one(Stream stream, uint64_t* counter) { launch(add_one_kernel, kOneThread, stream, counter); }
void owned(Stream stream, const double* x, double* y) { launch(owned_kernel, kOneThread, stream, x, y); }
void inverse_count(Stream stream, const double* x, AnyOut y) { launch(inverse_count_kernel, kOneThread, stream, x, y); }
void step_control(Stream stream, const Control& how, const double* norm2, const double* loss_sum, AnyIn inverse_count,
                  const double* lr, const double* loss_scale, double* control, double* steps) {
    launch(step_control_kernel, kOneThread, stream, how, norm2, loss_sum, inverse_count, lr, loss_scale, control, steps);
}
void update_loss_scale(Stream stream, double least, const double* scale_before, const double* counted, const double* interval,
                       const double* control, double* scale, double* tracker) {
    launch(update_loss_scale_kernel, kOneThread, stream, least, scale_before, counted, interval, control, scale, tracker);
}

}  // namespace lockstep::kernels::gpu
