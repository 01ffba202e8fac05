// Float8: a tensor is stored as codes q with one scale for each group of its elements, x = q s. The largest size of a group decides
// its scale (base/float8.h), as in torchao. Groups follow from the dims of a scale: each is a dim of q, or coarse (ir::Dim::of) of
// one, and all other dims of q are in one group. So [rows] of a scale are rows, [] is the whole tensor, and two coarse dims are
// tiles.
//   amax(x, ..) -> a: the largest |x| of each group, of all operands together; in float32, of float64 in float64. NaN where a
//       group has one
//   to_float8(x, amax) {[power_of_two]} -> q, s: q = encode(x scale), s = 1 / scale in the type and dims of amax. The product is
//       one of float32, of float64 where x is. The type of q is that of its tensor
//   to_blocks(x) {along, block[, rounding]} -> q, s: both steps at once for blocks of `block` neighbours along a dim, of which a
//       rank has whole ones. s has the dims of x with a coarse one in place of `along`. In E8M0 it is the power of two that
//       `rounding` (floor, rceil) says: MX of OCP Microscaling Formats 1.0. Without rounding it is that of to_float8
//   from_float8(q[, s]) -> x; without s the codes as they are
//   scaled_einsum(a, b, sa, sb) {[fast]} -> y: einsum(a sa, b sb), names decide; a scale of groups along a contracted dim is applied
//       within the sum. `fast`: a machine may sum in fewer bits than float32 has. Both in E5M2 is no product that machines have
//   apply_scales(x, s, ..) -> y: x with the scale of its group, of each s
// Differentiation is done before there are such ops: values pass as if they were not rounded. None has a derivative.
#include "ops/einsum.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

const ir::Tensor& tensor(const Routine& r, TensorId t) { return r.tensors[static_cast<size_t>(t)]; }

// Are the dims of `groups` such of `whole`?
std::string check_groups(const Routine& r, TensorId groups, TensorId whole) {
    const std::vector<DimId>& dims = dims_of(r, whole);
    std::vector<DimId> seen;
    for (const DimId d : dims_of(r, groups)) {
        const ir::Dim& dim = r.dims[static_cast<size_t>(d)];
        const bool is_own = std::find(dims.begin(), dims.end(), d) != dims.end();
        const DimId fine = is_own ? d : dim.of;
        if (fine < 0 || std::find(dims.begin(), dims.end(), fine) == dims.end())
            return fmt::format("{} of {} is no dim of {} and coarse of none", dim.name, tensor(r, groups).name,
                               tensor(r, whole).name);
        if (std::find(seen.begin(), seen.end(), fine) != seen.end())
            return fmt::format("{} has groups of {} twice", tensor(r, groups).name, r.dims[static_cast<size_t>(fine)].name);
        seen.push_back(fine);
    }
    return "";
}

std::string check_float(const Routine& r, TensorId t) {
    return is_float(tensor(r, t).dtype) ? std::string() : fmt::format("{} is {}", tensor(r, t).name, name_of(tensor(r, t).dtype));
}
std::string check_float8(const Routine& r, TensorId t) {
    if (is_float8(tensor(r, t).dtype)) return "";
    return fmt::format("{} is {}, not float8", tensor(r, t).name, name_of(tensor(r, t).dtype));
}
std::string check_scale(const Routine& r, TensorId s, TensorId q) {
    if (!is_wide(tensor(r, s).dtype) && tensor(r, s).dtype != Dtype::E8M0)
        return fmt::format("{} is {}", tensor(r, s).name, name_of(tensor(r, s).dtype));
    return check_groups(r, s, q);
}
// Of what is made of x and is no code.
std::string check_type(const Routine& r, TensorId t, Dtype type) {
    return tensor(r, t).dtype == type ? std::string() : fmt::format("{} is not {}", tensor(r, t).name, name_of(type));
}
Dtype type_beside(const Routine& r, TensorId x) { return tensor(r, x).dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32; }
std::string check_amax(const Routine& r, TensorId amax, TensorId x) {
    if (const std::string wrong = check_type(r, amax, type_beside(r, x)); !wrong.empty()) return wrong;
    return first_of({check_float(r, x), check_groups(r, amax, x)});
}

OpRule amax() {
    OpRule r;
    r.name = ir::kAmax;
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        std::string wrong = op.in.empty() ? "takes one operand or more" : "";
        for (const TensorId x : op.in) {
            if (wrong.empty()) wrong = check_amax(rt, op.out[0], x);
        }
        return wrong;
    };
    r.sharding = {.reduce = ir::Reduce::Max, .aligned = true};
    r.flops = [](const mesh::Mesh& mesh, const Routine& rt, const Op& op) {
        int64_t elements = 0;
        for (const TensorId x : op.in) elements += ir::local_elements(mesh, rt, tensor(rt, x));
        return Flops{0, static_cast<double>(elements)};
    };
    r.precision = {.wide_out = {0}};
    return r;
}

OpRule to_float8() {
    OpRule r;
    r.name = ir::kToFloat8;
    r.operands = 2, r.results = 2;
    r.attrs = {{"power_of_two", AttrType::Integer, true}};
    r.check = [](const Routine& rt, const Op& op) {
        const TensorId x = op.in[0], amax = op.in[1], q = op.out[0], s = op.out[1];
        if (tensor(rt, s).dtype != tensor(rt, amax).dtype)
            return fmt::format("{} and {} are of two types", tensor(rt, amax).name, tensor(rt, s).name);
        return first_of({check_amax(rt, amax, x), check_float8(rt, q), same_dims(rt, x, q), same_dims(rt, amax, s)});
    };
    r.sharding = {.repeated = {1}, .aligned = true};
    r.precision = {.wide_in = {1}, .wide_out = {1}};
    return r;
}

// Blocks of this many along this dim, in the order of x.
std::string check_blocks(const Routine& r, TensorId s, TensorId x, DimId along, int64_t block) {
    std::vector<DimId> dims = dims_of(r, x);
    const auto at = std::find(dims.begin(), dims.end(), along);
    const std::vector<DimId>& of_s = dims_of(r, s);
    if (at != dims.end() && of_s.size() == dims.size()) {
        const DimId blocks = of_s[static_cast<size_t>(at - dims.begin())];
        const ir::Dim& dim = r.dims[static_cast<size_t>(blocks)];
        if (dim.of == along && dim.each == block) *at = blocks;
        if (dims == of_s) return "";
    }
    return fmt::format("{} has not the dims of {} with blocks of {} along {}", tensor(r, s).name, tensor(r, x).name, block,
                       along < 0 ? "no dim" : r.dims[static_cast<size_t>(along)].name);
}

OpRule to_blocks() {
    OpRule r;
    r.name = ir::kToBlocks;
    r.operands = 1, r.results = 2;
    r.attrs = {{"along", AttrType::Text}, {"block", AttrType::Integer}, {"rounding", AttrType::Text, true}};
    r.check = [](const Routine& rt, const Op& op) {
        const TensorId x = op.in[0], q = op.out[0], s = op.out[1];
        std::string rounding, type = check_type(rt, s, type_beside(rt, x));
        if (op.attrs.contains("rounding")) {
            rounding = op.text("rounding");
            const bool is_known = rounding == "floor" || rounding == "rceil";
            rounding = is_known ? "" : fmt::format("its rounding is {}, not floor or rceil", rounding);
            type = check_type(rt, s, Dtype::E8M0);
        }
        return first_of({check_float(rt, x), check_float8(rt, q), same_dims(rt, x, q), rounding, type,
                         check_blocks(rt, s, x, rt.dim(op.text("along")), op.integer("block"))});
    };
    r.sharding = {.aligned = true};
    r.precision = {.wide_out = {1}};
    return r;
}

OpRule from_float8() {
    OpRule r;
    r.name = ir::kFromFloat8;
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        if (op.in.empty() || op.in.size() > 2) return std::string("takes codes, and maybe a scale");
        const TensorId q = op.in[0], x = op.out[0];
        return first_of({check_float8(rt, q), op.in.size() == 2 ? check_scale(rt, op.in[1], q) : "", check_float(rt, x),
                         same_dims(rt, q, x)});
    };
    r.sharding = {.aligned = true};
    r.precision = {.wide_in = {1}};
    return r;
}

// Are all groups of the scale such of dims of the result?
bool is_of_result(const Routine& r, TensorId s, const std::vector<DimId>& result) {
    return std::all_of(dims_of(r, s).begin(), dims_of(r, s).end(), [&](DimId d) {
        const DimId of = r.dims[static_cast<size_t>(d)].of;
        const auto has = [&](DimId one) { return std::find(result.begin(), result.end(), one) != result.end(); };
        return has(d) || (of >= 0 && has(of));
    });
}

OpRule scaled_einsum() {
    OpRule r;
    r.name = ir::kScaledEinsum;
    r.operands = 4, r.results = 1;
    r.attrs = {{"fast", AttrType::Integer, true}};
    r.check = [](const Routine& rt, const Op& op) {
        const TensorId a = op.in[0], b = op.in[1];
        const bool exists = tensor(rt, a).dtype != Dtype::F8E5M2 || tensor(rt, b).dtype != Dtype::F8E5M2;
        return first_of({check_float8(rt, a), check_float8(rt, b), exists ? "" : "its factors are both f8e5m2",
                         check_scale(rt, op.in[2], a), check_scale(rt, op.in[3], b), check_float(rt, op.out[0])});
    };
    r.sharding = {.aligned = true};
    r.precision = {.wide_in = {2, 3}};
    r.kept = {.operands = {0, 1}, .of_product = true};
    r.flops = einsum_flops;
    // A machine without such products multiplies codes as bfloat16, which are exact. Scales of contracted groups are applied to
    // the codes, which rounds them where a scale is no power of two, and all others to the result.
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const ir::Tensor y = b.tensor(op.out[0]);
        const Dtype type = y.dtype == Dtype::F64 ? Dtype::F64 : Dtype::BF16;
        std::vector<TensorId> factors, scaled = {-1};
        for (const size_t i : {0, 1}) {
            const TensorId q = op.in[i], s = op.in[i + 2];
            std::vector<TensorId> in = {q};
            (is_of_result(b.routine(), s, y.dims) ? scaled : in).push_back(s);
            factors.push_back(b.op(ir::kFromFloat8, in, {{b.tensor(q).name + ".wide", b.dims(q), type}})[0]);
        }
        scaled[0] = b.einsum("product", y.dims, factors);
        if (scaled.size() > 1) return b.op(ir::kApplyScales, scaled, {{"scaled", y.dims, y.dtype}});
        return y.dtype == Dtype::F16 ? b.op(ir::kCast, scaled, {{"cast", y.dims, y.dtype}}) : scaled;
    };
    return r;
}

OpRule apply_scales() {
    OpRule r;
    r.name = ir::kApplyScales;
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        if (op.in.size() < 2) return std::string("takes two operands or more");
        const TensorId x = op.in[0], y = op.out[0];
        std::string wrong = first_of({check_float(rt, x), check_float(rt, y), same_dims(rt, x, y)});
        for (size_t i = 1; i < op.in.size(); ++i) wrong = first_of({wrong, check_scale(rt, op.in[i], x)});
        return wrong;
    };
    r.sharding = {.linear = {0}, .aligned = true};
    r.precision = {.wide_in = {0, 1, 2}};
    return r;
}

}  // namespace

std::vector<OpRule> float8_rules() { return {amax(), to_float8(), to_blocks(), from_float8(), scaled_einsum(), apply_scales()}; }

}  // namespace lockstep::ops
