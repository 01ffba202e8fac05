// What knows of tokens: the embedding, rotary positions, dropout, padded columns. Shapes and formulas as in
// kernels/cpu/elementwise.h and bias.h. T: how activations are stored, S: the residual stream.
#pragma once

#include "kernels/dropout_mask.h"
#include "kernels/gpu/types.h"
#include "kernels/qkv_shape.h"

namespace lockstep::kernels::gpu {

// table: [rows, hidden] of the vocabulary from first_id on; out: [tokens, hidden], zero for ids elsewhere.
template <class S, class T>
void embedding(Stream stream, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows, const T* table,
               S* out);
// d_table[id] = or += d_out[token], in the order of the tokens.
template <class T>
void embedding_backward(Stream stream, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                        const T* d_out, float* d_table, bool adds);

// For half of a head's dim. A kernel gets them as they are, so that no memory of the device has to hold them.
struct Frequencies {
    static constexpr int kMost = 256;
    double of[kMost];
};
// x, out: [tokens, heads, 2 half]; half <= Frequencies::kMost; out may alias x.
template <class T>
void rope(Stream stream, int64_t tokens, int64_t heads, int64_t half, const T* x, const int32_t* positions,
          const Frequencies& frequencies, float sign, T* out);

// Queries and keys are rotated on the way; positions nullptr: moved as they are. head_dim <= 2 Frequencies::kMost.
template <class T>
void split_qkv(Stream stream, const QkvShape& shape, const T* qkv, const int32_t* positions, const Frequencies& frequencies,
               float sign, T* q, T* k, T* v);
template <class T>
void join_qkv(Stream stream, const QkvShape& shape, const T* q, const T* k, const T* v, const int32_t* positions,
              const Frequencies& frequencies, float sign, T* qkv);

// Queries and keys of a row are rotated; out, a row like qkv, may be qkv: then its values are not moved.
template <class T>
void rope_qkv(Stream stream, const QkvShape& shape, const T* qkv, const int32_t* positions, const Frequencies& frequencies,
              float sign, T* out);

template <class T>
void dropout(Stream stream, int64_t rows, int64_t n, const T* x, const DropoutMask& mask, T* y);
template <class S, class T>
void bias_dropout_add(Stream stream, int64_t rows, int64_t n, const S* x, const T* b, const S* residual, const DropoutMask& mask,
                      S* y);

// out = x [rows, n] with `fill` in the columns from `valid` on.
template <class T>
void mask_padding(Stream stream, int64_t rows, int64_t n, int64_t valid, float fill, const T* x, T* out);

}  // namespace lockstep::kernels::gpu
