// Flat states on their way between ranks, as blocks of int8 or int4 with a scale (base/quantized.h). State ops: no derivative,
// and passes/partition_parameters places them.
//   quantize(x [N] [, steps]) -> q [quantized_bytes(N)] i8 {bits, least[, stream]}: least is the type's least exponent. With
//       the number of steps it rounds at random, from the stream of that number. With the bits of x's own type it is x as it is
//   dequantize(q) -> x {bits}
//   dequantize_sum(q [ranks, quantized_bytes(N)]) -> x [N] {bits}: the sum over the ranks, in their order
// What is quantized may be in one row of a tensor with a row for each rank.
#include "base/quantized.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_sizes(const Routine& r, const Op& op, TensorId floats, TensorId bytes) {
    const ir::Tensor &x = r.tensors[floats], &q = r.tensors[bytes];
    if (q.dtype != Dtype::I8 || !is_float(x.dtype)) return "it is between floats and int8";
    if (x.dims.size() != 1 || q.dims.empty() || q.dims.size() > 2) return "it is of one dim, and of rows of bytes";
    const int64_t bits = op.integer("bits"), n = r.dims[x.dims[0]].size;
    if (bits != 8 && bits != 4 && bits != 8 * bytes_of(x.dtype))
        return fmt::format("its elements have {} bits, not 8, 4 or those of a float", bits);
    if (n % quantized_block(bits) != 0) return fmt::format("{} elements are no whole blocks", n);
    if (r.dims[q.dims.back()].size != quantized_bytes(n, bits)) return "it has not the bytes of its elements and blocks";
    return "";
}

OpRule between(std::string_view name, bool quantizes) {
    OpRule r;
    r.name = name;
    r.operands = quantizes ? -1 : 1, r.results = 1;
    r.attrs = {{"bits", AttrType::Integer}};
    if (quantizes) r.attrs.insert(r.attrs.end(), {{"least", AttrType::Integer}, {"stream", AttrType::Integer, true}});
    r.check = [quantizes](const Routine& rt, const Op& op) -> std::string {
        if (!quantizes) return check_sizes(rt, op, op.out[0], op.in[0]);
        if (op.in.size() != (op.attrs.contains("stream") ? 2 : 1))
            return "it takes floats, and the number of steps with a stream";
        if (op.in.size() == 2 && !rt.tensors[op.in[1]].dims.empty()) return "the number of steps is one number";
        return check_sizes(rt, op, op.in[0], op.out[0]);
    };
    r.step_end = {.of_states = true};
    return r;
}

}  // namespace

std::vector<OpRule> quantize_rules() {
    return {between(ir::kQuantize, true), between("dequantize", false), between("dequantize_sum", false)};
}

}  // namespace lockstep::ops
