#include "ops/expand.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/builder.h"

namespace lockstep::ops {
namespace {

using ir::Placement;

// Places what an expansion made: every tensor by the composite's iteration space; partial over what was summed away or came in
// partial.
class Expander {
public:
    Expander(Routine& r, const Op& composite) : r_(r), composite_(composite) {
        for (const std::vector<TensorId>* list : {&composite.in, &composite.out}) {
            for (TensorId t : *list) {
                for (size_t i = 0; i < r.tensors[t].dims.size(); ++i)
                    axes_[r.tensors[t].dims[i]] = r.tensors[t].placement.dims[i];
                if (r.tensors[t].dtype == Dtype::F64) wide_ = Dtype::F64;
            }
        }
    }

    std::vector<Op> run() {
        const std::vector<Op> outer = std::move(r_.ops);
        r_.ops.clear();
        Builder b(r_);
        const std::vector<Op> pieces = pieces_of(composite_);
        std::vector<TensorId> results = rule(composite_.kind).expand(b, pieces[0]);
        for (size_t i = 1; i < pieces.size(); ++i) {
            const auto of = std::find(composite_.out.begin(), composite_.out.end(), pieces[i].in[0]) - composite_.out.begin();
            const TensorId x = results[static_cast<size_t>(of)];
            const ir::Tensor& amax = r_.tensors[pieces[i].out[0]];
            const Dtype type = r_.tensors[x].dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;  // as so far; `place` sets both
            results.push_back(b.op(ir::kAmax, {x}, {{amax.name + ".part", amax.dims, type}})[0]);
        }
        std::vector<Op> made = std::move(r_.ops);
        r_.ops = outer;
        for (Op& op : made) {
            for (size_t i = 0; i < op.out.size(); ++i) {
                for (size_t k = 0; k < results.size(); ++k) {
                    if (op.out[i] == results[k]) op.out[i] = composite_.out[k];
                }
            }
            for (TensorId& t : op.in) {
                for (size_t k = 0; k < results.size(); ++k) {
                    if (t == results[k]) t = composite_.out[k];
                }
            }
            if (composite_.attrs.contains("recomputed")) op.attrs["recomputed"] = int64_t{1};
            op.note = "from " + composite_.kind;
        }
        made = live_ops(r_, made, composite_.out);
        for (Op& op : made) place(op);
        return made;
    }

private:
    void place(const Op& op) {
        mesh::AxisList used, partial;
        for (TensorId t : op.in) {
            used = mesh::unite(used, r_.tensors[t].placement.used());
            partial = mesh::unite(partial, r_.tensors[t].placement.partial);
        }
        for (TensorId t : op.out) {
            if (std::find(composite_.out.begin(), composite_.out.end(), t) != composite_.out.end()) continue;  // placed already
            ir::Tensor& tensor = r_.tensors[t];
            if (op.kind != ir::kFromFloat8) tensor.dtype = wide_;
            Placement p;
            for (ir::DimId d : tensor.dims) p.dims.push_back(axes_.contains(d) ? axes_.at(d) : mesh::AxisList{});
            p.partial = mesh::unite(partial, mesh::subtract(used, p.used()));
            tensor.placement = std::move(p);
        }
    }

    Routine& r_;
    const Op composite_;
    std::map<ir::DimId, mesh::AxisList> axes_;
    Dtype wide_ = Dtype::F32;  // of what lies between: never bfloat16, but for factors of float8, which have no more bits
};

}  // namespace

std::vector<Op> expanded(Routine& routine, const Op& composite) { return Expander(routine, composite).run(); }

void expand_unserved(Routine& r, FunctionRef<bool(Op&)> serve) {
    for (size_t i = 0; i < r.ops.size();) {
        if (serve(r.ops[i])) {
            ++i;
            continue;
        }
        const Op composite = r.ops[i];
        std::vector<Op> made = expanded(r, composite);
        r.ops.erase(r.ops.begin() + static_cast<long>(i));
        r.ops.insert(r.ops.begin() + static_cast<long>(i), made.begin(), made.end());
    }
}

}  // namespace lockstep::ops
