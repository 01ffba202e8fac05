#include <algorithm>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

// A nest of loops with one running offset an operand.
struct Loop {
    int64_t size;
    std::vector<int64_t> strides;  // of operands, in elements; 0 where the operand lacks the dim
};

// Calls f(offsets) for every index of the nest, the last loop fastest.
template <class F>
void for_each(const std::vector<Loop>& loops, std::vector<int64_t>& offsets, size_t level, const F& f) {
    if (level == loops.size()) return f();
    const Loop& loop = loops[level];
    for (int64_t i = 0; i < loop.size; ++i) {
        for_each(loops, offsets, level + 1, f);
        for (size_t k = 0; k < offsets.size(); ++k) offsets[k] += loop.strides[k];
    }
    for (size_t k = 0; k < offsets.size(); ++k) offsets[k] -= loop.strides[k] * loop.size;
}

int64_t stride_of(const KernelContext& c, const ir::Tensor& t, ir::DimId d) {
    int64_t stride = 1;
    for (size_t i = t.dims.size(); i-- > 0;) {
        if (t.dims[i] == d) return stride;
        stride *= c.size(t, static_cast<int>(i));
    }
    return 0;
}

// Elements of the result, along its last dim, that are summed at the same time. Each is the sum of its own products in their own
// order, so its bits do not depend on the others.
constexpr int64_t kTogether = 8;

// Adds to each of `count` sums the products of the operands' elements along the loop, in its order. From one sum to the next an
// operand begins columns.strides[k] later.
template <class T>
void add_products(const std::vector<const T*>& operands, const Loop& loop, const Loop& columns, int64_t count, double* sums) {
    if (operands.size() == 2 && count == kTogether) {  // most einsums
        const T *const x = operands[0], *const y = operands[1];
        const int64_t x_step = loop.strides[0], y_step = loop.strides[1], x_next = columns.strides[0],
                      y_next = columns.strides[1];
        double all[kTogether];
        std::copy_n(sums, kTogether, all);
        for (int64_t i = 0; i < loop.size; ++i) {
#pragma GCC unroll 8
            for (int64_t c = 0; c < kTogether; ++c)
                all[c] += static_cast<double>(x[i * x_step + c * x_next]) * static_cast<double>(y[i * y_step + c * y_next]);
        }
        std::copy_n(all, kTogether, sums);
        return;
    }
    for (int64_t c = 0; c < count; ++c) {
        for (int64_t i = 0; i < loop.size; ++i) {
            double product = 1;
            for (size_t k = 0; k < operands.size(); ++k)
                product *= static_cast<double>(operands[k][i * loop.strides[k] + c * columns.strides[k]]);
            sums[c] += product;
        }
    }
}

}  // namespace

template <class T>
Made make_einsum(const KernelContext& c) {
    const size_t n = c.op.in.size();
    std::vector<Loop> outer, inner;
    std::vector<ir::DimId> seen;
    const auto add = [&](const ir::Tensor& t, std::vector<Loop>& loops) {
        for (size_t i = 0; i < t.dims.size(); ++i) {
            if (std::find(seen.begin(), seen.end(), t.dims[i]) != seen.end()) continue;
            seen.push_back(t.dims[i]);
            Loop loop{c.size(t, static_cast<int>(i)), {}};
            for (size_t k = 0; k < n; ++k) loop.strides.push_back(stride_of(c, c.in(k), t.dims[i]));
            loops.push_back(std::move(loop));
        }
    };
    add(c.out(0), outer);
    for (size_t k = 0; k < n; ++k) add(c.in(k), inner);
    const auto last_of = [n](std::vector<Loop>& loops) {
        Loop last{1, std::vector<int64_t>(n, 0)};
        if (!loops.empty()) last = std::move(loops.back()), loops.pop_back();
        return last;
    };
    const Loop columns = last_of(outer), fastest = last_of(inner);
    return kernel_from([outer, inner, columns, fastest, n, op = c.op, offsets = std::vector<int64_t>(n),
                        operands = std::vector<const T*>(n)](const KernelArgs& a) mutable {
        const Store<T> out = store<T>(a, op, 0);
        std::fill(offsets.begin(), offsets.end(), 0);
        int64_t at = 0;
        for_each(outer, offsets, 0, [&] {
            for (int64_t column = 0; column < columns.size; column += kTogether) {
                double sums[kTogether] = {};
                const int64_t count = std::min(kTogether, columns.size - column);
                for_each(inner, offsets, 0, [&] {
                    for (size_t k = 0; k < n; ++k)
                        operands[k] = in<T>(a, static_cast<int>(k)) + offsets[k] + column * columns.strides[k];
                    add_products(operands, fastest, columns, count, sums);
                });
                for (int64_t c = 0; c < count; ++c) out(at++, sums[c]);
            }
        });
    });
}

template Made make_einsum<float>(const KernelContext&);
template Made make_einsum<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
