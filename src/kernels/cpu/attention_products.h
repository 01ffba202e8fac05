// The products of attention's blocks, made in one of two ways: of floats, or of bfloat16 by AMX. Each is a struct `Products` in
// a header of its own; the sums are floats in both. A block is kBlock tokens x head_dim. Scores, probabilities and their
// gradients are floats, `to` and `x` below, rows kBlock apart, and are made and used in columns of kTileColumns.
//   Element, kKernel: of an operand; whose sizes of blocks it takes (attention_plan.h)
//   kTakes<T>: tokens may be stored as T
//   kScalesQueries: scale_queries scales; where it does not, the sums of what queries are an operand of are to be scaled
//   Session: held by a thread while it makes products
//   pack<side>: tokens as an operand of `scores`, which sums over head_dim
//   pack_over_tokens: as the left one of the others, which sum over tokens
//   scores: the given rows of to = left right. May write other rows of to, too
//   add_product: to += left x, of the given rows (tokens) of x; to: [head_dim, kBlock]
//   add_transposed: the same of x transposed: tokens are columns of x
// Include only from sources compiled once per instruction set.
#pragma once

#include "kernels/cpu/attention_blocks.h"

#if defined(__AMX_BF16__)
#include "kernels/cpu/attention_products_amx.h"
#else
#include "kernels/cpu/attention_products_float.h"
#endif

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

// Of sums that `scores` made.
LOCKSTEP_INLINE Vec scaled(Vec sums, float scale) { return Products::kScalesQueries ? sums : sums * scale; }

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
