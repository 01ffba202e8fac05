// The kernels that every backend has, by the element types that they serve.
#pragma once

#include "kernels/registry/bias.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/loss.h"
#include "kernels/registry/norms.h"
#include "kernels/registry/optimizer.h"
#include "kernels/registry/qkv.h"

namespace lockstep::kernels::registry {

template <class B>
void add_common_of_float(std::vector<Registered>& r) {
    add_all<B, Max<B, float>, CrossEntropy<B, float>, SumSquares<B>>(r);
    add_all<B, AdamWOfNarrowMoments<B, float>, AdamOfNarrowMoments<B, float>>(r);
}

// Parameters and activations as T.
template <class B, class T>
void add_common(std::vector<Registered>& r) {
    add_all<B, Add<B, T>, Scale<B, T>, Accumulate<B, T>, Gather<B, T, T>, Scatter<B, T>>(r);
    add_all<B, SwiGlu<B, T>, SwiGluPacked<B, T>, SwiGluBackward<B, T>, SwiGluPackedBackward<B, T>, SwiGluBackwardAgain<B, T>,
            SwiGluPackedBackwardAgain<B, T>>(r);
    add_all<B, SplitQkv<B, T>, SplitQkv<B, T, int32_t>, JoinQkv<B, T>, JoinQkv<B, T, int32_t>>(r);
    add_all<B, RmsNorm<B, T, T, T>, RmsNormBackward<B, T, T>, AddRmsNorm<B, T, T, T>, RmsNormBackwardAdd<B, T, T>>(r);
    add_all<B, LayerNorm<B, T, T, T>, LayerNormBackward<B, T, T>, LayerNormBackwardAdd<B, T, T>>(r);
    add_all<B, SumRows<B, T>, Bias<B, T>, BiasGelu<B, T>, BiasGeluBackward<B, T>, Dropout<B, T>>(r);
    add_all<B, BiasDropoutAdd<B, T, T>, BiasDropoutAdd<B, T, T, int32_t>>(r);
    add_all<B, CrossEntropyBackward<B, T, T>, CrossEntropyGradient<B, T, T>>(r);
}

// Weights and what optimizers remember as T.
template <class B, class T>
void add_updates(std::vector<Registered>& r) {
    add_all<B, AdamW<B, T>, Adam<B, T>, Sgd<B, T>, SgdWithMomentum<B, T>, MuonMomentum<B, T>, Muon<B, T>>(r);
    add_all<B, OuterGradient<B, T>, OuterSgd<B, T>, OuterSgdWithMomentum<B, T>>(r);
}

// A narrow T, and float with it.
template <class B, class T>
void add_common_beside_float(std::vector<Registered>& r) {
    using F = float;
    add_all<B, Narrow<B, T>, Widen<B, T>, AdamW<B, F, T>, Adam<B, F, T>>(r);
    add_all<B, AdamWOfNarrowMoments<B, T>, AdamOfNarrowMoments<B, T>>(r);
    // Logits as their gradient is stored, and logits in float32.
    add_all<B, Max<B, T>, CrossEntropy<B, T>, CrossEntropyBackward<B, F, T>, CrossEntropyGradient<B, F, T>>(r);
    // The residual stream in float32.
    add_all<B, Gather<B, F, T>, BiasDropoutAdd<B, F, T>, BiasDropoutAdd<B, F, T, int32_t>>(r);
    add_all<B, RmsNorm<B, F, T, T>, RmsNormBackward<B, F, T>, AddRmsNorm<B, F, T, T>, RmsNormBackwardAdd<B, F, T>>(r);
    add_all<B, LayerNorm<B, F, T, T>, LayerNormBackward<B, F, T>, LayerNormBackwardAdd<B, F, T>>(r);
    // Weights of norms in float32; with such a stream, too, a norm's backward is that of float32.
    add_all<B, RmsNorm<B, T, T, F>, RmsNorm<B, F, T, F>, RmsNormBackward<B, T, F>, RmsNormBackwardAdd<B, T, F>>(r);
    add_all<B, AddRmsNorm<B, T, T, F>, AddRmsNorm<B, F, T, F>, LayerNorm<B, T, T, F>, LayerNorm<B, F, T, F>>(r);
    add_all<B, LayerNormBackward<B, T, F>, LayerNormBackwardAdd<B, T, F>>(r);
}

}  // namespace lockstep::kernels::registry
