// How a backend registers its kernels. Each is a struct:
//   kFamily: the op that it serves, its name within its backend, and which result may add or work in place
//   Types: the element types that it takes and gives, as the type of a function: std::tuple<T, float>(T, int32_t). The last
//     operand's type holds for any more operands
//   kGivesAmax, where it gives the amax of its results, too (ops::kAmaxOf)
//   make(context): the kernel for one op of a rank
// and, where it asks more than the op and the types or needs a workspace, serves(context) and workspace_bytes(context), to
// which the context's rank is unknown. T: how data is stored; S: the residual stream; W: weights of norms (typed.h).
// A kernel that several backends have takes the backend as B, a struct with
//   kName: what the names of its kernels begin with
//   place(args): what its functions get first: threads, or the vendor's queue
//   kPlansOnly, where it has no functions: its kernels are planned here, and made and run elsewhere
//   the functions, with the arguments of kernels/cpu/*.h (cpu/backend.h, gpu/backend.h)
#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>

#include "base/error.h"
#include "base/storage.h"
#include "kernels/kernel.h"
#include "ops/rule.h"

namespace lockstep::kernels::registry {

struct Family {
    const char *op, *kernel;
    int accumulates = -1;  // KernelEntry's
    bool in_place = false;
};

template <class Function>
struct Signature;
template <class... Out, class... In>
struct Signature<std::tuple<Out...>(In...)> {
    static constexpr std::array<Dtype, sizeof...(In)> kIn = {kDtypeOf<In>...};
    static constexpr std::array<Dtype, sizeof...(Out)> kOut = {kDtypeOf<Out>...};
};
template <class Out, class... In>
struct Signature<Out(In...)> : Signature<std::tuple<Out>(In...)> {};

template <class Kernel>
bool takes(const KernelContext& c) {
    constexpr auto kIn = Signature<typename Kernel::Types>::kIn;
    constexpr auto kOut = Signature<typename Kernel::Types>::kOut;
    if (c.op.in.size() < kIn.size() || c.op.out.size() != kOut.size()) return false;
    if (c.op.attrs.contains(ops::kAmaxOf) != requires { Kernel::kGivesAmax; }) return false;
    for (size_t i = 0; i < c.op.in.size(); ++i) {
        if (c.in(i).dtype != kIn[std::min(i, kIn.size() - 1)]) return false;
    }
    for (size_t i = 0; i < kOut.size(); ++i) {
        if (c.out(i).dtype != kOut[i]) return false;
    }
    return true;
}

template <class B, class Kernel>
Registered registered() {
    constexpr Family f = Kernel::kFamily;
    Registered r;
    r.op = f.op, r.kernel = std::string(B::kName) + "." + f.kernel, r.result = Signature<typename Kernel::Types>::kOut[0];
    r.accumulates = f.accumulates, r.in_place = f.in_place;
    r.takes = takes<Kernel>;
    if constexpr (!requires { B::kPlansOnly; }) r.make = Kernel::make;
    if constexpr (requires { &Kernel::serves; }) r.serves = Kernel::serves;
    if constexpr (requires { &Kernel::workspace_bytes; }) r.workspace_bytes = Kernel::workspace_bytes;
    if constexpr (requires { &Kernel::is_available; }) r.is_available = Kernel::is_available;
    if constexpr (requires { &Kernel::is_slower; }) r.is_slower = Kernel::is_slower;
    return r;
}

template <class B, class... Kernels>
void add_all(std::vector<Registered>& list) {
    (list.push_back(registered<B, Kernels>()), ...);
}

template <class T = float>
const T* in(const KernelArgs& a, int i) {
    return static_cast<const T*>(a.in[i]);
}
inline const int32_t* ids(const KernelArgs& a, int i) { return in<int32_t>(a, i); }
template <class T = float>
T* out(const KernelArgs& a, int i) {
    return static_cast<T*>(a.out[i]);
}

// Result 0 of n elements, holding operand 0: copied where it is not there already.
template <class B, class T>
T* in_place(const KernelArgs& k, int64_t n) {
    const T* before = in<T>(k, 0);
    T* const now = out<T>(k, 0);
    if (before != now) B::add(B::place(k), n, &before, 1, now);
    return now;
}

// Product of the sizes of all dims but the last, and the last.
struct RowsOf {
    int64_t rows, n;
};
inline RowsOf rows_of(const KernelContext& c, const ir::Tensor& t) {
    const int64_t n = c.size(t, static_cast<int>(t.dims.size()) - 1);
    return {c.elements(t) / n, n};
}
// Rows that are as long as a bias.
inline RowsOf rows_over(const KernelContext& c, const ir::Tensor& x, const ir::Tensor& bias) {
    return {c.elements(x) / c.elements(bias), c.elements(bias)};
}
// Whether an einsum of one operand sums over its first dims.
inline bool sums_rows(const KernelContext& c) {
    if (c.op.in.size() != 1) return false;
    const std::vector<ir::DimId>&x = c.in(0).dims, &sum = c.out(0).dims;
    return !sum.empty() && sum.size() < x.size() && std::equal(sum.rbegin(), sum.rend(), x.rbegin());
}
// Of this rank's columns of x, those that are not padding.
inline int64_t valid_columns(const KernelContext& c, const ir::Tensor& x) {
    const int last = static_cast<int>(x.dims.size()) - 1;
    return std::clamp<int64_t>(c.routine.dims[x.dims[last]].valid - c.first_index(x, last), 0, c.size(x, last));
}
inline int64_t first_of_last_dim(const KernelContext& c, const ir::Tensor& x) {
    return c.first_index(x, static_cast<int>(x.dims.size()) - 1);
}
inline bool is_gelu(const KernelContext& c) { return c.op.text("fn") == "gelu"; }
inline float number(const KernelContext& c, const char* key) { return static_cast<float>(c.op.number(key)); }

}  // namespace lockstep::kernels::registry
