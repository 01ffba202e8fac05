// Table look-ups along vocab, whose shard a rank derives from its coordinate: gather and its transpose scatter (the
// embedding), pick and its transpose unpick (the target's logit). An id outside the rank's shard gives zero.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

using Span = std::span<const TensorId>;

std::string indexed(const Routine& rt, const Op& op) {
    return rt.tensors[op.in[1]].dtype == Dtype::I32 ? std::string() : std::string("operand 1 holds ids, int32");
}

// gather(table [vocab, hidden], ids [...]) -> [..., hidden]
OpRule gather() {
    OpRule r;
    r.name = "gather";
    r.operands = 2, r.results = 1;
    r.check = indexed;
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.op("scatter", {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])})[0], -1};
    };
    r.linear = {0};
    return r;
}

// scatter(dy [..., hidden], ids [...]) -> [vocab, hidden]; sums in ascending order of position.
OpRule scatter() {
    OpRule r;
    r.name = "scatter";
    r.operands = 2, r.results = 1;
    r.check = indexed;
    r.linear = {0};
    r.takes_what_comes = true;
    return r;
}

// pick(x [..., vocab], ids [...]) -> [...]: selects, never multiplies, since padded columns are -inf.
OpRule pick() {
    OpRule r;
    r.name = "pick";
    r.operands = 2, r.results = 1;
    r.check = indexed;
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.op("unpick", {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])})[0], -1};
    };
    r.linear = {0};
    return r;
}

// unpick(dy [...], ids [...]) -> [..., vocab]
OpRule unpick() {
    OpRule r;
    r.name = "unpick";
    r.operands = 2, r.results = 1;
    r.check = indexed;
    r.linear = {0};
    return r;
}

}  // namespace

std::vector<OpRule> embedding_rules() { return {gather(), scatter(), pick(), unpick()}; }

}  // namespace lockstep::ops
