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

// sum + the products of the n operands' elements along the loop, in its order.
template <class T>
double add_products(const KernelArgs& a, size_t n, const std::vector<int64_t>& offsets, const Loop& loop, double sum) {
    if (n == 2) {  // most einsums
        const T *const x = in<T>(a, 0) + offsets[0], *const y = in<T>(a, 1) + offsets[1];
        const int64_t of_x = loop.strides[0], of_y = loop.strides[1];
        for (int64_t i = 0; i < loop.size; ++i) sum += static_cast<double>(x[i * of_x]) * static_cast<double>(y[i * of_y]);
        return sum;
    }
    for (int64_t i = 0; i < loop.size; ++i) {
        double product = 1;
        for (size_t k = 0; k < n; ++k)
            product *= static_cast<double>(in<T>(a, static_cast<int>(k))[offsets[k] + i * loop.strides[k]]);
        sum += product;
    }
    return sum;
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
    Loop fastest{1, std::vector<int64_t>(n, 0)};
    if (!inner.empty()) fastest = inner.back(), inner.pop_back();
    return kernel_from([outer, inner, fastest, n, op = c.op, offsets = std::vector<int64_t>(n)](const KernelArgs& a) mutable {
        const Store<T> out = store<T>(a, op, 0);
        std::fill(offsets.begin(), offsets.end(), 0);
        int64_t at = 0;
        for_each(outer, offsets, 0, [&] {
            double sum = 0;
            for_each(inner, offsets, 0, [&] { sum = add_products<T>(a, n, offsets, fastest, sum); });
            out(at++, sum);
        });
    });
}

template Made make_einsum<float>(const KernelContext&);
template Made make_einsum<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
