// Flat states on their way between ranks, as blocks of int8 with a scale (base/quantized.h). State ops: no derivative, and
// passes/partition_parameters places them.
//   quantize(x [n]) -> q [n / block * (block + 1)] i8 {block, least}: least is the type's least exponent
//   dequantize(q) -> x {block}
//   dequantize_sum(q [ranks, n / block * (block + 1)]) -> x [n] {block}: the sum over the ranks, in their order
// What is quantized may stand in one row of a tensor with a row for each rank.
#include "base/quantized.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_sizes(const Routine& r, const Op& op, TensorId floats, TensorId bytes) {
    const ir::Tensor &x = r.tensors[floats], &q = r.tensors[bytes];
    if (q.dtype != Dtype::I8 || is_integer(x.dtype)) return "it is between floats and int8";
    if (x.dims.size() != 1 || q.dims.empty() || q.dims.size() > 2) return "it is of one dim, and of rows of bytes";
    if (op.integer("block") != kQuantizedBlock) return fmt::format("its blocks have not {} elements", kQuantizedBlock);
    const int64_t n = r.dims[x.dims[0]].size;
    if (n % kQuantizedBlock != 0) return fmt::format("{} elements are no whole blocks", n);
    if (r.dims[q.dims.back()].size != quantized_bytes(n)) return "it has not a byte for each element and block";
    return "";
}

OpRule between(std::string_view name, bool quantizes) {
    OpRule r;
    r.name = name;
    r.operands = r.results = 1;
    r.attrs = {{"block", AttrType::Integer}};
    if (quantizes) r.attrs.push_back({"least", AttrType::Integer});
    r.check = [quantizes](const Routine& rt, const Op& op) {
        return quantizes ? check_sizes(rt, op, op.in[0], op.out[0]) : check_sizes(rt, op, op.out[0], op.in[0]);
    };
    r.of_states = true;
    return r;
}

}  // namespace

std::vector<OpRule> quantize_rules() {
    return {between("quantize", true), between("dequantize", false), between("dequantize_sum", false)};
}

}  // namespace lockstep::ops
