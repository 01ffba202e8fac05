#include "ops/rope.h"

#include <cmath>
#include <numbers>

#include "ops/shapes.h"

namespace lockstep::ops {

std::vector<double> rope_frequencies(const ir::Op& op, int64_t head_dim) {
    const double theta = op.number("theta"), factor = op.number("factor"), low = op.number("low_freq_factor"),
                 high = op.number("high_freq_factor"), original = op.number("original_positions");
    std::vector<double> out;
    for (int64_t i = 0; i < head_dim / 2; ++i) {
        double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        if (factor != 1) {  // Llama 3.1: long waves are stretched by `factor`, a ramp between the two borders
            const double turns = original * f / (2 * std::numbers::pi);  // over the original context
            const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
            f = (1 - smooth) * f / factor + smooth * f;
        }
        out.push_back(f);
    }
    return out;
}

// rope(x [batch, seq, ..., head_dim], pos [batch, seq]) {sign, theta, ...}: halves are rotated against each other, the layout
// of Hugging Face's checkpoints. Its derivative is the rotation back.
std::vector<OpRule> rope_rules() {
    OpRule r;
    r.name = "rope";
    r.operands = 2, r.results = 1;
    r.attrs = {{"sign", AttrType::Integer},
               {"theta", AttrType::Number},
               {"factor", AttrType::Number},
               {"low_freq_factor", AttrType::Number},
               {"high_freq_factor", AttrType::Number},
               {"original_positions", AttrType::Number}};
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        ir::Attrs attrs = op.attrs;
        attrs["sign"] = -op.integer("sign");
        return std::vector<TensorId>{b.op("rope", {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])}, attrs)[0], -1};
    };
    r.unsplit = with_roles({DimRole::HeadDim});
    r.linear = {0};
    r.in_place = 0;
    return {r};
}

}  // namespace lockstep::ops
