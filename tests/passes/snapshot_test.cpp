// The entry `snapshot`: copies of all states, in memory that is planned and counted, and what check refuses of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "check/check.h"
#include "compile/memory_report.h"
#include "planning/check.h"
#include "planning/refusal.h"
#include "tests/base/plain.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"
#include "tests/paths.h"

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
        EXPECT_EQ(c.programs[0].arena_bytes[Place::Host], copies) << partition;
        EXPECT_EQ(c.programs[0].arena_bytes[Place::Device], without.programs[0].arena_bytes[Place::Device]) << partition;
        EXPECT_EQ(c.arena_bytes(), without.arena_bytes() + copies) << partition << ": a processor has one memory";
        EXPECT_EQ(c.host_bytes(), 0);
        EXPECT_EQ(kind(without, ir::MemoryKind::Snapshot), 0);
        EXPECT_EQ(without.programs[0].arena_bytes[Place::Host], 0);
    }
}

// Buffers of the device stand where they stand without copies.
TEST(Snapshot, TakesNoRoomInTheDevicesArena) {
    for (const char* partition : {"none", "zero3"}) {
        const ir::Program p = compiled(partition).programs[0], without = compiled(partition, "disabled").programs[0];
        std::map<std::string, int64_t> offsets;
        for (const ir::Buffer& b : without.buffers) offsets[b.name] = b.offset_bytes;
        for (const ir::Buffer& b : p.buffers) {
            if (b.place == Place::Device) EXPECT_EQ(b.offset_bytes, offsets.at(b.name)) << b.name;
            else EXPECT_TRUE(b.name.starts_with("snapshot.")) << b.name;
        }
    }
}

planning::Checked on_h100s(const Settings& keys, const char* async) {
    compile::Recipe recipe = plain(compile::Recipe::from_text(R"(
[model]
flavor = "debugmodel"
[runtime]
kernels = "cuda"
[training]
dataset = "synthetic"
seq_len = 128
local_batch_size = 2
[checkpoint]
enable = true
)",
                                                              "test"));
    recipe.set("checkpoint.async_mode", async);
    for (const auto& [key, value] : keys) recipe.set(key, value);
    return planning::check(std::move(recipe), LOCKSTEP_SOURCE_DIR "/clusters/h100.toml");
}

// Of a program: the states that are copied.
int64_t bytes_of_saved_states(const ir::Program& p) {
    int64_t bytes = 0;
    for (const ir::Buffer& b : p.buffers) {
        const auto copies = [&](const ir::State& s) { return s.role == ir::StateRole::Copy && s.copy_of == b.state; };
        if (b.state >= 0 && std::any_of(p.states.begin(), p.states.end(), copies)) bytes += b.bytes;
    }
    return bytes;
}

// The memory of the GPU is what it is without copies, to the byte; the host's holds each state once.
TEST(Snapshot, CostsADeviceNoMemory) {
    const std::string shard = "parallelism.data_parallel_shard_degree";
    for (const Settings& keys :
         {Settings{{shard, "2"}}, Settings{{"parallelism.pipeline_parallel_degree", "2"}, {"optimizer.name", "Muon"}},
          Settings{{shard, "2"}, {"partition.preset", "zero1"}, {"training.mixed_precision_param", "bfloat16"}}}) {
        const planning::Checked beside = on_h100s(keys, "async"), waits = on_h100s(keys, "disabled");
        EXPECT_FALSE(beside.refusal);
        EXPECT_EQ(beside.compiled.arena_bytes(), waits.compiled.arena_bytes());
        EXPECT_EQ(beside.compiled.all_arena_bytes(), waits.compiled.all_arena_bytes());
        EXPECT_EQ(waits.compiled.host_bytes(), 0);
        ASSERT_EQ(beside.reports.size(), waits.reports.size());
        for (size_t k = 0; k < beside.reports.size(); ++k) {
            const ir::Program& p = beside.compiled.programs[k];
            const compile::StageReport &with = beside.reports[k], &without = waits.reports[k];
            EXPECT_EQ(with.total_bytes, without.total_bytes);
            EXPECT_EQ(with.bytes, without.bytes);
            EXPECT_EQ(std::accumulate(with.bytes.begin(), with.bytes.end(), int64_t{0}), with.total_bytes);
            EXPECT_GT(with.host_bytes, 0);
            EXPECT_EQ(with.host_bytes, bytes_of_saved_states(p));
            EXPECT_EQ(without.host_bytes, 0);
        }
    }
}

TEST(Snapshot, IsHeldAgainstTheMemoryOfTheHost) {
    const planning::Checked beside = on_h100s({}, "async");
    const compile::Config config = compile::config_of(plain(compile::Recipe::from_text("", "test")));
    planning::Capacity capacity = beside.machine.capacity;
    const auto refused = [&](int64_t bytes) {
        capacity.host_bytes = bytes;
        return planning::refusal_of(config, beside.machine.options, beside.compiled, capacity);
    };
    const int64_t needed = beside.compiled.host_bytes();
    EXPECT_EQ(refused(needed), std::nullopt);
    const std::optional<UserError> refusal = refused(needed - 1);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->id(), "check.host_memory");
    EXPECT_EQ(refusal->key(), "checkpoint.async_mode");
    EXPECT_NE(std::string(refusal->what()).find("of the host's memory, for copies of its states"), std::string::npos)
        << refusal->what();
    EXPECT_NE(std::string(refusal->what()).find("set checkpoint.async_mode = \"disabled\""), std::string::npos);
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

    p = sound;  // an activation of the step shares bytes with a copy
    const auto buffer = [&](auto wanted) { return std::find_if(p.buffers.begin(), p.buffers.end(), wanted); };
    const auto copy = buffer([](const ir::Buffer& b) { return b.kind == ir::MemoryKind::Snapshot && b.bytes >= 1024; });
    const auto activation = buffer([](const ir::Buffer& b) { return b.name.starts_with("act."); });
    activation->place = Place::Host, activation->offset_bytes = copy->offset_bytes;
    EXPECT_NE(refusal(p).find("lies in the host's memory, where the call needs it in the device's"), std::string::npos)
        << refusal(p);

    p = sound;  // a copy in the device's memory, in bytes of its own
    copy->place = Place::Device, copy->offset_bytes = p.arena_bytes[Place::Device], p.arena_bytes[Place::Device] += copy->bytes;
    EXPECT_NE(refusal(p).find("lies in the device's memory, where the call needs it in the host's"), std::string::npos)
        << refusal(p);
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
