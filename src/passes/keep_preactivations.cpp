#include "passes/keep_preactivations.h"

#include <algorithm>

#include "ops/builder.h"
#include "ops/einsum.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

bool is_made_by_a_product(const Routine& r, TensorId t) {
    return std::any_of(r.ops.begin(), r.ops.end(), [&](const Op& op) { return op.out[0] == t && ops::is_product(r, op); });
}

void take_apart(Routine& r) {
    bool any = false;
    for (size_t i = 0; i < r.ops.size(); ++i) {
        if (r.ops[i].kind != ir::kBiasGelu || r.ops[i].text("fn") != "gelu" || !is_made_by_a_product(r, r.ops[i].in[0])) continue;
        ops::Builder b(r);
        const std::string name = b.tensor(r.ops[i].in[0]).name + ".biased";
        Op bias = r.ops[i];
        bias.kind = ir::kBias;
        bias.attrs.erase("fn");
        bias.out = {b.make({name, b.dims(bias.in[0]), b.tensor(bias.in[0]).dtype})};
        r.ops[i].kind = ir::kGelu;
        r.ops[i].in = bias.out;
        r.ops.insert(r.ops.begin() + static_cast<long>(i), std::move(bias));
        any = true;
    }
    if (any) ops::renumber(r);
}

}  // namespace

ir::Program keep_preactivations(ir::Program program) {
    for (Routine& r : program.routines) take_apart(r);
    return program;
}

}  // namespace lockstep::passes
