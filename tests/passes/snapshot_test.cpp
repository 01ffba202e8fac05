// The entry `snapshot`: copies of all states, in memory that is planned and counted, and what check refuses of it.
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "compile/memory_report.h"
#include "tests/base/plain.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Compiled compiled(const std::string& partition, const char* async = "async") {
    return compile_recipe(plain(compile::Recipe::from_text(std::string(R"(
[model]
dim = 16
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 24
vocab_size = 61
[training]
seq_len = 8
local_batch_size = 1
[parallelism]
data_parallel_shard_degree = 2
tensor_parallel_degree = 2
[checkpoint]
enable = true
async_mode = ")") + async + "\"\n[partition]\npreset = \"" + partition +
                                                               "\"\n",
                                                           "test")),
                          Backend::Cpu);
}

std::string refusal(const ir::Program& p) {
    const std::vector<const ir::Program*> ranks(static_cast<size_t>(p.mesh.ranks()), &p);
    const auto refused = check::prove(ranks);
    return refused ? refused->reason + ": " + refused->message : "";
}

ir::Entry& snapshot_of(ir::Program& p) {
    return *std::find_if(p.entries.begin(), p.entries.end(),
                         [](const ir::Entry& e) { return e.kind == ir::EntryKind::Snapshot; });
}

TEST(Snapshot, CopiesWhatUpdatesChangeAndIsCounted) {
    EXPECT_EQ(compiled("zero1", "disabled").programs[0].entry(ir::EntryKind::Snapshot), nullptr);
    for (const char* partition : {"none", "zero1", "zero2", "zero3"}) {
        const compile::Compiled c = compiled(partition), without = compiled(partition, "disabled");
        EXPECT_EQ(refusal(c.programs[0]), "") << partition;
        const auto kind = [](const compile::Compiled& x, ir::MemoryKind k) {
            return compile::report_of(x.programs[0]).bytes[static_cast<size_t>(k)];
        };
        const int64_t copies = kind(c, ir::MemoryKind::Snapshot);
        int64_t states = kind(c, ir::MemoryKind::Weights);
        for (const ir::Buffer& b : c.programs[0].buffers) states += b.name.starts_with("exp_avg") ? b.bytes : 0;
        EXPECT_EQ(copies, states) << partition;
        EXPECT_EQ(c.programs[0].arena_bytes, without.programs[0].arena_bytes + copies) << partition;
        EXPECT_EQ(kind(without, ir::MemoryKind::Snapshot), 0);
    }
}

TEST(Snapshot, CheckRefusesOneThatIsNotWhole) {
    const ir::Program sound = compiled("zero3").programs[0];
    ir::Program p = sound;
    snapshot_of(p).calls.pop_back();
    EXPECT_NE(refusal(p).find("accounting: rank 0, snapshot: the snapshot lacks"), std::string::npos) << refusal(p);

    p = sound;
    snapshot_of(p).calls.push_back(snapshot_of(p).calls.back());
    EXPECT_NE(refusal(p).find("twice"), std::string::npos) << refusal(p);

    p = sound;  // two layers into one copy
    auto& calls = snapshot_of(p).calls;
    const auto layer = std::find_if(calls.begin(), calls.end(), [&](const ir::Call& c) { return c.instance == 1; });
    layer->bindings[1] = std::prev(layer)->bindings[1];
    EXPECT_NE(refusal(p).find("which holds another state"), std::string::npos) << refusal(p);

    p = sound;  // the weights' copy gets the moments
    for (ir::Routine& r : p.routines) {
        const auto dims = [&](const ir::Op& op) { return r.tensors[static_cast<size_t>(op.in[0])].dims; };
        if (r.kind != ir::RoutineKind::Snapshot) continue;
        const auto moment = std::find_if(r.ops.begin() + 1, r.ops.end(), [&](auto& op) { return dims(op) == dims(r.ops[0]); });
        std::swap(r.ops[0].in[0], moment->in[0]);
    }
    EXPECT_NE(refusal(p).find("holds copies of another state than"), std::string::npos) << refusal(p);

    p = sound;  // a copy shares bytes with an activation of the step
    const auto buffer = [&](auto wanted) { return std::find_if(p.buffers.begin(), p.buffers.end(), wanted); };
    const auto copy = buffer([](const ir::Buffer& b) { return b.kind == ir::MemoryKind::Snapshot && b.bytes >= 1024; });
    const auto activation = buffer([](const ir::Buffer& b) { return b.name.starts_with("act."); });
    copy->offset_bytes = activation->offset_bytes;
    EXPECT_NE(refusal(p).find("overwrites the state snapshot."), std::string::npos) << refusal(p);
}

TEST(Snapshot, CheckRefusesAStepThatChangesStatesWithoutWaiting) {
    ir::Program p = compiled("zero3").programs[0];
    for (ir::Routine& r : p.routines) {  // an update under another name would not wait
        if (r.kind == ir::RoutineKind::Update && r.unit == "layer") r.kind = ir::RoutineKind::Stats;
    }
    EXPECT_NE(refusal(p), "");
}

}  // namespace
}  // namespace lockstep::testing
