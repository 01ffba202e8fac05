// Parts of layers that models share. Each appends its ops to the routine under construction; parameters are the caller's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/builder.h"

namespace lockstep::models {

// RMSNorm of x over the dim `over` (Zhang and Sennrich 2019, arXiv 1910.07467). weight [over]
ir::TensorId rms_norm(ops::Builder& b, const std::string& name, ir::TensorId x, ir::TensorId weight, const char* over,
                      double eps);

// x [batch, seq, hidden] times `weight`, summed over hidden, plus `bias`: [batch, seq] and the dims `to`, which the bias has.
ir::TensorId project(ops::Builder& b, const std::string& name, ir::TensorId x, const std::vector<std::string_view>& to,
                     ir::TensorId weight, std::optional<ir::TensorId> bias = std::nullopt);

// Rotary positions (arXiv 2104.09864). waves: theta, and Llama 3.1's stretch of long ones; see ops/rope.cpp.
ir::TensorId rope(ops::Builder& b, const std::string& name, ir::TensorId x, ir::TensorId positions, ir::Attrs waves);

// Causal attention within documents, each key and value head for a group of query heads (arXiv 2305.13245).
struct Attention {
    ir::TensorId q;     // [batch, seq, kv_heads, group, head_dim]
    ir::TensorId k, v;  // [batch, seq, kv_heads, head_dim]
    ir::TensorId positions, documents;
    int64_t head_dim = 0, window = 0;  // window: positions that a query sees, its own included; 0: all
    double dropout = 0;                // of the probabilities
};
// [batch, seq, kv_heads, group, head_dim]
ir::TensorId attend(ops::Builder& b, const Attention& a);

// SwiGLU (arXiv 2002.05202). x [batch, seq, hidden]; gate, up [ffn, hidden]; down [hidden, ffn]
struct SwigluWeights {
    ir::TensorId gate, up, down;
};
ir::TensorId swiglu(ops::Builder& b, const std::string& name, ir::TensorId x, const SwigluWeights& w);

}  // namespace lockstep::models
