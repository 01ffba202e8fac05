// The end of a step, on flat segments: norm, clipping and commit, updates. State ops: no derivative, no sharding rule (the
// partitioning pass places them).
//   sum_squares(g) -> norm2 [] f64 {count_if}: adds on ranks whose coordinate is 0 on every sub-axis listed in count_if.
//   owned(x []) -> [] f64 {count_if}: x on those ranks, else 0. Without an operand 0: other ranks have it.
//   step_control(stats.., inv_n, steps, lr[, scale]) -> see step_control below.
//   update_loss_scale(scale, tracker, window, control) -> scale, tracker {least}: as torch.amp.GradScaler, which doubles and
//     halves.
//   adamw(w, g, m, v, control) -> w, m, v[, narrow] {beta1, beta2, eps, weight_decay}: decoupled decay (Loshchilov & Hutter,
//     1711.05101). narrow: w in a narrower type.
//   adamw(w, g, m, v, steps, control) {.., seed, shards, places}: m and v are bfloat16; v is rounded at random
//     (ops/element_places.h), as to nearest it would not fall where beta2 is above 1 - 2^-9.
//   adam, with the operands and attributes of adamw: weight_decay w is added to the gradient (Kingma & Ba, 1412.6980;
//     torch.optim.Adam).
//   sgd(w, g[, b], control) -> w[, b] {momentum, nesterov, weight_decay}: as torch.optim.SGD without dampening.
//   muon_momentum(g, b, control) -> u, b {momentum, nesterov}: b += (1 - momentum) (g - b); u is b, or g moved so far towards
//   b. orthogonalize(x [r, c]) {ns_steps, scale} -> [r, c]: Newton and Schulz's iteration (Jordan et al. 2024, as
//     torch.optim.Muon).
//   muon(w, o, control) -> w {weight_decay}: decoupled decay, then -lr o.
//   unpack(flat) -> x.. {begins}: the tensors that begin at these elements of a rank's flat segment.
//   pack, the other way, with zeros between them.
//   reshape(x) -> y: the same elements in other dims.
//   zero_padding(x) -> x {ranges}: clears [begin, end) pairs of a flat buffer.
// When islands meet (DiLoCo, arXiv 2311.08105; streaming DiLoCo, 2501.18512):
//   outer_gradient(anchor, w) -> g {scale}: scale (anchor - w), an island's share of the mean of what islands have changed.
//   meet(g) -> g {islands, bits, count_if}: where islands are jobs of their own, islands / n times the sum over the n that are
//     present; this is one of them (runtime/meet.h). With 8 bits, they exchange int8 (base/quantized.h). Ranks that do not
//     count send nothing: another one has it.
//   outer_sgd(w, anchor, g[, b]) -> w, anchor[, b] {lr, momentum, nesterov, alpha}: a step of sgd of the anchor along g; then
//     w = anchor + alpha (w - anchor).
#include "base/quantized.h"
#include "ops/element_places.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

OpRule simple(std::string_view name, int in, int out, std::vector<Attribute> attrs, std::vector<Rewrite> rewrites = {}) {
    OpRule r;
    r.name = name;
    r.operands = in, r.results = out;
    r.attrs = std::move(attrs);
    r.memory = {.rewrites = std::move(rewrites)};
    r.check = [](const Routine&, const Op&) { return std::string(); };
    r.step_end = {.of_states = true};
    return r;
}
std::vector<Attribute> numbers(std::initializer_list<std::string_view> names) {
    std::vector<Attribute> out;
    for (std::string_view name : names) out.push_back({name, AttrType::Number});
    return out;
}

// X / max(|X|, eps), then steps of X <- a X + (b A + c A A) X with A = X X^T, over the smaller of its dims.
std::vector<TensorId> orthogonalized(Builder& b, const Op& op) {
    constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
    const std::string name = b.tensor(op.in[0]).name;
    const std::vector<DimId> dims = b.dims(op.in[0]);
    Routine& r = b.routine();
    const size_t side = r.dims[dims[0]].size <= r.dims[dims[1]].size ? 0 : 1;  // where the smaller dim is
    const DimId s = dims[side];
    const auto another = [&](const char* tag) {
        const ir::Dim d{r.dims[s].name + tag, r.dims[s].size, r.dims[s].size};
        const DimId known = r.dim(d.name);
        if (known >= 0) return known;
        r.dims.push_back(d);
        return static_cast<DimId>(r.dims.size()) - 1;
    };
    const DimId s2 = another(".2"), s3 = another(".3");
    const auto as = [&](TensorId x, std::vector<DimId> to) {
        return b.op(ir::kRename, {x}, {{b.tensor(x).name, std::move(to)}})[0];
    };
    const auto with = [&](DimId d) {
        std::vector<DimId> out = dims;
        out[side] = d;
        return out;
    };
    const TensorId squares = b.einsum(name + ".ss", {}, {op.in[0], op.in[0]});
    const TensorId inverse = b.unary(name + ".inv", "inverse_norm", squares, {{"eps", kEps}});
    TensorId x = b.einsum(name + ".unit", dims, {op.in[0], inverse});
    for (int64_t i = 0; i < op.integer("ns_steps"); ++i) {
        const TensorId gram = b.einsum(name + ".gram", {s, s2}, {x, as(x, with(s2))});
        const TensorId square = b.einsum(name + ".gram2", {s, s3}, {gram, as(gram, {s2, s3})});
        const TensorId polynomial =
            b.add(name + ".poly", {b.scale(name + ".b", as(gram, {s, s3}), kB), b.scale(name + ".c", square, kC)});
        const TensorId other = as(x, with(s3));
        const TensorId product =
            b.einsum(name + ".product", dims, side == 0 ? std::vector{polynomial, other} : std::vector{other, polynomial});
        x = b.add(name + ".x", {b.scale(name + ".a", x, kA), product});
    }
    return {b.scale(name + ".scaled", x, op.number("scale"))};
}

OpRule orthogonalize() {
    OpRule r = simple("orthogonalize", 1, 1, {{"ns_steps", AttrType::Integer}, {"scale", AttrType::Number}});
    r.check = [](const Routine& rt, const Op& op) {
        return dims_of(rt, op.in[0]).size() == 2 ? same_dims(rt, op.in[0], op.out[0]) : std::string("takes a matrix");
    };
    r.expand = orthogonalized;
    r.step_end.of_states = false;  // a product like any other
    return r;
}

constexpr int64_t kControls = 7;  // of step_control

int64_t elements_of(const Routine& r, TensorId t) { return ir::global_elements(r, r.tensors[t]); }

// Many tensors on one side, a flat one on the other.
OpRule packing(std::string_view name, bool packs) {
    OpRule r;
    r.name = name;
    (packs ? r.results : r.operands) = 1;
    r.attrs = {{"begins", AttrType::Integers}};
    r.step_end = {.of_states = true};
    r.check = [packs](const Routine&, const Op& op) {
        const size_t tensors = (packs ? op.in : op.out).size();
        const bool fits = tensors > 0 && std::get<std::vector<int64_t>>(op.attrs.at("begins")).size() == tensors;
        return fits ? std::string() : std::string("has one beginning a tensor");
    };
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    return r;
}

// The same elements: in other dims, or in another tensor.
OpRule moved(std::string_view name) {
    OpRule r = simple(name, 1, 1, {}, {{0, 0}});
    r.copies = true;
    r.memory.view = true;
    return r;
}

OpRule reshape() {
    OpRule r = moved("reshape");
    r.check = [](const Routine& rt, const Op& op) {
        return elements_of(rt, op.in[0]) == elements_of(rt, op.out[0]) ? "" : std::string("keeps the number of elements");
    };
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    return r;
}

OpRule zero_padding() {
    OpRule r = simple("zero_padding", 1, 1, {{"ranges", AttrType::Integers}}, {{0, 0, true}});
    r.step_end.clears = true;
    return r;
}

OpRule obeying_control(OpRule r) {
    r.step_end.obeys_control = true;
    r.check = [check = r.check](const Routine& rt, const Op& op) {
        if (const std::string wrong = check(rt, op); !wrong.empty()) return wrong;
        const TensorId control = op.in.back();
        const bool fits = rt.tensors[control].dtype == Dtype::F64 && elements_of(rt, control) == kControls;
        return fits ? std::string() : fmt::format("its last operand is the step's control, {} float64", kControls);
    };
    return r;
}

// `flops`: for each element of operand 0.
OpRule update_of(OpRule r, double flops) {
    r = obeying_control(std::move(r));
    r.step_end.updates = true;
    r.flops = [flops](const mesh::Mesh& m, const Routine& rt, const Op& op) {
        return Flops{0, flops * static_cast<double>(ir::local_elements(m, rt, rt.tensors[op.in[0]]))};
    };
    return r;
}

// Of an update by two moments: its operands, and what it needs to round one of them at random.
std::string wrong_moments(const Routine& r, const Op& op) {
    const bool draws = op.attrs.contains("seed");
    for (const char* key : {"shards", "places"}) {
        if (op.attrs.contains(key) != draws) return fmt::format("has one of seed and {} without the other", key);
    }
    const size_t operands = draws ? 6 : 5;
    if (op.in.size() != operands) return fmt::format("takes {} operands, not {}", operands, op.in.size());
    if (!draws) return "";
    for (size_t i : {2, 3}) {
        if (r.tensors[op.in[i]].dtype != Dtype::BF16) return "only moments in bfloat16 are rounded at random";
    }
    if (!r.tensors[op.in[4]].dims.empty()) return "the number of steps is one number";
    return are_places(op) ? "" : "has not the whole numbers of each place";
}

}  // namespace

std::vector<OpRule> optimizer_rules() {
    const std::vector<Rewrite> weights_and_moments = {{0, 0}, {1, 2, true}, {2, 3, true}};
    std::vector<Attribute> adam = numbers({"beta1", "beta2", "eps", "weight_decay"});
    adam.insert(adam.end(),
                {{"seed", AttrType::Integer, true}, {"shards", AttrType::Integers, true}, {"places", AttrType::Integers, true}});
    const std::vector<Attribute> momentum = {{"momentum", AttrType::Number}, {"nesterov", AttrType::Integer}};
    std::vector<Attribute> of_sgd = momentum;
    of_sgd.push_back({"weight_decay", AttrType::Number});
    OpRule sgd = simple("sgd", -1, -1, of_sgd, {{0, 0}, {1, 2, true}});
    sgd.check = [](const Routine&, const Op& op) {
        const bool fits = op.out.size() == (op.number("momentum") != 0 ? 2 : 1) && op.in.size() == op.out.size() + 2;
        return fits ? std::string() : std::string("takes weights, gradients, a buffer where it has momentum, and control");
    };
    OpRule squares = simple("sum_squares", 1, 1, {{"count_if", AttrType::Integers}});
    squares.precision.wide = true;
    squares.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return Flops{0, 2.0 * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
    };
    // step_control(norm2, loss_sum, inv_n, steps, lr[, scale]) -> control [7] = {lr, clip coefficient, commit, bias corrections
    // 1 and 2, grad norm, loss}, steps; commit is 1 where norm and loss are finite. The norm is that of gradients / scale,
    // which the clip coefficient divides them by.
    OpRule control = simple("step_control", -1, -1, numbers({"max_norm", "beta1", "beta2"}), {{1, 3, true}});
    control.precision.wide_in = {2};
    control.check = [](const Routine&, const Op& op) {
        const bool fits = (op.in.size() == 5 || op.in.size() == 6) && op.out.size() == 2;
        return fits ? std::string() : std::string("takes 5 operands, or 6 with a loss scale, and gives 2 results");
    };
    std::vector<Attribute> of_outer = momentum;
    of_outer.insert(of_outer.begin(), {"lr", AttrType::Number}), of_outer.push_back({"alpha", AttrType::Number});
    OpRule outer = simple("outer_sgd", -1, -1, of_outer, {{0, 0}, {1, 1, true}, {2, 3, true}});
    outer.check = [](const Routine&, const Op& op) {
        const bool fits = op.out.size() == (op.number("momentum") != 0 ? 3 : 2) && op.in.size() == op.out.size() + 1;
        return fits ? std::string() : std::string("takes weights, anchor, gradients, and a buffer where it has momentum");
    };
    OpRule outer_gradient = simple("outer_gradient", 2, 1, numbers({"scale"}));
    for (OpRule* rule : {&outer, &outer_gradient}) {
        rule->flops = [flops = rule == &outer ? 8.0 : 2.0](const mesh::Mesh& m, const Routine& r, const Op& op) {
            return Flops{0, flops * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
        };
    }
    OpRule meet =
        simple(ir::kMeet, 1, 1, {{"islands", AttrType::Integer}, {"bits", AttrType::Integer}, {"count_if", AttrType::Integers}});
    meet.check = [](const Routine& r, const Op& op) {
        const ir::Tensor& x = r.tensors[op.in[0]];
        const int64_t bits = op.integer("bits");
        if (bits != 0 && bits != 8) return fmt::format("crosses islands as it is or in 8 bits, not in {}", bits);
        if (!is_float(x.dtype) || x.dims.size() != 1) return std::string("is of floats of one dim");
        const int64_t n = r.dims[x.dims[0]].size;
        return n % quantized_block(bits) == 0 ? std::string() : fmt::format("has {} elements, which are no whole blocks", n);
    };
    const auto of_adam = [&](const char* name, double flops) {
        OpRule rule = simple(name, -1, -1, adam, weights_and_moments);
        rule.check = [](const Routine& r, const Op& op) {
            if (const std::string wrong = wrong_moments(r, op); !wrong.empty()) return wrong;
            if (op.out.size() == 4) return same_dims(r, op.in[0], op.out[3]);
            return op.out.size() == 3 ? ""
                                      : std::string("gives weights, two moments, and weights in a narrower type where asked");
        };
        return update_of(std::move(rule), flops);
    };
    return {of_adam("adamw", 12),
            of_adam("adam", 14),
            update_of(sgd, 6),
            obeying_control(simple("muon_momentum", 3, 2, momentum, {{1, 1, true}})),
            orthogonalize(),
            update_of(simple("muon", 3, 1, numbers({"weight_decay"}), {{0, 0}}), 3),
            packing(ir::kUnpack, false),
            packing(ir::kPack, true),
            reshape(),
            squares,
            outer_gradient,
            outer,
            meet,
            simple("owned", -1, 1, {{"count_if", AttrType::Integers}}),
            control,
            obeying_control(simple("update_loss_scale", 4, 2, numbers({"least"}), {{0, 0}, {1, 1}})),
            zero_padding(),
            simple("inverse_count", 1, 1, {}),
            moved("copy")};
}

}  // namespace lockstep::ops
