// Communication: an op for each row of the table of collectives (mesh/collective.h), and `slice`. The group is Op::group: the
// ranks that differ along those sub-axes, in that order; sums are taken in ascending order of the index along it, whatever the
// transport.
//   all_gather {dim}       the dim loses the group's sub-axes from the end of its placement
//   reduce_scatter {dim}   the partial sum over the group is taken, the dim gains the sub-axes
//   all_reduce             the partial sum over the group is taken
//   all_to_all {from, to}  the dim `from` loses the group's sub-axes from the end of its placement, the dim `to` gains them
//   broadcast {root}       the result is the operand of the rank at this place of the group. Neither is split or partial over
//                          the group; the other ranks' operands do not count, and need not be equal
//   permute {by}           the result is the operand of the rank that is `by` places before this one, around the group
//   slice {dim}            no communication: a rank keeps its part, the dim gains the sub-axes
//   send {peer}            over pp: the operand goes to the rank of the same coordinates in the pipeline rank `peer`
//   recv {peer}            the result comes from there
//   wait {peer}            for the receipt of the earliest operand sent there that was not waited for;
//                          until then its bytes stay
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_member(const Routine& rt, const Op& op) {
    if (op.in.size() != 1 || op.out.size() != 1)
        return fmt::format("a member of a launch has one operand and one result, not {} and {}", op.in.size(), op.out.size());
    return same_dims(rt, op.in[0], op.out[0]);
}

// What was moved from one dim to another moves back.
std::vector<TensorId> all_to_all_back(Builder& b, const Op& op, std::span<const TensorId> d_out) {
    const TensorId back = b.op("all_to_all", {d_out[0]}, {part_of(b.routine(), op.in[0])},
                               {{"from", op.integer("to")}, {"to", op.integer("from")}})[0];
    b.routine().ops.back().group = op.group;
    return {back};
}

OpRule rule_of(const mesh::CollectiveTraits& traits) {
    OpRule r;
    r.name = traits.name;
    r.collective = true;
    for (mesh::Attr attr : {traits.attr, traits.other_attr}) {
        if (attr != mesh::Attr::None) r.attrs.push_back({name_of(attr), AttrType::Integer});
    }
    r.attrs.push_back({"transport", AttrType::Text, true});  // see ops/algorithms.h, also of what follows
    if (traits.has_algorithm()) {
        for (std::string_view word : {"gather", "reduce"}) r.attrs.push_back({word, AttrType::Text, true});
        r.attrs.push_back({"level", AttrType::Integer, true});
    }
    r.check = check_member;
    if (!traits.symmetric) {  // the sender's tensor, or the receiver's
        r.results = traits.takes == mesh::Blocks::None ? 0 : 1, r.operands = 1 - r.results;
        r.check = [](const Routine&, const Op&) { return std::string(); };
    }
    if (traits.kind == mesh::Collective::AllReduce) r.memory.in_place = 0, r.memory.rewrites = {{0, 0}};
    if (traits.kind == mesh::Collective::AllToAll) {
        r.check = [](const Routine& rt, const Op& op) {
            if (op.integer("from") == op.integer("to")) return std::string("moves the group from a dim to the same one");
            return check_member(rt, op);
        };
        r.derivative = all_to_all_back;
    }
    return r;
}

OpRule slice() {
    OpRule r;
    r.name = ir::kSlice;
    r.attrs = {{"dim", AttrType::Integer}};
    r.check = check_member;
    r.memory = {.always_recomputed = true};
    return r;
}

}  // namespace

std::vector<OpRule> collective_rules() {
    std::vector<OpRule> rules;
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) rules.push_back(rule_of(traits));
    rules.push_back(slice());
    return rules;
}

}  // namespace lockstep::ops
