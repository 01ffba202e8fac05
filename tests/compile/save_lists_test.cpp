#include "compile/save_lists.h"

#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "ops/rule.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

const Settings kShape = {{"model.n_layers", "6"}, {"training.seq_len", "64"}, {"model.dim", "64"}, {"model.ffn_dim", "160"}};

struct Planned {
    int64_t bytes = 0;
    double recomputed_flops = 0;
};

Planned plan(Settings settings) {
    settings.insert(settings.begin(), kShape.begin(), kShape.end());
    const ir::Program p = program_after("plan_memory", settings);
    Planned out{p.arena_bytes, 0};
    for (const ir::Call& c : p.entry("train")->calls) {
        const ir::Routine& r = p.routines[c.routine];
        for (const ir::Op& op : r.ops) {
            if (op.attrs.contains("recomputed")) out.recomputed_flops += ops::flops_of(p.mesh, r, op).executed;
        }
    }
    return out;
}

Planned with_mode(const std::string& mode) { return plan({{"activation_checkpoint.mode", mode}}); }

TEST(RecomputeBudget, ThePlanFitsAndUsesWhatItMay) {
    const Planned none = with_mode("none"), full = with_mode("full");
    ASSERT_LT(full.bytes, none.bytes);
    double last = full.recomputed_flops + 1;
    for (int tenth = 0; tenth <= 10; ++tenth) {
        const int64_t budget = full.bytes + (none.bytes - full.bytes) * tenth / 10;
        const Planned p =
            plan({{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", std::to_string(budget)}});
        EXPECT_LE(p.bytes, budget);
        EXPECT_GE(p.bytes, budget - (none.bytes - full.bytes) / 5);  // about a layer
        EXPECT_LE(p.recomputed_flops, last);
        last = p.recomputed_flops;
    }
    EXPECT_EQ(last, 0);
}

TEST(RecomputeBudget, ShareOfTheActivations) {
    const auto at = [](const char* share) {
        return plan({{"activation_checkpoint.mode", "memory_budget"}, {"activation_checkpoint.memory_budget", share}});
    };
    EXPECT_EQ(at("0.0").bytes, with_mode("full").bytes);
    EXPECT_EQ(at("1.0").bytes, with_mode("none").bytes);
    EXPECT_LT(at("0.3").bytes, at("0.8").bytes);
}

// At equal bytes the solved lists recompute no more than a policy does.
TEST(RecomputeBudget, IsNoWorseThanThePolicies) {
    for (const char* option : {"op", "2", "3"}) {
        const Planned policy =
            plan({{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", option}});
        const Planned solved = plan(
            {{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", std::to_string(policy.bytes)}});
        EXPECT_LE(solved.bytes, policy.bytes) << option;
        EXPECT_LE(solved.recomputed_flops, policy.recomputed_flops) << option;
    }
}

}  // namespace
}  // namespace lockstep::testing
