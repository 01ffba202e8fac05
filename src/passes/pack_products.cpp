#include "passes/pack_products.h"

#include <algorithm>
#include <optional>

#include "ops/builder.h"

namespace lockstep::passes {
namespace {

using ir::DimId;
using ir::DimRole;
using ir::Op;
using ir::Routine;
using ir::TensorId;

bool reads_parameter(const Routine& r, TensorId t) {
    return r.tensors[t].port >= 0 && r.ports[r.tensors[t].port].kind == ir::PortKind::Params;
}

// Tensors in all routines that hold this parameter.
long readers_of(const ir::Program& program, const std::string& param) {
    long out = 0;
    for (const Routine& r : program.routines) {
        for (size_t t = 0; t < r.tensors.size(); ++t)
            out += reads_parameter(r, static_cast<TensorId>(t)) && r.tensors[t].source == param;
    }
    return out;
}

// Does one follow the other among the parameters of their treatment, does nothing else read them, and are both in 8 bits or
// neither? In their unit those of another treatment are elsewhere.
bool are_side_by_side(const ir::Program& program, const std::string& first, const std::string& second) {
    const ir::Parameter *a = program.param(first), *b = program.param(second);
    if (!a || !b || b <= a || readers_of(program, first) != 1 || readers_of(program, second) != 1) return false;
    const auto is_alike = [&](const ir::Parameter& p) {
        return p.block == a->block && p.dtype == a->dtype && p.decay == a->decay;
    };
    return is_alike(*b) && b->converted == a->converted && std::none_of(a + 1, b, is_alike);
}

// x [.., rows] times weight [outs.., rows], and the bias [outs..] that is added to it, if there is one.
struct Product {
    Op einsum;
    std::optional<Op> bias;

    TensorId result() const { return bias ? bias->out[0] : einsum.out[0]; }
    TensorId rows() const { return einsum.in[0]; }
    TensorId weight() const { return einsum.in[1]; }
};

class Packer {
public:
    Packer(const ir::Program& program, Routine& r, const PackProductsOptions& options)
        : program_(program), r_(r), options_(options) {}

    void run() {
        const std::vector<Op> ops = r_.ops;
        bool packed = false;
        for (const Op& op : ops) packed |= gate_and_up(op);
        for (const Op& op : ops) packed |= options_.queries_keys_values && queries_keys_values(op);
        if (packed) ops::renumber(r_);
    }

private:
    std::vector<Op>::iterator position(const Op& op) {
        return std::find_if(r_.ops.begin(), r_.ops.end(), [&](const Op& o) { return o.out == op.out; });
    }
    long uses(TensorId t) const {
        long out = 0;
        for (const Op& op : r_.ops) out += std::count(op.in.begin(), op.in.end(), t);
        return out;
    }
    // The op of this kind that is the only reader of a temporary, as its first operand.
    const Op* reader(TensorId t, std::string_view kind) const {
        if (r_.tensors[t].port >= 0 || uses(t) != 1) return nullptr;
        for (const Op& op : r_.ops) {
            if (op.kind == kind && op.in[0] == t) return &op;
        }
        return nullptr;
    }

    // What op makes, if it is a product with a parameter of dims [outs.., rows].
    std::optional<Product> product(const Op& op) const {
        if (op.kind != ir::kEinsum || op.in.size() != 2 || !reads_parameter(r_, op.in[1])) return std::nullopt;
        const std::vector<DimId>&x = r_.tensors[op.in[0]].dims, &w = r_.tensors[op.in[1]].dims, &y = r_.tensors[op.out[0]].dims;
        if (x.empty() || w.empty() || x.back() != w.back() || y.size() != x.size() + w.size() - 2) return std::nullopt;
        if (!std::equal(x.begin(), x.end() - 1, y.begin()) || !std::equal(w.rbegin() + 1, w.rend(), y.rbegin()))
            return std::nullopt;
        if (uses(op.in[1]) != 1 || r_.tensors[op.out[0]].port >= 0) return std::nullopt;
        Product p{op, std::nullopt};
        const Op* bias = reader(op.out[0], ir::kBias);
        if (bias && reads_parameter(r_, bias->in[1]) && uses(bias->in[1]) == 1) p.bias = *bias;
        return r_.tensors[p.result()].port < 0 ? std::optional(p) : std::nullopt;
    }
    std::optional<Product> product_of(TensorId result) const {
        for (const Op& op : r_.ops) {
            const std::optional<Product> p = product(op);
            if (p && p->result() == result) return p;
        }
        return std::nullopt;
    }

    const std::string& source(TensorId t) const { return r_.tensors[t].source; }
    // Of the same rows, by weights side by side; all with biases or all without.
    bool follow(const Product& a, const Product& b) const {
        if (a.rows() != b.rows() || a.bias.has_value() != b.bias.has_value()) return false;
        return are_side_by_side(program_, source(a.weight()), source(b.weight())) &&
               (!a.bias || are_side_by_side(program_, source(a.bias->in[1]), source(b.bias->in[1])));
    }

    // The parameters that `tensors` hold become one, in the first, with the dims `outs` in the place of their own but for the
    // last `kept`.
    void join(const std::vector<TensorId>& tensors, const std::vector<DimId>& outs, long kept) {
        ir::Tensor& w = r_.tensors[tensors[0]];
        w.dims.erase(w.dims.begin(), w.dims.end() - kept);
        w.dims.insert(w.dims.begin(), outs.begin(), outs.end());
        for (size_t i = 1; i < tensors.size(); ++i) {
            ir::Tensor& other = r_.tensors[tensors[i]];
            w.name += "." + other.name;
            w.source += "+" + other.source;
            other.port = -1;
            other.source.clear();
        }
    }

    // One product in the place of all, where the first was. Returns its result, [.., outs..].
    TensorId pack(const std::vector<Product>& products, const std::string& name, const std::vector<DimId>& outs,
                  const std::string& note) {
        const bool biased = products[0].bias.has_value();
        std::vector<TensorId> weights, biases;
        for (const Product& p : products) {
            weights.push_back(p.weight());
            if (biased) biases.push_back(p.bias->in[1]);
        }
        join(weights, outs, 1);
        if (biased) join(biases, outs, 0);
        ops::Builder b(r_);
        std::vector<DimId> dims = r_.tensors[products[0].rows()].dims;
        dims.pop_back();
        dims.insert(dims.end(), outs.begin(), outs.end());
        std::vector<Op> one = {products[0].einsum};
        one[0].out = {b.make({b.fresh(biased ? name + "_product" : name), dims})};
        one[0].note = note;
        if (biased) {
            one.push_back(*products[0].bias);
            one[1].in[0] = one[0].out[0];
            one[1].out = {b.make({b.fresh(name), dims})};
        }
        const auto first = position(products[0].einsum) - r_.ops.begin();
        r_.ops.insert(r_.ops.begin() + first, one.begin(), one.end());
        for (const Product& p : products) {
            r_.ops.erase(position(p.einsum));
            if (p.bias) r_.ops.erase(position(*p.bias));
        }
        return one.back().out[0];
    }

    DimId dim(DimRole role, const char* name, int64_t size) {
        if (const DimId known = r_.dim(name); known >= 0) return known;
        r_.dims.push_back({name, size, size, role});
        return static_cast<DimId>(r_.dims.size()) - 1;
    }

    bool gate_and_up(const Op& swiglu) {
        if (swiglu.kind != ir::kSwiglu || swiglu.in.size() != 2) return false;
        const auto gate = product_of(swiglu.in[0]), up = product_of(swiglu.in[1]);
        if (!gate || !up || gate->bias || !follow(*gate, *up) || uses(gate->result()) != 1 || uses(up->result()) != 1)
            return false;
        const std::vector<DimId>&rows = r_.tensors[gate->weight()].dims, &others = r_.tensors[up->weight()].dims;
        if (rows != others || rows.size() != 2) return false;
        const DimId ffn = rows[0];
        const TensorId both =
            pack({*gate, *up}, "gate_up", {dim(DimRole::Other, "gate_up", 2), ffn}, "one product for gate and up");
        position(swiglu)->in = {both};
        return true;
    }

    std::vector<DimRole> roles(const Product& p) const {
        std::vector<DimRole> out;
        for (const DimId d : r_.tensors[p.weight()].dims) out.push_back(r_.dims[d].role);
        out.pop_back();
        return out;
    }
    // The product of the weight behind that of `before`, with these roles of dims.
    std::optional<Product> product_behind(const Product& before, const std::vector<DimRole>& outs) const {
        for (const Op& op : r_.ops) {
            const std::optional<Product> p = product(op);
            if (p && roles(*p) == outs && follow(before, *p)) return p;
        }
        return std::nullopt;
    }

    // From the product of the queries.
    bool queries_keys_values(const Op& op) {
        using enum DimRole;
        const auto q = product(op);
        if (!q || roles(*q) != std::vector<DimRole>{KvHeads, Group, HeadDim}) return false;
        const auto k = product_behind(*q, {KvHeads, HeadDim});
        const auto v = k ? product_behind(*k, {KvHeads, HeadDim}) : std::nullopt;
        if (!v) return false;
        const std::vector<DimId> w = r_.tensors[q->weight()].dims;  // kv_heads, group, head_dim, hidden
        std::vector<TensorId> parts = {q->result(), k->result(), v->result()};
        const Op *of_q = reader(parts[0], ir::kRope), *of_k = reader(parts[1], ir::kRope);
        Op split;
        split.kind = ir::kSplitQkv;
        split.in = {-1};
        if (of_q && of_k && of_q->in[1] == of_k->in[1] && of_q->attrs == of_k->attrs && r_.tensors[of_q->in[1]].port >= 0) {
            split.in.push_back(of_q->in[1]);
            split.attrs = of_q->attrs;
            parts[0] = of_q->out[0], parts[1] = of_k->out[0];
        }
        split.out = parts;
        const int64_t rows = r_.dims[w[1]].size + 2;
        split.in[0] = pack({*q, *k, *v}, "qkv", {dim(Qkv, "qkv", rows), w[0], w[2]}, "one product for queries, keys and values");
        std::erase_if(r_.ops, [&](const Op& o) { return o.kind == ir::kRope && (o.out[0] == parts[0] || o.out[0] == parts[1]); });
        const auto made = std::find_if(r_.ops.begin(), r_.ops.end(), [&](const Op& o) { return o.out[0] == split.in[0]; });
        r_.ops.insert(made + 1, std::move(split));
        return true;
    }

    const ir::Program& program_;
    Routine& r_;
    const PackProductsOptions options_;
};

}  // namespace

ir::Program pack_products(ir::Program program, const PackProductsOptions& options) {
    for (Routine& r : program.routines) Packer(program, r, options).run();
    return program;
}

}  // namespace lockstep::passes
