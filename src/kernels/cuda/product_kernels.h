// Which ops cuBLASLt serves, and with what workspace: also for who only plans them (planned.h).
#pragma once

#include <type_traits>

#include "kernels/registry/registry.h"
#include "ops/einsum.h"

namespace lockstep::kernels::cuda {

inline constexpr const char* kProductsName = "cublaslt";

// What cuBLASLt may use in a product, bytes: as NVIDIA recommends for Hopper (cublasSetWorkspace in its documentation).
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
// Of the workspace that it is given; kernels get theirs aligned to kAlignmentBytes.
inline constexpr int64_t kProductAlignment = 256;

// In the module. in, out: how operands and the result are stored.
std::unique_ptr<Kernel> make_product(const KernelContext& context, Dtype in, Dtype out);

template <class In, class Out>
struct Matmul {
    static bool serves(const KernelContext& c) {
        ops::MatmulShape shape;
        return ops::is_matmul(c.mesh, c.routine, c.op, &shape);
    }
    static int64_t workspace_bytes(const KernelContext&) { return kProductWorkspaceBytes + kProductAlignment - kAlignmentBytes; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return make_product(c, registry::kDtypeOf<In>, registry::kDtypeOf<Out>);
    }
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

// B: registry.h's, without functions.
template <class B>
std::vector<Registered> list_of_products() {
    std::vector<Registered> r;
    registry::add_all<B, Einsum<float, float>, Einsum<Bf16, float>, Einsum<F16, float>, Einsum<Bf16, Bf16>, Einsum<F16, F16>>(r);
    registry::add_all<B, Addmm<float, float>, Addmm<Bf16, float>, Addmm<F16, float>, Addmm<Bf16, Bf16>, Addmm<F16, F16>>(r);
    return r;
}

}  // namespace lockstep::kernels::cuda
