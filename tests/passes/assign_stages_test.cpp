#include "passes/assign_stages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "check/check.h"
#include "compile/memory_report.h"
#include "kernels/kernel.h"
#include "ops/rule.h"
#include "schedules/timeline.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

const std::string kDegree = "parallelism.pipeline_parallel_degree", kGlobalBatch = "training.global_batch_size",
                  kSchedule = "parallelism.pipeline_parallel_schedule", kLayers = "model.n_layers",
                  kFirstLess = "parallelism.pipeline_parallel_first_stage_less_layers",
                  kLastLess = "parallelism.pipeline_parallel_last_stage_less_layers";

compile::Compiled compiled(const Settings& settings) { return compile_recipe(small_recipe(settings), Backend::Reference); }

// "embed 0 1 | 2 3 | 4 head": blocks by stage.
std::string text_of(const passes::Cut& cut) {
    std::string out;
    for (const auto& stage : cut.stages) {
        if (!out.empty()) out += " |";
        for (const ir::BlockInstance& b : stage)
            out += (out.empty() ? "" : " ") + (b.block == "layer" ? std::to_string(b.instance) : b.block);
    }
    return out;
}
std::string cut_of(const Settings& settings) { return text_of(compiled(settings).stages.cut); }

TEST(AssignStages, LayersAreCutAsTorchTitanCutsThem) {
    // By hand from generate_llm_fqn_per_model_part: 8 + 1 + 1 = 10 over 4 stages is 2 each, the first two one more.
    EXPECT_EQ(cut_of({{kDegree, "4"}, {kLayers, "8"}, {kFirstLess, "1"}}), "embed 0 1 | 2 3 4 | 5 6 | 7 head");
    EXPECT_EQ(cut_of({{kDegree, "2"}, {kLayers, "4"}, {kFirstLess, "0"}, {kLastLess, "0"}}), "embed 0 1 | 2 3 head");
    EXPECT_EQ(cut_of({{kDegree, "2"}, {kLayers, "4"}, {kFirstLess, "0"}, {kLastLess, "2"}}), "embed 0 1 2 | 3 head");
    EXPECT_EQ(cut_of({{kDegree, "2"},
                      {kLayers, "6"},
                      {kSchedule, "Interleaved1F1B"},
                      {"parallelism.pipeline_parallel_layers_per_stage", "2"}}),
              "embed 0 | 1 2 | 3 4 | 5 head");
    EXPECT_EQ(cut_of({{kDegree, "2"},
                      {kLayers, "3"},
                      {"parallelism.module_fqns_per_model_part",
                       R"([["tok_embeddings"], ["layers.0", "layers.1", "layers.2", "norm", "output"]])"}}),
              "embed | 0 1 2 head");
}

double flops_of(const ir::Program& p, const ir::BlockInstance& b) {
    double flops = 0;
    for (const ir::Routine& r : p.routines) {
        if (r.block != b.block || !r.serves(b.instance)) continue;
        for (const ir::Op& op : r.ops) flops += static_cast<double>(r.chunks) * ops::flops_of(p.mesh, r, op).executed;
    }
    return flops;
}

TEST(AssignStages, WithoutKeysTheCostliestStageIsAsCheapAsCanBe) {
    for (const std::string ranks : {"2", "3", "4"}) {
        const Settings settings = {{kDegree, ranks}, {kLayers, "5"}, {"model.vocab_size", "60"}};
        const ir::Program whole = program_after("select_kernels", settings);
        const passes::Cut cut = compiled(settings).stages.cut;
        const std::vector<ir::BlockInstance> blocks = whole.block_instances();
        std::vector<double> cost;
        for (const ir::BlockInstance& b : blocks) cost.push_back(flops_of(whole, b));
        const auto stage_cost = [&](size_t begin, size_t end) {
            return std::accumulate(cost.begin() + begin, cost.begin() + end, 0.0);
        };
        double most = 0;
        size_t at = 0;
        for (const auto& stage : cut.stages) most = std::max(most, stage_cost(at, at + stage.size())), at += stage.size();
        EXPECT_EQ(at, blocks.size());
        // Every other way to put the borders.
        const size_t n = cut.stages.size();
        for (unsigned borders = 0; borders < 1u << (blocks.size() - 1); ++borders) {
            if (static_cast<size_t>(__builtin_popcount(borders)) != n - 1) continue;
            double costliest = 0;
            for (size_t begin = 0, i = 1; i <= blocks.size(); ++i) {
                if (i < blocks.size() && !(borders >> (i - 1) & 1)) continue;
                costliest = std::max(costliest, stage_cost(begin, i)), begin = i;
            }
            EXPECT_GE(costliest, most * (1 - 1e-12)) << text_of(cut);
        }
    }
}

TEST(AssignStages, AStageHoldsItsBlocksUnderTheModelsNumbers) {
    const compile::Compiled c =
        compiled({{kDegree, "2"}, {kLayers, "4"}, {kFirstLess, "0"}, {kLastLess, "0"}, {kGlobalBatch, "2"}});
    ASSERT_EQ(c.programs.size(), 2u);
    const ir::Program& second = c.programs[1];
    EXPECT_EQ(second.block("embed")->instances(), std::vector<int64_t>{});
    EXPECT_EQ(second.block("layer")->instances(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(second.unit("embed"), nullptr);
    EXPECT_GE(second.buffer("weights.layer[3]"), 0);
    EXPECT_EQ(second.buffer("weights.layer[1]"), -1);
    const std::vector<std::string> all = calls(second, ir::EntryKind::Train);
    EXPECT_EQ(std::count(all.begin(), all.end(), "receive.layer.from0[1]@0"), 1);
    EXPECT_LT(position(second, ir::EntryKind::Train, "receive.layer.from0[1]@0"),
              position(second, ir::EntryKind::Train, "layer.forward[2]@0"));
    EXPECT_LT(position(second, ir::EntryKind::Train, "layer.backward[2]@0"),
              position(second, ir::EntryKind::Train, "send.d.layer.to0[1]@0"));
    EXPECT_GE(position(c.programs[0], ir::EntryKind::Train, "receive.d.layer.from1[1]@1"), 0);
}

TEST(AssignStages, ATiedEmbeddingHasAnOwnerAndAMirror) {
    const compile::Compiled c = compiled({{kDegree, "2"}, {"model.tie_embeddings", "1"}, {kGlobalBatch, "2"}});
    const ir::Unit *owner = c.programs[0].unit("embed"), *mirror = c.programs[1].unit("embed");
    ASSERT_TRUE(owner && mirror);
    EXPECT_FALSE(owner->mirror);
    EXPECT_TRUE(mirror->mirror);
    EXPECT_EQ(c.programs[1].buffer("exp_avg.embed[0]"), -1);
    EXPECT_EQ(c.programs[1].routine("update.embed"), nullptr);
    EXPECT_GE(position(c.programs[0], ir::EntryKind::Train, "mirror.add_gradients.embed.1[0]@1"), 0);
    EXPECT_LT(position(c.programs[0], ir::EntryKind::Train, "mirror.add_gradients.embed.1[0]@1"),
              position(c.programs[0], ir::EntryKind::Train, "stats.embed[0]@1"));
    EXPECT_LT(position(c.programs[0], ir::EntryKind::Train, "update.embed[0]@1"),
              position(c.programs[0], ir::EntryKind::Train, "mirror.send_weights.embed.1[0]@1"));
    EXPECT_GE(position(c.programs[1], ir::EntryKind::Train, "mirror.receive_weights.embed.0[0]@1"), 0);
}

// Frames of one layer that are written and not yet read for the last time, at most.
int64_t frames_at_once(const ir::Program& p, int64_t layer) {
    std::map<int, std::pair<int, int>> life;  // buffer -> first and last call
    const ir::Entry& e = *p.entry(ir::EntryKind::Train);
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Routine& r = p.routines[e.calls[i].routine];
        if (r.block != "layer" || e.calls[i].instance != layer) continue;
        for (size_t k = 0; k < r.ports.size(); ++k) {
            if (r.ports[k].kind != ir::PortKind::Frame || r.ports[k].name != "frame") continue;
            auto& [first, last] = life.try_emplace(e.calls[i].bindings[k].buffer, static_cast<int>(i), 0).first->second;
            last = static_cast<int>(i);
        }
    }
    int64_t most = 0;
    for (const auto& [b, at] : life) {
        int64_t now = 0;
        for (const auto& [other, span] : life) now += span.first <= at.first && at.first <= span.second;
        most = std::max(most, now);
    }
    return most;
}

TEST(AssignStages, RankKOf1F1BHoldsPMinusKMicrobatches) {
    const compile::Compiled c = compiled({{kDegree, "4"},
                                          {kLayers, "8"},
                                          {kGlobalBatch, "6"},
                                          {kFirstLess, "0"},
                                          {kLastLess, "0"},
                                          {"training.fuse_loss", "false"}});
    std::vector<int64_t> activations;
    for (int64_t k = 0; k < 4; ++k) {
        const ir::Program& p = c.programs[static_cast<size_t>(k)];
        EXPECT_EQ(frames_at_once(p, 2 * k), 4 - k);
        activations.push_back(compile::report_of(p).bytes[static_cast<size_t>(ir::MemoryKind::Activations)]);
    }
    EXPECT_GT(activations[1], activations[2]);
    for (const char* schedule : {"GPipe", "ZB-H1"}) {
        const compile::Compiled other = compiled({{kDegree, "4"}, {kLayers, "8"}, {kGlobalBatch, "6"}, {kSchedule, schedule}});
        const schedules::InFlight held = schedules::in_flight(other.stages.table);
        for (size_t k = 0; k < 4; ++k) {
            const ir::Program& p = other.programs[k];
            if (p.block("layer")->instances().empty()) continue;
            EXPECT_LE(frames_at_once(p, p.block("layer")->instances()[0]), held.of_stage[k]) << schedule;
        }
    }
}

TEST(AssignStages, ASendIsWaitedForBeforeTheNext) {
    const compile::Compiled c =
        compiled({{kDegree, "2"}, {kLayers, "4"}, {kFirstLess, "0"}, {kLastLess, "0"}, {kGlobalBatch, "4"}});
    const ir::Program& first = c.programs[0];
    const auto at = [&](const std::string& call) { return position(first, ir::EntryKind::Train, call); };
    EXPECT_LT(at("send.layer.to1[1]@0"), at("layer.forward[0]@1"));
    EXPECT_LT(at("layer.forward[1]@1"), at("wait.send.layer.to1[1]@0"));
    EXPECT_LT(at("wait.send.layer.to1[1]@0"), at("send.layer.to1[1]@1"));
    EXPECT_LT(at("send.layer.to1[1]@3"), at("wait.send.layer.to1[1]@3"));

    const auto refusal_of = [&](const auto& edit) {
        std::vector<ir::Program> programs = c.programs;
        std::vector<ir::Call>& calls = programs[0].entries[0].calls;
        const auto index = [&](const std::string& name, int64_t microbatch) {
            return std::find_if(calls.begin(), calls.end(), [&](const ir::Call& call) {
                return programs[0].routines[static_cast<size_t>(call.routine)].name == name && call.microbatch == microbatch;
            });
        };
        edit(calls, index);
        for (ir::Program& p : programs) {
            for (ir::Call& call : p.entries[0].calls) call.waits.clear(), call.queue = QueueName::Compute;
        }
        const auto refusal = check::prove({&programs[0], &programs[1]});
        return refusal ? refusal->reason + ": " + refusal->message : "";
    };
    EXPECT_EQ(refusal_of([](auto&, const auto&) {}), "");
    const auto expect = [&](const std::string& part, const auto& edit) {
        const std::string refusal = refusal_of(edit);
        EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
    };
    expect("send.layer.to1[1] in microbatch 3, chunk 0, op 0 (64 x f32) is never waited for",
           [](auto& calls, const auto& index) { calls.erase(index("wait.send.layer.to1", 3)); });
    expect("where send of send.layer.to1[1] in microbatch 0, chunk 0, op 0 (64 x f32) is next",
           [](auto& calls, const auto& index) { calls.erase(index("wait.send.layer.to1", 0)); });
    expect("act.layer[1]@3 is read before anything is written there",
           [](auto&, const auto& index) { std::iter_swap(index("wait.send.layer.to1", 0), index("wait.send.layer.to1", 3)); });
    expect("it holds y of layer[1] in microbatch 0",
           [](auto&, const auto& index) { index("send.layer.to1", 1)->bindings = index("send.layer.to1", 0)->bindings; });
}

TEST(AssignStages, PlansOfEveryScheduleAreLegal) {
    for (const char* schedule :
         {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZB-H1", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
        const compile::Compiled c = compiled({{kDegree, "2"},
                                              {kLayers, "4"},
                                              {kGlobalBatch, "8"},
                                              {kSchedule, schedule},
                                              {"parallelism.data_parallel_shard_degree", "2"},
                                              {"model.tie_embeddings", "1"},
                                              {"validation.enable", "true"}});
        const auto refusal = check::prove(c.of_ranks());
        EXPECT_FALSE(refusal) << schedule << ": " << refusal->reason << ": " << refusal->message;
    }
}

}  // namespace
}  // namespace lockstep::testing
