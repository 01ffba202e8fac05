// Cross-entropy on a shard of the vocabulary, in pieces between which ranks reduce:
// m = max over shards of row_max; z, t = sums over shards of cross_entropy; loss = m + log(z) - t' with t' the sum of t.
// logits: [rows, n], row-major and dense, in float or in the type of their gradient; column c is token first_id + c. targets: [rows], negative: ignored.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// m: [rows], the largest logit of each row.
template <class T>
using RowMax = void(ThreadPool& pool, int64_t rows, int64_t n, const T* logits, float* m);
extern Typed<RowMax> row_max;

// z: [rows] = sum of exp(logit - m); t: [rows] = logit of the target, 0 where it is ignored or in another shard.
template <class T>
using CrossEntropy = void(ThreadPool& pool, int64_t rows, int64_t n, const T* logits, const float* m, const int32_t* targets,
                          int64_t first_id, float* z, float* t);
extern Typed<CrossEntropy> cross_entropy;

// d_logits = exp(logits - m) * d_z + (column == target ? d_t : 0); may alias logits.
template <class S, class T>
using CrossEntropyBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const float* d_z, const float* d_t, const S* logits,
                                  const float* m, const int32_t* targets, int64_t first_id, T* d_logits);
extern TypedOnStream<CrossEntropyBackward> cross_entropy_backward;

// All of it for whole rows of the vocabulary, with d_z = d_nll / z; d_logits may alias logits.
template <class S, class T>
using CrossEntropyGradient = void(ThreadPool& pool, int64_t rows, int64_t n, const float* d_nll, const float* d_t,
                                  const S* logits, const int32_t* targets, float* m, float* z, float* t, T* d_logits);
extern TypedOnStream<CrossEntropyGradient> cross_entropy_gradient;

}  // namespace lockstep::kernels::cpu
