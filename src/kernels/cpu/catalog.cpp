// The kernels of the CPU backend, for the element types that each serves. Of those for one op and types the first is taken,
// unless a table of times says otherwise.
#include "kernels/cpu/backend.h"
#include "kernels/cpu/registry/attention.h"
#include "kernels/cpu/registry/float8.h"
#include "kernels/cpu/registry/products.h"
#include "kernels/cpu/registry/quantize.h"
#include "kernels/cpu/registry/tokens.h"
#include "kernels/registry/lists.h"

namespace lockstep::kernels {
namespace {

using namespace registry;
using Registry = std::vector<Registered>;

using cpu::Backend;
template <class... Kernels>
void add(Registry& r) {
    add_all<Backend, Kernels...>(r);
}

// Blocks of a ring, by the types of the operands that only some have: noise, and what earlier blocks have made.
template <template <class, class...> class Forward, template <class, class...> class Backward, class T>
void add_blocks(Registry& r) {
    add<Forward<T>, Forward<T, float>, Forward<T, int32_t, float>>(r);
    add<Backward<T>, Backward<T, int32_t>, Backward<T, int32_t, float>>(r);
}

// Parameters and activations as T.
template <class T>
void add_of_type(Registry& r) {
    add_common<Backend, T>(r);
    add<QkvRope<T>, Rope<T>, Attention<T>, AttentionBackward<T>, AttentionBackward<T, int32_t>>(r);
    add_blocks<AttentionBlock, AttentionBlockBackward, T>(r);
    add<Amax<T>, ToFloat8<T, F8E4M3>, ToFloat8<T, F8E5M2>, FromFloat8<T, F8E4M3>, FromFloat8<T, F8E5M2>>(r);
    add<ToBlocks<T, F8E4M3, E8M0>, ToBlocks<T, F8E5M2, E8M0>, ToBlocks<T, F8E4M3, float>, ToBlocks<T, F8E5M2, float>>(r);
    add<MaskPadding<T>, Quantize<T>, QuantizeAtRandom<T>, Dequantize<T>, DequantizeSum<T>>(r);
}

// Products of float8 whose results are Out, as each of the matmul kernels makes them.
template <class A, class B, class S, class Out>
void add_scaled(Registry& r) {
    using enum cpu::MatmulKernel;
    add<ScaledEinsum<A, B, S, Out, amx>, ScaledEinsum<A, B, S, Out, bf16_dot>, ScaledEinsum<A, B, S, Out, packed>>(r);
}
template <class Out>
void add_scaled(Registry& r) {
    add_scaled<F8E4M3, F8E4M3, float, Out>(r);
    add_scaled<F8E4M3, F8E5M2, float, Out>(r);
    add_scaled<F8E5M2, F8E4M3, float, Out>(r);
    add_scaled<F8E4M3, F8E4M3, E8M0, Out>(r);
}

// A narrow T, and float with it.
template <class T>
void add_narrow(Registry& r) {
    add<Einsum<T, T>, Einsum<T, float>, Addmm<T>>(r);
    add_of_type<T>(r);
    add_common_beside_float<Backend, T>(r);
}

}  // namespace

const Registry& cpu_kernels() {
    using enum cpu::MatmulKernel;
    static const Registry all = [] {
        Registry r;
        add<Einsum<float, float>, Einsum<float, float, onednn>, Addmm<float>>(r);
        add_common_of_float<Backend>(r);
        add<AttentionRow<float>, AttentionRow<Bf16>, AttentionRow<F16>>(r);
        add_of_type<float>(r);
        add<Einsum<Bf16, Bf16, amx>, Einsum<Bf16, float, amx>, Einsum<Bf16, Bf16, bf16_dot>, Einsum<Bf16, float, bf16_dot>>(r);
        add<Addmm<Bf16, amx>, Addmm<Bf16, bf16_dot>>(r);
        add<AttentionAmx<Bf16>, AttentionBackwardAmx<Bf16>, AttentionBackwardAmx<Bf16, int32_t>>(r);
        add_blocks<AttentionBlockAmx, AttentionBlockBackwardAmx, Bf16>(r);
        add_narrow<Bf16>(r);
        add_narrow<F16>(r);
        add_updates<Backend, float>(r);
        add_updates<Backend, Bf16>(r);
        add_scaled<float>(r);
        add_scaled<Bf16>(r);
        add_scaled<F16>(r);
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels
