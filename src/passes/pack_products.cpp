#include "passes/pack_products.h"

#include <algorithm>
#include <optional>

#include "ops/builder.h"

namespace lockstep::passes {
namespace {

using ir::DimId;
using ir::Op;
using ir::Routine;
using ir::TensorId;

constexpr const char* kGateUp = "gate_up";

// Tensors in all routines that hold this parameter.
long readers_of(const ir::Program& program, const std::string& param) {
    long out = 0;
    for (const Routine& r : program.routines) {
        out += std::count_if(r.tensors.begin(), r.tensors.end(), [&](const ir::Tensor& t) {
            return t.port >= 0 && r.ports[t.port].kind == ir::PortKind::Params && t.source == param;
        });
    }
    return out;
}

// Do the parameters stand one behind the other, equal in shape and treatment, and does nothing else read them?
bool are_side_by_side(const ir::Program& program, const std::string& first, const std::string& second) {
    const ir::Parameter *a = program.param(first), *b = program.param(second);
    return a && b && b == a + 1 && a->block == b->block && a->dims == b->dims && a->dtype == b->dtype && a->decay == b->decay &&
           readers_of(program, first) == 1 && readers_of(program, second) == 1;
}

class Packer {
public:
    Packer(const ir::Program& program, Routine& r) : program_(program), r_(r) {}

    void run() {
        bool packed = false;
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            if (r_.ops[i].kind == "swiglu" && r_.ops[i].in.size() == 2 && pack(i)) packed = true, --i;  // one op fewer before it
        }
        if (packed) ops::renumber(r_);
    }

private:
    struct Product {
        size_t at;
        TensorId x, weight, result;
    };

    // rows [.., rows] x weight [ffn, hidden] -> [.., ffn], which the op `reader` alone reads.
    std::optional<Product> product_of(TensorId result, size_t reader) const {
        const auto makes = [&](const Op& op) { return op.out == std::vector<TensorId>{result}; };
        const auto op = std::find_if(r_.ops.begin(), r_.ops.end(), makes);
        if (op == r_.ops.end() || op->kind != "einsum" || op->in.size() != 2) return std::nullopt;
        const Product p = {static_cast<size_t>(op - r_.ops.begin()), op->in[0], op->in[1], result};
        const ir::Tensor& w = r_.tensors[p.weight];
        const bool reads_parameter = w.port >= 0 && r_.ports[w.port].kind == ir::PortKind::Params;
        const bool is_last = !w.dims.empty() && !r_.tensors[result].dims.empty() && w.dims[0] == r_.tensors[result].dims.back();
        if (!reads_parameter || !is_last || r_.tensors[result].port >= 0 || uses(p.weight) != 1 || uses(result) != 1)
            return std::nullopt;
        return reads(r_.ops[reader], result) ? std::optional(p) : std::nullopt;
    }
    static bool reads(const Op& op, TensorId t) { return std::find(op.in.begin(), op.in.end(), t) != op.in.end(); }
    long uses(TensorId t) const {
        long out = 0;
        for (const Op& op : r_.ops) out += std::count(op.in.begin(), op.in.end(), t);
        return out;
    }

    bool pack(size_t swiglu) {
        const auto gate = product_of(r_.ops[swiglu].in[0], swiglu), up = product_of(r_.ops[swiglu].in[1], swiglu);
        if (!gate || !up || gate->x != up->x) return false;
        ir::Tensor &w = r_.tensors[gate->weight], &other = r_.tensors[up->weight];
        if (!are_side_by_side(program_, w.source, other.source)) return false;
        const DimId both = dim();
        w.name += "." + other.name;
        w.source += "+" + other.source;
        w.dims.insert(w.dims.begin(), both);
        other.port = -1;
        other.source.clear();
        ir::Tensor& h = r_.tensors[gate->result];
        h.name = ops::Builder(r_).fresh(kGateUp);
        h.dims.insert(h.dims.end() - 1, both);
        r_.ops[gate->at].note = "one product for gate and up";
        r_.ops[swiglu].in = {gate->result};
        r_.ops.erase(r_.ops.begin() + static_cast<long>(up->at));
        return true;
    }

    DimId dim() {
        if (const DimId known = r_.dim(kGateUp); known >= 0) return known;
        r_.dims.push_back({kGateUp, 2, 2});
        return static_cast<DimId>(r_.dims.size()) - 1;
    }

    const ir::Program& program_;
    Routine& r_;
};

}  // namespace

ir::Program pack_products(ir::Program program) {
    for (Routine& r : program.routines) Packer(program, r).run();
    return program;
}

}  // namespace lockstep::passes
