// The kinds of op that code outside their family compares with or matches. Rules (ops/rule.h) are named by these constants.
// Where several kinds could answer a question, ask their rules instead.
#pragma once

#include <string_view>

namespace lockstep::ir {

inline constexpr std::string_view kAdd = "add", kEinsum = "einsum", kUnary = "unary", kMax = "max", kRename = "rename",
                                  kScatter = "scatter", kCast = "cast", kAttention = "attention",
                                  kAttentionBackward = "attention_backward", kAttentionBlock = "attention_block",
                                  kAttentionBlockBackward = "attention_block_backward";
inline constexpr std::string_view kBias = "bias", kGelu = "gelu", kBiasGelu = "bias_gelu", kGeluBackward = "gelu_backward",
                                  kSwiglu = "swiglu", kSwigluBackward = "swiglu_backward", kDropout = "dropout",
                                  kBiasDropoutAdd = "bias_dropout_add";
inline constexpr std::string_view kRmsnorm = "rmsnorm", kRope = "rope", kSplitQkv = "split_qkv", kAppend = "append";
inline constexpr std::string_view kMaskPadding = "mask_padding", kCrossEntropy = "cross_entropy",
                                  kCrossEntropyBackward = "cross_entropy_backward",
                                  kCrossEntropyGradient = "cross_entropy_gradient";
inline constexpr std::string_view kAddRmsnorm = "add_rmsnorm", kAddmm = "addmm", kLinear = "linear", kLinearGelu = "linear_gelu",
                                  kMatmulDgelu = "matmul_dgelu", kQkvRope = "qkv_rope";
inline constexpr std::string_view kSlice = "slice", kBlock = "block", kSumBlocks = "sum_blocks";
inline constexpr std::string_view kPack = "pack", kUnpack = "unpack", kQuantize = "quantize", kMeet = "meet";
inline constexpr std::string_view kAmax = "amax", kToFloat8 = "to_float8", kFromFloat8 = "from_float8", kToBlocks = "to_blocks",
                                  kScaledEinsum = "scaled_einsum", kApplyScales = "apply_scales";

}  // namespace lockstep::ir
