// Defects of products in float8: of their scales, of what is cast, and of which cast a product reads.
#include <utility>

#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::Op;
using ir::Program;
using ir::Routine;
using ir::TensorId;

const ir::Tensor& tensor_of(const Routine& r, TensorId t) { return r.tensors[static_cast<size_t>(t)]; }

// Every rank casts with the largest size of its own elements.
bool keep_own_amax(Routine& r, Op& op) {
    if (op.in.size() != 1 || tensor_of(r, op.in[0]).placement.reduce != ir::Reduce::Max) return false;
    if (tensor_of(r, op.in[0]).name.find(".amax") == std::string::npos) return false;
    op.kind = "copy", op.kernel = "reference.copy";
    op.group.clear();
    return true;
}

// Of another value whose scale has the same dims.
bool take_other_amax(Routine& r, Op& op) {
    for (const Op& other : r.ops) {
        if (&other == &op) break;
        const bool is_other = other.kind == ir::kToFloat8 && other.in[1] != op.in[1];
        if (!is_other || tensor_of(r, other.in[1]).dims != tensor_of(r, op.in[1]).dims) continue;
        op.in[1] = other.in[1];
        return true;
    }
    return false;
}

// What casts multiply by goes into products, in place of its inverse.
bool invert_scales(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        std::vector<Op> ops;
        for (const Op& op : r.ops) {
            ops.push_back(op);
            if (op.kind != ir::kToFloat8) continue;
            Op inverse;
            inverse.kind = "unary", inverse.kernel = "reference.unary";
            inverse.attrs["fn"] = std::string("recip");
            inverse.in = inverse.out = {op.out[1]};
            ops.push_back(std::move(inverse));
            any = true;
        }
        r.ops = std::move(ops);
    }
    return any;
}

bool exchange_scales(Routine& r, Op& op) {
    std::swap(op.in[2], op.in[3]);
    return tensor_of(r, op.in[2]).dims != tensor_of(r, op.in[3]).dims;  // of the same groups it is the same product
}

// A product of a weight's gradient reads what another product has of the same value: its scale, or its codes, too.
bool read_other_cast(Routine& r, Op& op, bool codes) {
    const auto cast = [&](TensorId q) {
        return std::find_if(r.ops.begin(), r.ops.end(), [&](const Op& c) { return c.kind == ir::kToFloat8 && c.out[0] == q; });
    };
    for (const size_t i : {0, 1}) {
        const auto own = cast(op.in[i]);
        if (own == r.ops.end()) continue;
        for (const Op& other : r.ops) {
            if (&other == &*own) break;
            if (other.kind != ir::kToFloat8 || other.in[0] != own->in[0] || other.out[0] == own->out[0]) continue;
            op.in[i + 2] = other.out[1];
            if (codes) op.in[i] = other.out[0];
            return true;
        }
    }
    return false;
}

// Its calls have a routine of their own, whose first cast rounds its scale in another way.
bool rescale_in_one_microbatch(Program& p) {
    bool any = false;
    std::vector<Routine> added;
    for (ir::Call& c : train_calls(p)) {
        if (c.microbatch != 1) continue;
        Routine own = routine_of(p, c);
        const auto cast = std::find_if(own.ops.begin(), own.ops.end(), [](const Op& op) { return op.kind == ir::kToFloat8; });
        if (cast == own.ops.end()) continue;
        cast->attrs["power_of_two"] = int64_t{cast->attrs.contains("power_of_two") ? 0 : 1};
        c.routine = static_cast<int>(p.routines.size() + added.size());
        added.push_back(std::move(own));
        any = true;
    }
    std::move(added.begin(), added.end(), std::back_inserter(p.routines));
    return any;
}

bool cast_to(Routine& r, Op& op, Dtype from, Dtype to) {
    ir::Tensor& q = r.tensors[static_cast<size_t>(op.out[0])];
    return std::exchange(q.dtype, q.dtype == from ? to : q.dtype) == from;
}

}  // namespace

std::vector<Defect> float8_defects() {
    return {
        in_ops("an amax is of one rank's elements", kCompute, "all_reduce", keep_own_amax),
        in_ops("a value has the amax of another", kCompute, "to_float8", take_other_amax),
        {"products multiply by what casts multiply by", in_programs([](Program& p) { return invert_scales(p); })},
        in_ops("the scales of two factors are exchanged", kCompute, "scaled_einsum", exchange_scales),
        in_ops("a factor has the scale of its other cast", kBackwards, "scaled_einsum",
               [](Routine& r, Op& op) { return read_other_cast(r, op, false); }),
        in_ops("a factor is cast along its other side", kBackwards, "scaled_einsum",
               [](Routine& r, Op& op) { return read_other_cast(r, op, true); }),
        {"a scale is another one in one microbatch", in_programs([](Program& p) { return rescale_in_one_microbatch(p); })},
        in_ops("gradients of results are in E4M3", kBackwards, "to_float8",
               [](Routine& r, Op& op) { return cast_to(r, op, Dtype::F8E5M2, Dtype::F8E4M3); }),
        in_ops("rows and weights are in E5M2", kForwards, "to_float8",
               [](Routine& r, Op& op) { return cast_to(r, op, Dtype::F8E4M3, Dtype::F8E5M2); }),
        in_ops("scales are not rounded to powers of two", kCompute, "to_float8",
               [](Routine&, Op& op) { return op.attrs.erase("power_of_two") > 0; }),
    };
}

}  // namespace lockstep::testing
