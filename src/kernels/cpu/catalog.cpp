// The kernels of the CPU backend, for the element types that each serves. Of those for one op and types the first is taken,
// unless a table of times says otherwise.
#include "kernels/cpu/registry/attention.h"
#include "kernels/cpu/registry/bias.h"
#include "kernels/cpu/registry/elementwise.h"
#include "kernels/cpu/registry/loss.h"
#include "kernels/cpu/registry/norms.h"
#include "kernels/cpu/registry/optimizer.h"
#include "kernels/cpu/registry/products.h"
#include "kernels/cpu/registry/quantize.h"

namespace lockstep::kernels {
namespace {

using namespace registry;
using Registry = std::vector<Registered>;

template <class... Kernels>
void add(Registry& r) {
    (r.push_back(registered<Kernels>()), ...);
}

// Parameters and activations as T.
template <class T>
void add_of_type(Registry& r) {
    add<QkvRope<T>, Add<T>, Scale<T>, Accumulate<T>, SwiGlu<T>, SwiGluBackward<T>, Rope<T>, Gather<T, T>, Scatter<T>>(r);
    add<RmsNorm<T, T, T>, RmsNormBackward<T, T>, AddRmsNorm<T, T, T>, RmsNormBackwardAdd<T, T>>(r);
    add<LayerNorm<T, T, T>, LayerNormBackward<T, T>, LayerNormBackwardAdd<T, T>>(r);
    add<Attention<T>, AttentionBackward<T>, AttentionBackward<T, int32_t>>(r);
    add<SumRows<T>, Bias<T>, BiasGelu<T>, BiasGeluBackward<T>, Dropout<T>, BiasDropoutAdd<T, T>, BiasDropoutAdd<T, T, int32_t>>(
        r);
    add<MaskPadding<T>, CrossEntropyBackward<T>, Quantize<T>, QuantizeAtRandom<T>, Dequantize<T>, DequantizeSum<T>>(r);
}

// A narrow T, and float beside it.
template <class T>
void add_narrow(Registry& r) {
    using F = float;
    add<Einsum<T, T>, Einsum<T, F>, Addmm<T>, Narrow<T>, Widen<T>>(r);
    add_of_type<T>(r);
    // The residual stream in float32.
    add<Gather<F, T>, BiasDropoutAdd<F, T>, BiasDropoutAdd<F, T, int32_t>>(r);
    add<RmsNorm<F, T, T>, RmsNormBackward<F, T>, AddRmsNorm<F, T, T>, RmsNormBackwardAdd<F, T>>(r);
    add<LayerNorm<F, T, T>, LayerNormBackward<F, T>, LayerNormBackwardAdd<F, T>>(r);
    // Weights of norms in float32; with such a stream, too, a norm's backward is that of float32.
    add<RmsNorm<T, T, F>, RmsNorm<F, T, F>, RmsNormBackward<T, F>, AddRmsNorm<T, T, F>, AddRmsNorm<F, T, F>>(r);
    add<RmsNormBackwardAdd<T, F>, LayerNorm<T, T, F>, LayerNorm<F, T, F>, LayerNormBackward<T, F>, LayerNormBackwardAdd<T, F>>(r);
}

// Weights and what optimizers remember as T.
template <class T>
void add_updates(Registry& r) {
    add<AdamW<T>, Adam<T>, SgdWithMomentum<T>, Sgd<T>, MuonMomentum<T>, Muon<T>, OuterGradient<T>, OuterSgd<T>,
        OuterSgdWithMomentum<T>>(r);
}

}  // namespace

const Registry& cpu_kernels() {
    using enum cpu::MatmulKernel;
    static const Registry all = [] {
        Registry r;
        add<Einsum<float, float>, Einsum<float, float, onednn>, Addmm<float>, Max, CrossEntropy, SumSquares>(r);
        add<AttentionRow<float>, AttentionRow<Bf16>, AttentionRow<F16>>(r);
        add_of_type<float>(r);
        add<Einsum<Bf16, Bf16, amx>, Einsum<Bf16, float, amx>, Einsum<Bf16, Bf16, bf16_dot>, Einsum<Bf16, float, bf16_dot>>(r);
        add<Addmm<Bf16, amx>, Addmm<Bf16, bf16_dot>>(r);
        add<AttentionAmx<Bf16>, AttentionBackwardAmx<Bf16>, AttentionBackwardAmx<Bf16, int32_t>>(r);
        add_narrow<Bf16>(r);
        add_narrow<F16>(r);
        add_updates<float>(r);
        add_updates<Bf16>(r);
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels
