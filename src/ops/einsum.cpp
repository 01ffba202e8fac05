// einsum(a, b, ...): names decide. Contracts the dims that the result lacks, broadcasts those that are new in it.
// Every product of matrices, every sum over a dim and every broadcast in Lockstep is this one primitive.
#include "ops/einsum.h"

#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_einsum(const Routine& r, const Op& op) {
    if (op.in.empty() || op.out.size() != 1) return "takes one operand or more and gives one result";
    return floats(r, op);
}

std::vector<TensorId> derivative(Builder& b, const Op& op, std::span<const TensorId> d_out) {
    std::vector<TensorId> out(op.in.size(), -1);
    for (size_t i = 0; i < op.in.size(); ++i) {
        const auto first = std::find(op.in.begin(), op.in.end(), op.in[i]) - op.in.begin();
        if (static_cast<size_t>(first) < i) {  // einsum(x, x): the same term once for each operand
            out[i] = out[first];
            continue;
        }
        if (b.tensor(op.in[i]).dtype == Dtype::I32) continue;
        std::vector<TensorId> in = {d_out[0]};
        for (size_t j = 0; j < op.in.size(); ++j) {
            if (j != i) in.push_back(op.in[j]);
        }
        out[i] = b.einsum("d." + b.tensor(op.in[i]).name + ".part", b.dims(op.in[i]), in);
    }
    return out;
}

}  // namespace

Flops einsum_flops(const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    Op factors = op;
    if (op.kind == ir::kScaledEinsum) factors.in.resize(2);
    ir::AxisList used;
    double space = 1;
    for (DimId d : iteration_space(r, factors)) space *= static_cast<double>(r.dims[d].size);
    for (const std::vector<TensorId>* list : {&factors.in, &factors.out}) {
        for (TensorId t : *list) used = mesh::unite(used, r.tensors[t].placement.used());
    }
    const double executed = 2 * space / static_cast<double>(mesh.size(used));
    // Of the mathematics a rank's share: what replicas do again (k and v heads fewer than tp) is executed,
    // but not counted twice.
    return {is_product(r, op) ? 2 * space / static_cast<double>(mesh.ranks()) : 0, executed};
}

namespace {

int64_t product(const mesh::Mesh& mesh, const Routine& r, TensorId t, const std::vector<DimId>& which) {
    int64_t n = 1;
    for (size_t i = 0; i < dims_of(r, t).size(); ++i) {
        if (std::find(which.begin(), which.end(), dims_of(r, t)[i]) != which.end())
            n *= ir::local_size(mesh, r, r.tensors[t], static_cast<int>(i));
    }
    return n;
}

}  // namespace

int first_factor(const Op& op) {
    if ((op.kind == ir::kEinsum && op.in.size() == 2) || op.kind == ir::kScaledEinsum) return 0;
    if (op.in.size() != 3) return -1;
    if (op.kind == ir::kAddmm) return 1;
    return op.kind == ir::kLinear || op.kind == ir::kLinearGelu || op.kind == ir::kMatmulDgelu ? 0 : -1;
}

bool is_product(const Routine& r, const Op& op) {
    const int first = first_factor(op);
    if (first < 0) return false;
    const TensorId left = op.in[first], right = op.in[first + 1];
    const auto lacks = [&](TensorId a, TensorId b) {
        const auto& d = dims_of(r, b);
        return std::any_of(dims_of(r, a).begin(), dims_of(r, a).end(),
                           [&](DimId x) { return std::find(d.begin(), d.end(), x) == d.end(); });
    };
    return lacks(left, right) && lacks(right, left) && (lacks(left, op.out[0]) || lacks(right, op.out[0]));
}

bool is_matmul(const mesh::Mesh& mesh, const Routine& r, const Op& op, MatmulShape* shape) {
    if (!is_product(r, op)) return false;
    const std::vector<DimId>& out = dims_of(r, op.out[0]);
    for (bool swapped : {false, true}) {
        const int first = first_factor(op);
        const TensorId a = op.in[first + (swapped ? 1 : 0)], b = op.in[first + (swapped ? 0 : 1)];
        const auto in = [](const std::vector<DimId>& list, DimId d) {
            return std::find(list.begin(), list.end(), d) != list.end();
        };
        std::vector<DimId> m, n, k;
        bool plain = true;
        for (DimId d : dims_of(r, a)) {
            if (in(out, d) && in(dims_of(r, b), d)) plain = false;  // a batch dim
            (in(out, d) ? m : k).push_back(d);
            if (!in(out, d) && !in(dims_of(r, b), d)) plain = false;
        }
        for (DimId d : dims_of(r, b)) {
            if (in(out, d)) n.push_back(d);
            else if (!in(dims_of(r, a), d)) plain = false;
        }
        const auto joined = [](std::vector<DimId> x, const std::vector<DimId>& y) {
            x.insert(x.end(), y.begin(), y.end());
            return x;
        };
        std::vector<DimId> k_of_b;
        for (DimId d : dims_of(r, b)) {
            if (in(k, d)) k_of_b.push_back(d);
        }
        if (!plain || k != k_of_b || out != joined(m, n)) continue;
        const bool a_straight = dims_of(r, a) == joined(m, k), a_turned = dims_of(r, a) == joined(k, m);
        const bool b_straight = dims_of(r, b) == joined(n, k), b_turned = dims_of(r, b) == joined(k, n);
        if (!(a_straight || a_turned) || !(b_straight || b_turned)) continue;
        *shape = {product(mesh, r, a, m), product(mesh, r, b, n), product(mesh, r, a, k), !a_straight, !b_straight, swapped};
        return true;
    }
    return false;
}

std::vector<OpRule> einsum_rules() {
    OpRule einsum;
    einsum.name = ir::kEinsum;
    einsum.check = check_einsum;
    einsum.derivative = derivative;
    einsum.sharding = {.linear = {0, 1, 2, 3, 4, 5, 6, 7}};
    einsum.kept = {.operands = {0, 1}, .of_product = true};
    einsum.flops = einsum_flops;
    return {einsum};
}

}  // namespace lockstep::ops
