#include "passes/overlap.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/happens_before.h"
#include "ops/rule.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

const Settings kSharded = {{"parallelism.data_parallel_shard_degree", "2"}};

Strings forward_calls(int64_t prefetch) {
    const ir::Program p = passes::overlap(program_after("schedule", kSharded), {prefetch});
    Strings all = calls(p, ir::EntryKind::Train);
    all.erase(all.begin(), all.begin() + 2);  // count, begin
    all.resize(static_cast<size_t>(std::find(all.begin(), all.end(), "head.forward[0]@0") - all.begin()) + 1);
    return all;
}

TEST(Overlap, GathersStayWithoutPrefetch) {
    EXPECT_EQ(
        forward_calls(0),
        split_words("gather.embed[0]@0 embed.forward[0]@0 free.embed[0]@0 gather.layer[0]@0 layer.forward[0]@0 free.layer[0]@0 "
                    "gather.layer[1]@0 layer.forward[1]@0 free.layer[1]@0 gather.head[0]@0 head.forward[0]@0"));
}

TEST(Overlap, GathersStandAheadOfTheUnitBefore) {
    EXPECT_EQ(
        forward_calls(1),
        split_words("gather.embed[0]@0 gather.layer[0]@0 embed.forward[0]@0 free.embed[0]@0 gather.layer[1]@0 layer.forward[0]@0 "
                    "free.layer[0]@0 gather.head[0]@0 layer.forward[1]@0 free.layer[1]@0 gather.layer[1]@0 head.forward[0]@0"));
}

TEST(Overlap, GathersStandTwoUnitsAhead) {
    EXPECT_EQ(
        forward_calls(2),
        split_words("gather.embed[0]@0 gather.layer[0]@0 gather.layer[1]@0 embed.forward[0]@0 free.embed[0]@0 gather.head[0]@0 "
                    "layer.forward[0]@0 free.layer[0]@0 gather.layer[1]@0 layer.forward[1]@0 free.layer[1]@0 gather.layer[0]@0 "
                    "head.forward[0]@0"));
}

TEST(Overlap, UnitsCommunicateOnTheirOwnStream) {
    const ir::Program p = program_after("overlap", kSharded);
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::RoutineKind kind = p.routines[c.routine].kind;
        const bool comm =
            kind == ir::RoutineKind::Gather || kind == ir::RoutineKind::ReduceMicro || kind == ir::RoutineKind::ReduceStep;
        EXPECT_EQ(c.queue == QueueName::Comm, comm) << p.routines[c.routine].name;
    }
}

// Asynchronous tensor parallelism, split parameters and a pipeline: three kinds of groups, none in another's queue.
TEST(Overlap, CollectivesOfOtherAxesHaveQueuesOfTheirOwn) {
    Settings settings = kSharded;
    settings.insert(settings.end(), {{"parallelism.tensor_parallel_degree", "2"},
                                     {"parallelism.enable_async_tensor_parallel", "true"},
                                     {"parallelism.pipeline_parallel_degree", "2"}});
    const ir::Program p = program_after("overlap", settings);
    ByStepQueue<std::set<std::string>> axes;
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::Routine& r = p.routines[c.routine];
        for (const ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).collective || c.queue == QueueName::Compute) continue;
            axes[c.queue].insert(r.kind == ir::RoutineKind::Transfer ? "pipeline" : p.mesh.text(op.group));
        }
    }
    // Gradients of weights that every tensor-parallel rank has are summed over those ranks, too.
    EXPECT_EQ(axes[QueueName::Comm], (std::set<std::string>{"dp_shard", "tp"}));
    EXPECT_EQ(axes[QueueName::Tensor], (std::set<std::string>{"tp"}));
    EXPECT_EQ(axes[QueueName::Pipeline], (std::set<std::string>{"pipeline"}));
}

TEST(Overlap, AForwardWaitsForItsGatherOnly) {
    const ir::Program p = program_after("overlap", kSharded);
    const std::vector<ir::Call>& all = p.entry(ir::EntryKind::Train)->calls;
    const auto at = [&](const char* call) { return position(p, ir::EntryKind::Train, call); };
    EXPECT_EQ(all[at("embed.forward[0]@0")].waits, (std::vector<int>{at("gather.embed[0]@0")}));
    EXPECT_EQ(all[at("layer.forward[0]@0")].waits, (std::vector<int>{at("gather.layer[0]@0")}));
    EXPECT_EQ(all[at("free.layer[0]@0")].waits, std::vector<int>{});
}

TEST(Overlap, CommunicationNeverRunsAheadOfItsPlace) {
    const ir::Program p = program_after("overlap", kSharded);
    const std::vector<ir::Call>& all = p.entry(ir::EntryKind::Train)->calls;
    const ir::HappensBefore before(all);
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
        for (int k = 0; k < i && all[i].queue == QueueName::Comm; ++k) {
            EXPECT_TRUE(all[k].queue == QueueName::Comm || before(k, i)) << k << " before " << i;
        }
    }
}

class OverlapOf : public ::testing::TestWithParam<NamedSettings> {};

// Two calls that use one buffer, one of them writing, are ordered in every execution.
TEST_P(OverlapOf, WhatTouchesABufferIsOrdered) {
    for (int64_t prefetch : {0, 1, 3}) {
        const ir::Program p = passes::overlap(program_after("schedule", GetParam().settings), {prefetch});
        for (const ir::Entry& e : p.entries) {
            const ir::HappensBefore before(e.calls);
            for (int i = 0; i < static_cast<int>(e.calls.size()); ++i) {
                for (int k = 0; k < i; ++k) {
                    const auto conflict = [&] {
                        for (size_t a = 0; a < e.calls[i].bindings.size(); ++a) {
                            for (size_t b = 0; b < e.calls[k].bindings.size(); ++b) {
                                const bool write = p.routines[e.calls[i].routine].ports[a].access != ir::Access::Read ||
                                                   p.routines[e.calls[k].routine].ports[b].access != ir::Access::Read;
                                if (write && e.calls[i].bindings[a].buffer == e.calls[k].bindings[b].buffer) return true;
                            }
                        }
                        return false;
                    }();
                    EXPECT_TRUE(!conflict || before(k, i)) << name_of(e.kind) << ", calls " << k << " and " << i;
                }
            }
        }
    }
}

TEST_P(OverlapOf, TheSameCallsAreMade) {
    const ir::Program before = program_after("schedule", GetParam().settings), after = passes::overlap(before, {2});
    for (const ir::Entry& e : before.entries) {
        Strings a = calls(before, e.kind), b = calls(after, e.kind);
        std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
        EXPECT_EQ(a, b);
    }
}

INSTANTIATE_TEST_SUITE_P(Recipes, OverlapOf, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
