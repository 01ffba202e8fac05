// Cross-entropy on a shard of the vocabulary, in pieces between which ranks reduce.
// Shapes and formulas as in kernels/cpu/loss.h.
#pragma once

#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// L: how logits are stored, T: their gradient.
template <class L>
void row_max(Stream stream, int64_t rows, int64_t n, const L* logits, float* m);
template <class L>
void cross_entropy(Stream stream, int64_t rows, int64_t n, const L* logits, const float* m, const int32_t* targets,
                   int64_t first_id, float* z, float* t);
// d_logits may alias logits.
template <class L, class T>
void cross_entropy_backward(Stream stream, int64_t rows, int64_t n, const float* d_z, const float* d_t, const L* logits,
                            const float* m, const int32_t* targets, int64_t first_id, T* d_logits);

// All of it for whole rows of the vocabulary, with d_z = d_nll / z. d_logits may alias logits.
template <class L, class T>
void cross_entropy_gradient(Stream stream, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const L* logits,
                            const int32_t* targets, float* m, float* z, float* t, T* d_logits);

}  // namespace lockstep::kernels::gpu
