#include "compile/recompute_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "kernels/kernel.h"
#include "ops/rule.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

const Settings kShape = {{"model.n_layers", "6"}, {"training.seq_len", "64"}, {"model.dim", "64"}, {"model.ffn_dim", "160"}};

struct Planned {
    int64_t bytes = 0;
    double recomputed_s = 0;  // as the choice between ops counts them
};

Planned plan(Settings settings) {
    settings.insert(settings.begin(), kShape.begin(), kShape.end());
    compile::CompileOptions options;
    options.catalog = kernels::cpu_catalog(1);  // serves ops whole, as the choice counts them
    options.catalog.gives_more = false;         // what is computed again is an op of its own
    const ir::Program p = compile::compile(small_recipe(settings), options).programs[0];
    Planned out{p.arena_bytes[Place::Device], 0};
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::Routine& r = p.routines[c.routine];
        for (const ir::Op& op : r.ops) {
            if (op.attrs.contains("recomputed")) out.recomputed_s += passes::Rates{}(p.mesh, r, op);
        }
    }
    return out;
}

Planned with_mode(const std::string& mode) { return plan({{"activation_checkpoint.mode", mode}}); }

TEST(RecomputeBudget, ThePlanFitsAndSavesWhatItMay) {
    const Planned none = with_mode("none"), full = with_mode("full");
    ASSERT_LT(full.bytes, none.bytes);
    double last = 2 * full.recomputed_s;
    for (int tenth = 0; tenth <= 10; ++tenth) {
        const int64_t budget = full.bytes + (none.bytes - full.bytes) * tenth / 10;
        const Planned p =
            plan({{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", std::to_string(budget)}});
        EXPECT_LE(p.bytes, budget);
        // A part of the bytes between saves at least that part of the work, but for a layer: the last layers' bytes are free.
        EXPECT_LE(p.recomputed_s, full.recomputed_s * std::min(1.0, (10.0 - tenth) / 10 + 1.0 / 6));
        EXPECT_LE(p.recomputed_s, last);
        last = p.recomputed_s;
    }
    EXPECT_EQ(last, 0);
}

TEST(RecomputeBudget, ShareOfTheActivations) {
    const auto at = [](const char* share) {
        return plan({{"activation_checkpoint.mode", "memory_budget"}, {"activation_checkpoint.memory_budget", share}});
    };
    EXPECT_LE(at("0.0").bytes, with_mode("full").bytes);
    EXPECT_LT(at("0.0").recomputed_s, with_mode("full").recomputed_s);
    EXPECT_EQ(at("1.0").bytes, with_mode("none").bytes);
    EXPECT_LT(at("0.0").bytes, at("1.0").bytes);
    EXPECT_LT(at("1.0").recomputed_s, at("0.0").recomputed_s);
}

// Lists that were planned are not planned again: a share of the activations plans none and full once each.
TEST(RecomputeBudget, PlansEachListOnce) {
    Settings settings = kShape;
    settings.insert(settings.end(),
                    {{"activation_checkpoint.mode", "memory_budget"}, {"activation_checkpoint.memory_budget", "0.4"}});
    const ir::Program placed = program_after("fuse_loss", settings);
    std::vector<std::pair<std::vector<passes::SaveList>, bool>> planned;
    compile::save_lists(compile::config_of(small_recipe(settings)).activation_checkpoint, placed,
                        [&](const std::vector<passes::SaveList>& lists, const compile::Sizing& sizing) {
                            EXPECT_EQ(std::count(planned.begin(), planned.end(), std::pair(lists, sizing.exact)), 0);
                            planned.emplace_back(lists, sizing.exact);
                            const ir::Program p = passes::recompute(placed, lists);
                            int64_t bytes = 0;  // of all frames
                            for (const ir::Block& b : p.blocks) {
                                for (const ir::Routine& r : p.routines) {
                                    if (!r.name.starts_with(b.name + ".backward") || r.port("frame") < 0) continue;
                                    for (ir::TensorId t : r.port_tensors(r.port("frame")))
                                        bytes += ir::local_bytes(p.mesh, r, r.tensors[t]);
                                }
                            }
                            return std::vector{bytes};
                        });
    EXPECT_GT(planned.size(), 3u);
}

// Two ranks, the second with gaps between its buffers: the most that fits on both is found, mostly by sizing one of them.
TEST(RecomputeBudget, FitsEveryRank) {
    Settings settings = kShape;
    settings.insert(settings.end(), {{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", "850"}});
    const ir::Program placed = program_after("fuse_loss", settings);
    size_t of_all = 0, of_one = 0;
    const auto lists = compile::or_throw(compile::save_lists(
        compile::config_of(small_recipe(settings)).activation_checkpoint, placed,
        [&](const std::vector<passes::SaveList>& of, const compile::Sizing& sizing) {
            int64_t again = 0;
            for (const passes::SaveList& list : of) {
                if (list.values.empty()) again += list.instances.empty() ? 6 : static_cast<int64_t>(list.instances.size());
            }
            const int64_t gap = sizing.exact ? 150 : 0;
            const std::vector<int64_t> bytes = {1100 - 100 * again, 1090 - 100 * again + gap};
            ++(sizing.pipeline_rank ? of_one : of_all);
            return sizing.pipeline_rank ? std::vector{bytes[static_cast<size_t>(*sizing.pipeline_rank)]} : bytes;
        }));
    // The first rank alone would need three layers again (1100 - 300 <= 850), the second four (1240 - 400 <= 850).
    ASSERT_FALSE(lists.empty());
    EXPECT_TRUE(lists.front().values.empty());
    EXPECT_EQ(lists.front().instances, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_GT(of_one, of_all);
}

// What the last layers save is gone when the first are computed again: they save first.
TEST(RecomputeBudget, TheLastLayersSaveFirst) {
    Settings settings = kShape;
    settings.insert(settings.end(), {{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", "600"}});
    const ir::Program placed = program_after("fuse_loss", settings);
    // Each layer that is computed again is worth 100 bytes of 1,100.
    const auto lists = compile::or_throw(compile::save_lists(
        compile::config_of(small_recipe(settings)).activation_checkpoint, placed,
        [](const std::vector<passes::SaveList>& of, const compile::Sizing&) {
            int64_t bytes = 1100;
            for (const passes::SaveList& list : of) {
                const auto instances = static_cast<int64_t>(list.instances.empty() ? 6 : list.instances.size());
                if (list.values.empty()) bytes -= 100 * instances;
            }
            return std::vector{bytes};
        }));
    ASSERT_FALSE(lists.empty());
    EXPECT_TRUE(lists.front().values.empty());
    EXPECT_EQ(lists.front().instances, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

// A measured table prices what is computed again: what it says is slow is saved first.
TEST(RecomputeBudget, TheTableSaysWhatIsWorthSaving) {
    Settings settings = kShape;
    settings.insert(settings.end(), {{"training.mixed_precision_param", "float32"},
                                     {"activation_checkpoint.mode", "memory_budget"},
                                     {"activation_checkpoint.memory_budget", "0.0"}});
    const auto again = [&](const std::string& slow, const std::string& kernel, const std::string& kind) {
        ops::CostTable table;
        table.flops_per_s["f32"] = {1e11}, table.bytes_per_s = {2e10};
        const ops::CostKey key{slow, kernel, "f32", "", 1, {64, 64, 64}, 1e6, 1e4};
        table.rows = {{key, 1, 1, 1}};  // seconds for a million FLOPs
        compile::CompileOptions options;
        options.catalog = kernels::cpu_catalog(1);
        options.catalog.costs = std::make_shared<ops::CostTable>(table);
        // Of that kind within a fused op.
        const std::map<std::string, int> held = kind == "einsum" ? std::map<std::string, int>{{"qkv_rope", 3}, {"addmm", 1}}
                                                                 : std::map<std::string, int>{{"add_rmsnorm", 1}};
        int64_t count = 0;
        const ir::Program p = compile::compile(small_recipe(settings), options).programs[0];
        for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
            for (const ir::Op& op : p.routines[c.routine].ops) {
                if (op.attrs.contains("recomputed")) count += op.kind == kind ? 1 : held.contains(op.kind) ? held.at(op.kind) : 0;
            }
        }
        return count;
    };
    EXPECT_LT(again("rmsnorm", "cpu.rmsnorm", "rmsnorm"), again("einsum", "cpu.matmul", "rmsnorm"));
    EXPECT_LT(again("einsum", "cpu.matmul", "einsum"), again("rmsnorm", "cpu.rmsnorm", "einsum"));
}

// At equal bytes the solved lists recompute no more than a policy does.
TEST(RecomputeBudget, IsNoWorseThanThePolicies) {
    for (const char* option : {"op", "2", "3"}) {
        const Planned policy =
            plan({{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", option}});
        const Planned solved = plan(
            {{"activation_checkpoint.mode", "budget"}, {"activation_checkpoint.budget_bytes", std::to_string(policy.bytes)}});
        EXPECT_LE(solved.bytes, policy.bytes) << option;
        EXPECT_LE(solved.recomputed_s, policy.recomputed_s) << option;
    }
}

}  // namespace
}  // namespace lockstep::testing
