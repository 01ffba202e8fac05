#include "passes/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

ir::Program scheduled(const Settings& settings) { return program_after("schedule", settings); }

class ScheduleOf : public ::testing::TestWithParam<NamedSettings> {
protected:
    const ir::Program p = scheduled(GetParam().settings);
    const ir::Routine& routine(const ir::Call& c) const { return p.routines[c.routine]; }
};

TEST_P(ScheduleOf, ParametersAreGatheredBeforeUseAndFreedAfterIt) {
    for (const ir::Entry& e : p.entries) {
        std::set<int> gathered;
        for (const ir::Call& c : e.calls) {
            for (size_t i = 0; i < c.bindings.size(); ++i) {
                const int b = c.bindings[i].buffer;
                if (p.buffers[b].kind != ir::MemoryKind::Gathered) continue;
                const bool opens = routine(c).kind == ir::RoutineKind::Gather;
                EXPECT_EQ(gathered.contains(b), !opens) << routine(c).name << ", " << p.buffers[b].name;
                if (opens) gathered.insert(b);
                if (routine(c).kind == ir::RoutineKind::Free) gathered.erase(b);
            }
        }
        EXPECT_TRUE(gathered.empty()) << name_of(e.kind);
    }
}

// Every accumulated tensor is overwritten once, by the first that writes it in its window, and added to afterwards.
TEST_P(ScheduleOf, TheFirstWriteOfAWindowIsFresh) {
    for (const ir::Entry& e : p.entries) {
        std::set<std::pair<int, int64_t>> written;
        for (const ir::Call& c : e.calls) {
            const ir::Routine& r = routine(c);
            for (size_t i = 0; i < r.ports.size(); ++i) {
                if (r.ports[i].access != ir::Access::Accumulate) continue;
                for (ir::TensorId t : r.port_tensors(static_cast<int>(i))) {
                    const bool is_new = written.insert({c.bindings[i].buffer, r.tensors[t].offset_bytes}).second;
                    EXPECT_EQ(is_new, c.bindings[i].fresh) << r.name << " " << r.tensors[t].name;
                }
            }
        }
    }
}

TEST_P(ScheduleOf, GradientsAreReducedAfterTheLastThatAddsToThem) {
    const std::vector<ir::Call>& calls = p.entry(ir::EntryKind::Train)->calls;
    std::map<int, size_t> last_added, reduced;  // by buffer of local gradients
    std::map<std::string, int> steps;
    for (size_t i = 0; i < calls.size(); ++i) {
        const ir::Routine& r = routine(calls[i]);
        for (size_t port = 0; port < r.ports.size(); ++port) {
            if (r.ports[port].kind != ir::PortKind::Gradients) continue;
            (r.kind == ir::RoutineKind::ReduceMicro ? reduced : last_added)[calls[i].bindings[port].buffer] = i;
        }
        if (r.kind == ir::RoutineKind::ReduceStep) {
            EXPECT_EQ(calls[i].microbatch, p.microbatches - 1);
            EXPECT_EQ(++steps[r.name + std::to_string(calls[i].instance)], 1);
        }
    }
    for (const auto& [buffer, at] : reduced) EXPECT_GT(at, last_added.at(buffer)) << p.buffers[buffer].name;
}

TEST_P(ScheduleOf, BuffersHoldTheirPorts) {
    for (const ir::Entry& e : p.entries) {
        for (const ir::Call& c : e.calls) {
            for (size_t i = 0; i < c.bindings.size(); ++i) {
                EXPECT_LE(c.bindings[i].offset_bytes + routine(c).ports[i].bytes, p.buffers[c.bindings[i].buffer].bytes)
                    << routine(c).name;
            }
        }
    }
}

TEST_P(ScheduleOf, WhatIsReadWasWritten) {
    for (const ir::Entry& e : p.entries) {
        std::set<int> written;
        for (const ir::Call& c : e.calls) {
            for (size_t i = 0; i < c.bindings.size(); ++i) {
                const ir::Buffer& b = p.buffers[c.bindings[i].buffer];
                if (routine(c).ports[i].access != ir::Access::Read) written.insert(c.bindings[i].buffer);
                EXPECT_TRUE(b.resident || written.contains(c.bindings[i].buffer)) << routine(c).name << " reads " << b.name;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ScheduleOf, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

TEST(Schedule, ReplicatedParametersAreNeitherGatheredNorFreed) {
    const ir::Program p =
        scheduled({{"model.n_layers", "1"}, {"parallelism.data_parallel_shard_degree", "2"}, {"partition.preset", "none"}});
    EXPECT_EQ(calls(p, ir::EntryKind::Train), (Strings{"count[0]@0",
                                                       "begin[0]@0",
                                                       "embed.forward[0]@0",
                                                       "layer.forward[0]@0",
                                                       "head.forward[0]@0",
                                                       "head.loss[0]@0#0",
                                                       "head.loss[0]@0#1",
                                                       "head.backward[0]@0",
                                                       "reduce_step.head[0]@0",
                                                       "layer.backward[0]@0",
                                                       "reduce_step.layer[0]@0",
                                                       "embed.backward[0]@0",
                                                       "reduce_step.embed[0]@0",
                                                       "stats.embed[0]@0",
                                                       "stats.layer[0]@0",
                                                       "stats.head[0]@0",
                                                       "stats.all[0]@0",
                                                       "update.embed[0]@0",
                                                       "update.layer[0]@0",
                                                       "update.head[0]@0"}));
}

TEST(Schedule, OneRankOnlyClearsPadding) {
    for (const std::string& call : calls(scheduled({}), ir::EntryKind::Train)) {
        EXPECT_FALSE(call.starts_with("gather") || call.starts_with("reduce_micro") || call.starts_with("free")) << call;
    }
}

TEST(Schedule, WholeGradientsAddUpOverMicrobatches) {
    const ir::Program p = scheduled({{"training.global_batch_size", "2"}});
    std::vector<bool> fresh;
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::Routine& r = p.routines[c.routine];
        if (r.name == "layer.backward" && c.instance == 0) fresh.push_back(c.bindings[r.port("gradients.layer")].fresh);
    }
    EXPECT_EQ(fresh, (std::vector<bool>{true, false}));
}

TEST(Schedule, ATiedTableIsReducedOnceBehindTheEmbedding) {
    const ir::Program p = scheduled({{"model.tie_embeddings", "1"}, {"parallelism.data_parallel_shard_degree", "2"}});
    EXPECT_GT(position(p, ir::EntryKind::Train, "reduce_micro.embed[0]@0"),
              position(p, ir::EntryKind::Train, "embed.backward[0]@0"));
    EXPECT_LT(position(p, ir::EntryKind::Train, "reduce_micro.head[0]@0"),
              position(p, ir::EntryKind::Train, "layer.backward[1]@0"));
    const int loss = position(p, ir::EntryKind::Train, "head.loss[0]@0#0"),
              embed = position(p, ir::EntryKind::Train, "embed.backward[0]@0");
    const std::vector<ir::Call>& all = p.entry(ir::EntryKind::Train)->calls;
    const ir::Routine &head = *p.routine("head.loss"), &back = *p.routine("embed.backward");
    const ir::Binding &first = all[loss].bindings[head.port("gradients.embed.shared")],
                      &second = all[embed].bindings[back.port("gradients.embed.shared")];
    EXPECT_EQ(first.buffer, second.buffer);
    EXPECT_TRUE(first.fresh);
    EXPECT_FALSE(second.fresh);
}

TEST(Schedule, ChunksTakeTheNextSliceOfTheirPorts) {
    const ir::Program p = scheduled({{"training.local_batch_size", "4"}});
    const ir::Routine& r = *p.routine("head.loss");
    const std::vector<ir::Call>& all = p.entry(ir::EntryKind::Train)->calls;
    for (int64_t chunk = 0; chunk < r.chunks; ++chunk) {
        const ir::Call& c = all[position(p, ir::EntryKind::Train, "head.loss[0]@0#" + std::to_string(chunk))];
        for (size_t i = 0; i < r.ports.size(); ++i) {
            const bool whole = r.ports[i].kind == ir::PortKind::Params || r.ports[i].kind == ir::PortKind::Gradients;
            EXPECT_EQ(c.bindings[i].offset_bytes, whole ? 0 : chunk * r.ports[i].bytes) << r.ports[i].name;
        }
    }
}

TEST(Schedule, TheEntryEvalRunsForwardsOnly) {
    const ir::Program p = scheduled({{"validation.enable", "true"}, {"model.n_layers", "1"}});
    EXPECT_EQ(calls(p, ir::EntryKind::Eval),
              (Strings{"eval.count[0]@0", "embed.eval[0]@0", "layer.eval[0]@0", "head.eval[0]@0", "head.eval.loss[0]@0#0",
                       "head.eval.loss[0]@0#1", "head.eval.sum[0]@0", "eval.total[0]@0"}));
}

}  // namespace
}  // namespace lockstep::testing
