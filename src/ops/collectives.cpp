// Communication. The group is Op::group: the ranks that differ along those sub-axes, in that order; sums are taken in
// ascending order of the index along it, whatever the transport.
//   all_gather {dim}       the dim loses the group's sub-axes from the end of its placement
//   reduce_scatter {dim}   the partial sum over the group is taken, the dim gains the sub-axes
//   all_reduce             the partial sum over the group is taken
//   slice {dim}            no communication: a rank keeps its part, the dim gains the sub-axes
#include "ops/shapes.h"

namespace lockstep::ops {

std::vector<OpRule> collective_rules() {
    std::vector<OpRule> rules;
    for (std::string_view name : {"all_gather", "reduce_scatter", "all_reduce", "slice"}) {
        OpRule r;
        r.name = name;
        r.check = [name](const Routine& rt, const Op& op) {
            const std::string dim = name == "all_reduce" ? "" : has(op, {"dim"});
            if (op.in.size() != 1 || op.out.size() != 1)
                return fmt::format("a member of a launch has one operand and one result, not {} and {}", op.in.size(),
                                   op.out.size());
            return first_of({dim, same_dims(rt, op.in[0], op.out[0])});
        };
        r.collective = name != "slice";
        if (name == "all_reduce") r.in_place = 0;
        rules.push_back(std::move(r));
    }
    return rules;
}

}  // namespace lockstep::ops
