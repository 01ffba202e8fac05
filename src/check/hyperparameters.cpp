#include "check/hyperparameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <variant>

#include "ops/rule.h"

namespace lockstep::check {
namespace {

std::string text_of(const ir::Attr& attr) {
    if (const auto* number = std::get_if<double>(&attr)) return fmt::format("{}", *number);
    if (const auto* integer = std::get_if<int64_t>(&attr)) return fmt::format("{}", *integer);
    return "another";
}

class Hyperparameters {
public:
    std::string add(const ir::Program& p, const ir::Routine& r, const ir::Op& op) {
        const ops::OpRule& rule = ops::rule(op.kind);
        const bool has_numbers = std::any_of(rule.attrs.begin(), rule.attrs.end(),
                                             [](const ops::Attribute& a) { return a.type == ops::AttrType::Number; });
        if (!rule.step_end.of_states || !has_numbers) return "";
        const auto wrong = [&](const std::string& what) { return fmt::format("{}, op {}: {}", r.name, op.kind, what); };
        const ir::Unit* unit = p.unit(r.unit);
        const ir::Segment* segment =
            rule.step_end.updates && unit ? &unit->segments.at(static_cast<size_t>(r.tensors[op.in[0]].dims[0])) : nullptr;
        if (segment && kinds_.emplace(segment->rule, op.kind).first->second != op.kind)
            return wrong(fmt::format("{} updates other segments of its rule", kinds_.at(segment->rule)));
        for (const auto& [name, value] : op.attrs) {
            if (name == "weight_decay" && segment && !segment->decay) {
                if (value != ir::Attr(0.0))
                    return wrong(fmt::format("decays segment {}, which has no decay", segment - unit->segments.data()));
                continue;
            }
            if (std::holds_alternative<std::vector<int64_t>>(value)) continue;  // of the op's own segment
            const bool is_of_all = name == "weight_decay" || name == "beta1" || name == "beta2";
            const ir::Attr& known = values_.emplace(is_of_all ? name : op.kind + "." + name, value).first->second;
            if (known != value) return wrong(fmt::format("{} is {}, and {} elsewhere", name, text_of(value), text_of(known)));
        }
        return "";
    }

private:
    std::map<std::string, ir::Attr> values_;  // by name, or by op and name
    std::map<int, std::string> kinds_;        // of updates, by rule
};

}  // namespace

std::string wrong_hyperparameters(const std::vector<const ir::Program*>& programs) {
    Hyperparameters all;
    for (const ir::Program* p : programs) {
        for (const ir::Routine& r : p->routines) {
            for (const ir::Op& op : r.ops) {
                if (std::string wrong = all.add(*p, r, op); !wrong.empty()) return wrong;
            }
        }
    }
    return "";
}

}  // namespace lockstep::check
