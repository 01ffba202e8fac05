#include "planning/their_stack.h"

#include "base/error.h"
#include "base/shipped.h"

namespace lockstep::planning {

std::string stack_that_runs(const interop::Reading& reading) {
    const compile::Recipe& recipe = reading.recipe;
    if (recipe.is_torchtitans()) return recipe.flag("compile.enable") ? "torchtitan_compiled" : "torchtitan_eager";
    const auto says = [&](const std::string& argument) {
        for (const auto* items : {&reading.mapped, &reading.no_effect}) {
            for (const interop::Item& i : *items) {
                if (i.said.starts_with(argument)) return true;
            }
        }
        return false;
    };
    if (reading.kind == interop::Reading::Kind::Megatron) return says("--deepspeed") ? "megatron_deepspeed" : "megatron_core";
    if (reading.kind == interop::Reading::Kind::DeepSpeed && recipe.text("partition.preset") == "zero3") return "deepspeed_zero3";
    return "";
}

std::optional<TheirPlan> plan_in_their_stack(const interop::Reading& reading, const compile::Recipe& opened,
                                             const std::string& cluster_file) {
    const std::string name = stack_that_runs(reading);
    if (name.empty() || !reading.recipe.text("cluster.stack").empty()) return std::nullopt;
    const std::string file = file_or_shipped(Shipped::Stacks, name);
    if (file == name) return std::nullopt;  // no stacks came with this program
    compile::Recipe recipe = opened;
    recipe.set("cluster.stack", file);
    try {
        TheirPlan out{name, plan_of_opened(recipe, cluster_file)};
        if (!out.plan.cluster.devices) return std::nullopt;
        return out;
    } catch (const UserError&) {  // Lockstep's own plan does not need it
        return std::nullopt;
    }
}

}  // namespace lockstep::planning
