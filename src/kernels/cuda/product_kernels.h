// Which ops cuBLASLt serves, and with what workspace: also for who only plans them (planned.h).
#pragma once

#include <type_traits>

#include "base/round.h"
#include "kernels/cuda/gpu_kind.h"
#include "kernels/cuda/scaled_products.h"
#include "kernels/registry/registry.h"
#include "ops/einsum.h"

namespace lockstep::kernels::cuda {

inline constexpr const char* kProductsName = "cublaslt";

// What cuBLASLt may use in a product, bytes: as NVIDIA recommends for Hopper (cublasSetWorkspace in its documentation).
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
// Kernels get a workspace aligned to kAlignmentBytes, the library one to kProductAlignment.
constexpr int64_t whole_product_bytes(int64_t of_library) { return of_library + kProductAlignment - kAlignmentBytes; }

// In the module. in, out: how operands and the result are stored. UserError runtime.no_algorithm where this GPU's library has
// none for a fused op.
std::unique_ptr<Kernel> make_product(const KernelContext& context, Dtype in, Dtype out);
// Of factors in float8, on such a GPU.
std::unique_ptr<Kernel> make_scaled_product(const KernelContext& context, GpuKind kind);

template <class In, class Out>
struct Matmul {
    static bool serves(const KernelContext& c) {
        ops::MatmulShape shape;
        return ops::is_matmul(c.mesh, c.routine, c.op, &shape);
    }
    static int64_t workspace_bytes(const KernelContext&) { return whole_product_bytes(kProductWorkspaceBytes); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_product(c, kDtypeOf<In>, kDtypeOf<Out>); }
};
template <class In, class Out>
struct Einsum : Matmul<In, Out> {
    static constexpr registry::Family kFamily{"einsum", "matmul", std::is_same_v<Out, float> ? 0 : -1};
    using Types = Out(In, In);
};
template <class In, class Out>
struct Addmm : Matmul<In, Out> {
    static constexpr registry::Family kFamily{"addmm", "matmul", -1, true};
    using Types = Out(Out, In, In);
};

// Products with an epilogue (cublasLtEpilogue_t). The bias lies along the columns of the row-major result; the auxiliary
// matrix, GELU's operand, has the result's shape and type, and rows of a multiple of kAuxColumns elements.
inline constexpr int64_t kAuxColumns = 8;
// On an RTX 4090 these epilogues were slower than GELU in a kernel of its own (llm.c's pull request 653); whether cuBLASLt has
// them for 12.0 is not known.
constexpr bool has_gelu_epilogues(int compute_capability) {
    const GpuKind kind = kind_of(compute_capability);
    return kind == GpuKind::Hopper || kind == GpuKind::Blackwell;
}

inline bool adds_bias(const KernelContext& c) {
    ops::MatmulShape shape;
    return ops::is_matmul(c.mesh, c.routine, c.op, &shape) && c.elements(c.in(2)) == shape.n;
}
inline bool has_aux(const KernelContext& c) {
    ops::MatmulShape shape;
    return ops::is_matmul(c.mesh, c.routine, c.op, &shape) && shape.n % kAuxColumns == 0;
}

template <class T>
struct Linear : Matmul<T, T> {
    static constexpr registry::Family kFamily{"linear", "matmul"};
    using Types = T(T, T, T);
    static bool serves(const KernelContext& c) { return adds_bias(c); }
};
template <class T>
struct LinearGelu : Matmul<T, T> {
    static constexpr registry::Family kFamily{"linear_gelu", "matmul"};
    using Types = T(T, T, T);
    static bool serves(const KernelContext& c) { return registry::is_gelu(c) && adds_bias(c); }
};
template <class T>
struct LinearGeluWithOperand : LinearGelu<T> {
    using Types = std::tuple<T, T>(T, T, T);
    static bool serves(const KernelContext& c) { return LinearGelu<T>::serves(c) && has_aux(c); }
};
template <class T>
struct MatmulDgelu : Matmul<T, T> {
    static constexpr registry::Family kFamily{"matmul_dgelu", "matmul"};
    using Types = T(T, T, T);
    static bool serves(const KernelContext& c) { return registry::is_gelu(c) && has_aux(c); }
};

// Products of float8.
template <class A, class B, class Out, class S, GpuKind kind>
struct ScaledMatmul {
    static constexpr registry::Family kFamily{"scaled_einsum", "scaled_matmul", std::is_same_v<Out, float> ? 0 : -1};
    using Types = Out(A, B, S, S);
    static bool serves(const KernelContext& c) { return scaled_problem(c, kind).has_value(); }
    static int64_t workspace_bytes(const KernelContext& c) {
        return whole_product_bytes(kProductWorkspaceBytes + scaled_problem(c, kind)->bytes(turns_float8(kind)));
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_scaled_product(c, kind); }
};
template <class B, GpuKind kind, class Out, class S>
void add_scaled_to(std::vector<Registered>& r) {
    registry::add_all<B, ScaledMatmul<F8E4M3, F8E4M3, Out, S, kind>, ScaledMatmul<F8E4M3, F8E5M2, Out, S, kind>,
                      ScaledMatmul<F8E5M2, F8E4M3, Out, S, kind>>(r);
}
template <class B, GpuKind kind, class S>
void add_scaled_by(std::vector<Registered>& r) {
    add_scaled_to<B, kind, float, S>(r), add_scaled_to<B, kind, Bf16, S>(r), add_scaled_to<B, kind, F16, S>(r);
}
template <class B, GpuKind kind>
void add_scaled(std::vector<Registered>& r) {
    add_scaled_by<B, kind, float>(r);
    if constexpr (has_scales(kind, ScaleMode::Power)) add_scaled_by<B, kind, E8M0>(r);
}
template <class B>
void add_scaled(std::vector<Registered>& r, int compute_capability) {
    switch (kind_of(compute_capability)) {
        case GpuKind::Ampere: return;
        case GpuKind::Ada: return add_scaled<B, GpuKind::Ada>(r);
        case GpuKind::Hopper: return add_scaled<B, GpuKind::Hopper>(r);
        case GpuKind::Blackwell: return add_scaled<B, GpuKind::Blackwell>(r);
        case GpuKind::Consumer: return add_scaled<B, GpuKind::Consumer>(r);
    }
}

template <class B, class T>
void add_with_epilogues(std::vector<Registered>& r, int compute_capability) {
    registry::add_all<B, Linear<T>>(r);
    if (has_gelu_epilogues(compute_capability)) registry::add_all<B, LinearGelu<T>, LinearGeluWithOperand<T>, MatmulDgelu<T>>(r);
}

// B: registry.h's, without functions.
template <class B>
std::vector<Registered> list_of_products(int compute_capability) {
    std::vector<Registered> r;
    registry::add_all<B, Einsum<float, float>, Einsum<Bf16, float>, Einsum<F16, float>, Einsum<Bf16, Bf16>, Einsum<F16, F16>>(r);
    registry::add_all<B, Addmm<float, float>, Addmm<Bf16, float>, Addmm<F16, float>, Addmm<Bf16, Bf16>, Addmm<F16, F16>>(r);
    add_with_epilogues<B, float>(r, compute_capability);
    add_with_epilogues<B, Bf16>(r, compute_capability);
    add_with_epilogues<B, F16>(r, compute_capability);
    add_scaled<B>(r, compute_capability);
    return r;
}

}  // namespace lockstep::kernels::cuda
