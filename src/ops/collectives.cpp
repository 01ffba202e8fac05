// Communication. The group is Op::group: the ranks that differ along those sub-axes, in that order; sums are taken in
// ascending order of the index along it, whatever the transport.
//   all_gather {dim}       the dim loses the group's sub-axes from the end of its placement
//   reduce_scatter {dim}   the partial sum over the group is taken, the dim gains the sub-axes
//   all_reduce             the partial sum over the group is taken
//   permute {by}           the result is the operand of the rank that stands `by` before this one, around the group
//   slice {dim}            no communication: a rank keeps its part, the dim gains the sub-axes
//   transfer {peer}        over pp: of the two ranks that differ in their pipeline rank, one gives its operand and has no
//                          result, the other has it as result and no operand; `peer` is the other's pipeline rank
//   await_transfer {peer}  until the peer has taken the operand, which was given before; see ir::Meeting
#include "ops/shapes.h"

namespace lockstep::ops {

std::vector<OpRule> collective_rules() {
    std::vector<OpRule> rules;
    for (std::string_view name : {"all_gather", "reduce_scatter", "all_reduce", "slice"}) {
        OpRule r;
        r.name = name;
        if (name != "all_reduce") r.attrs = {{"dim", AttrType::Integer}};
        if (name != "slice") {  // see ops/ways.h
            for (std::string_view word : {"gather", "reduce"}) r.attrs.push_back({word, AttrType::Text, true});
            r.attrs.push_back({"level", AttrType::Integer, true});
        }
        r.check = [](const Routine& rt, const Op& op) {
            if (op.in.size() != 1 || op.out.size() != 1)
                return fmt::format("a member of a launch has one operand and one result, not {} and {}", op.in.size(),
                                   op.out.size());
            return same_dims(rt, op.in[0], op.out[0]);
        };
        r.collective = name != "slice";
        if (name == "all_reduce") r.in_place = 0, r.rewrites = {{0, 0}};
        rules.push_back(std::move(r));
    }
    OpRule permute;
    permute.name = "permute";
    permute.operands = 1, permute.results = 1;
    permute.attrs = {{"by", AttrType::Integer}};
    permute.check = [](const Routine& rt, const Op& op) {
        if (op.integer("by") < 1) return std::string("moves its operand by one rank at least");
        return same_dims(rt, op.in[0], op.out[0]);
    };
    permute.collective = true;
    rules.push_back(std::move(permute));
    OpRule transfer;
    transfer.name = "transfer";
    transfer.check = [](const Routine&, const Op& op) {
        if (op.in.size() + op.out.size() != 1) return std::string("it gives one tensor or takes one");
        return std::string();
    };
    transfer.attrs = {{"peer", AttrType::Integer}};
    transfer.collective = true;
    rules.push_back(std::move(transfer));
    OpRule await;
    await.name = "await_transfer";
    await.operands = 1, await.results = 0;
    await.attrs = {{"peer", AttrType::Integer}};
    await.check = [](const Routine&, const Op&) { return std::string(); };
    await.collective = true;
    rules.push_back(std::move(await));
    return rules;
}

}  // namespace lockstep::ops
