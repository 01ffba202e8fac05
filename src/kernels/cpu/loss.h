// Cross-entropy on a shard of the vocabulary, in pieces between which ranks reduce:
// m = max over shards of row_max; z, t = sums over shards of cross_entropy; loss = m + log(z) - t' with t' the sum of t.
// logits: [rows, n], row-major and dense; column c is token first_id + c. targets: [rows], negative: ignored.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// m: [rows], the largest logit of each row.
using RowMax = void(ThreadPool& pool, int64_t rows, int64_t n, const float* logits, float* m);
extern RowMax* row_max;

// z: [rows] = sum of exp(logit - m); t: [rows] = logit of the target, 0 where it is ignored or in another shard.
using CrossEntropy = void(ThreadPool& pool, int64_t rows, int64_t n, const float* logits, const float* m, const int32_t* targets,
                          int64_t first_id, float* z, float* t);
extern CrossEntropy* cross_entropy;

// d_logits = exp(logits - m) * d_z + (column == target ? d_t : 0); may alias logits.
template <class T>
using CrossEntropyBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const float* d_z, const float* d_t,
                                  const float* logits, const float* m, const int32_t* targets, int64_t first_id, T* d_logits);
extern Typed<CrossEntropyBackward> cross_entropy_backward;

// All of it for whole rows of the vocabulary, with d_z = d_nll / z; d_logits may alias logits.
template <class T>
using CrossEntropyGradient = void(ThreadPool& pool, int64_t rows, int64_t n, const float* d_nll, const float* d_t,
                                  const float* logits, const int32_t* targets, float* m, float* z, float* t, T* d_logits);
extern Typed<CrossEntropyGradient> cross_entropy_gradient;

}  // namespace lockstep::kernels::cpu
