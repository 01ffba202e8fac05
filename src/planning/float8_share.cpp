#include "planning/float8_share.h"

#include "ir/kinds.h"
#include "ops/rule.h"

namespace lockstep::planning {

std::optional<Float8Share> float8_share(const Plan& plan) {
    compile::Breakdown sum;  // by kind of op
    int64_t count = 0;
    for (const ir::Timeline& t : plan.simulated.timelines)
        compile::add_step(sum, count++, {&t, 1}, compile::kind_of, plan.compiled.microbatches_for_each());
    Float8Share out;
    double products = 0, float8 = 0;
    for (const auto* part : {&sum.ops, &sum.beside}) {
        for (const auto& [kind, spent] : *part) {
            if (ops::rule(kind).kept.of_product) products += spent.flops;
            if (kind == ir::kScaledEinsum) float8 += spent.flops;
            for (const std::string_view cast :
                 {ir::kAmax, ir::kToFloat8, ir::kFromFloat8, ir::kFloat8Scale, ir::kMemberAmax, ir::kMemberFloat8}) {
                if (kind == cast) out.casts_s += spent.time_s;
            }
        }
    }
    if (float8 == 0) return std::nullopt;
    out.flops = float8 / products;
    out.has_rate = plan.cluster.costs.flops_per_s.contains(ops::rates_name(Dtype::F8E4M3));
    return out;
}

}  // namespace lockstep::planning
