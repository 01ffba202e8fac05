// Communication: an op for each row of the table of collectives (mesh/collective.h), and `slice`. The group is Op::group: the
// ranks that differ along those sub-axes, in that order; sums are taken in ascending order of the index along it, whatever the
// transport.
//   all_gather {dim}       the dim loses the group's sub-axes from the end of its placement
//   reduce_scatter {dim}   the partial sum over the group is taken, the dim gains the sub-axes
//   all_reduce             the partial sum over the group is taken
//   all_to_all {from, to}  the dim `from` loses the group's sub-axes from the end of its placement, the dim `to` gains them
//   broadcast {root}       the result is the operand of the rank at this place of the group. Neither is split or partial over the
//                          group; the other ranks' operands do not count, and need not be equal
//   permute {by}           the result is the operand of the rank that is `by` places before this one, around the group
//   slice {dim}            no communication: a rank keeps its part, the dim gains the sub-axes
//   send {peer}            over pp: the operand goes to the rank of the same coordinates in the pipeline rank `peer`
//   recv {peer}            the result comes from there
//   wait {peer}            for the receipt of the earliest operand sent there that was not waited for; until then its bytes stay
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

OpRule one_to_one(std::string_view name, std::vector<Attribute> attrs) {
    OpRule r;
    r.name = name;
    r.operands = 1, r.results = 1;
    r.attrs = std::move(attrs);
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    return r;
}

OpRule one_sided(std::string_view name, int operands, int results) {
    OpRule r;
    r.name = name;
    r.operands = operands, r.results = results;
    r.attrs = {{"peer", AttrType::Integer}};
    r.check = [](const Routine&, const Op&) { return std::string(); };
    return r;
}

// What was moved from one dim to another moves back.
std::vector<TensorId> all_to_all_back(Builder& b, const Op& op, std::span<const TensorId> d_out) {
    const TensorId back = b.op("all_to_all", {d_out[0]}, {part_of(b.routine(), op.in[0])},
                               {{"from", op.integer("to")}, {"to", op.integer("from")}})[0];
    b.routine().ops.back().group = op.group;
    return {back};
}

}  // namespace

std::vector<OpRule> collective_rules() {
    std::vector<OpRule> rules;
    for (std::string_view name : {"all_gather", "reduce_scatter", "all_reduce", "slice"}) {
        OpRule r;
        r.name = name;
        if (name != "all_reduce") r.attrs = {{"dim", AttrType::Integer}};
        if (name != "slice") {  // see ops/algorithms.h
            for (std::string_view word : {"gather", "reduce"}) r.attrs.push_back({word, AttrType::Text, true});
            r.attrs.push_back({"level", AttrType::Integer, true});
        }
        r.check = [](const Routine& rt, const Op& op) {
            if (op.in.size() != 1 || op.out.size() != 1)
                return fmt::format("a member of a launch has one operand and one result, not {} and {}", op.in.size(),
                                   op.out.size());
            return same_dims(rt, op.in[0], op.out[0]);
        };
        if (name == "all_reduce") r.in_place = 0, r.rewrites = {{0, 0}};
        rules.push_back(std::move(r));
    }
    rules.push_back(one_to_one("all_to_all", {{"from", AttrType::Integer}, {"to", AttrType::Integer}}));
    rules.back().check = [](const Routine& rt, const Op& op) {
        if (op.integer("from") == op.integer("to")) return std::string("moves the group from a dim to the same one");
        return same_dims(rt, op.in[0], op.out[0]);
    };
    rules.back().derivative = all_to_all_back;
    rules.push_back(one_to_one("broadcast", {{"root", AttrType::Integer}}));
    rules.push_back(one_to_one("permute", {{"by", AttrType::Integer}}));
    rules.push_back(one_sided("send", 1, 0));
    rules.push_back(one_sided("recv", 0, 1));
    rules.push_back(one_sided("wait", 1, 0));
    for (OpRule& r : rules) r.collective = mesh::collective_named(r.name).has_value();
    return rules;
}

}  // namespace lockstep::ops
