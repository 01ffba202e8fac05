// Blocks of a dim, one for each rank of Op::group, as a rank works on them one after the other. A tensor of one block has a dim
// of the block's size in the place of the whole one, and its values are this rank's own: which block it is depends on the rank.
// Between `block` and the op that puts blocks together again all ops are those of any other tensor.
//   block {dim, shift}   of an operand that is whole along the group: the block of the rank `shift` behind this one. Of one
//                        that is split over it, with shift 0: the rank's own, the same bytes
//   join_blocks {dim}    operand i is the block of the rank i before this one; the result is whole along the group
//   sum_blocks {dim}     operand i is what the rank i before this one has for this rank's block: their sum, taken in the order
//                        and with the roundings of a reduce_scatter, is the result, which is split over the group
// Source: the decomposed collectives of Wang et al. (ASPLOS 2023, "Overlap Communication with Dependent Computation via
// Decomposition") and PyTorch's asynchronous tensor parallelism.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

// Dims of `block` are those of `whole` but for the one at `dim`.
std::string one_dim_apart(const Routine& r, const Op& op, TensorId whole, TensorId block) {
    const std::vector<DimId>&a = dims_of(r, whole), &b = dims_of(r, block);
    const int64_t dim = op.integer("dim");
    if (dim < 0 || dim >= static_cast<int64_t>(a.size()) || a.size() != b.size()) return "it has no such dim";
    for (size_t i = 0; i < a.size(); ++i) {
        if (static_cast<int64_t>(i) != dim && a[i] != b[i])
            return fmt::format("{} and {} differ in another dim", r.tensors[whole].name, r.tensors[block].name);
    }
    return r.dims[a[static_cast<size_t>(dim)]].size % std::max<int64_t>(r.dims[b[static_cast<size_t>(dim)]].size, 1) == 0
               ? std::string()
               : std::string("blocks of this size do not make the whole");
}

OpRule from_blocks(std::string_view name) {
    OpRule r;
    r.name = name;
    r.results = 1;
    r.attrs = {{"dim", AttrType::Integer}};
    r.check = [](const Routine& rt, const Op& op) {
        if (op.in.size() < 2) return std::string("takes a block of each rank");
        std::string wrong;
        for (TensorId t : op.in) wrong = first_of({wrong, one_dim_apart(rt, op, op.out[0], t), same_dims(rt, op.in[0], t)});
        return wrong;
    };
    r.sharding = {.of_blocks = true};
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    return r;
}

}  // namespace

std::vector<OpRule> block_rules() {
    OpRule block;
    block.name = ir::kBlock;
    block.operands = 1, block.results = 1;
    block.attrs = {{"dim", AttrType::Integer}, {"shift", AttrType::Integer}};
    block.check = [](const Routine& rt, const Op& op) {
        if (op.integer("shift") < 0) return std::string("its shift is negative");
        return one_dim_apart(rt, op, op.in[0], op.out[0]);
    };
    block.sharding = {.of_blocks = true};
    block.memory = {.view = true, .in_place = 0, .rewrites = {{0, 0}}};
    block.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    return {block, from_blocks("join_blocks"), from_blocks(ir::kSumBlocks)};
}

}  // namespace lockstep::ops
