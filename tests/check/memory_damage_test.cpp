// Programs with one address damaged, each of a kind that the random mutations do not draw: `check` must name it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>

#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"
#include "tests/base/plain.h"

namespace lockstep::check_test {
namespace {

const char* const kRecipe =
    "[model]\nname = \"llama3\"\ndim = 16\nn_layers = 2\nn_heads = 4\nn_kv_heads = 2\nhead_dim = 4\nffn_dim = 24\n"
    "vocab_size = 30\n[training]\nseq_len = 8\nlocal_batch_size = 1\nglobal_batch_size = 4\n[parallelism]\n"
    "data_parallel_shard_degree = 2\n[validation]\nenable = true\n";
const char* const kSaving = "[checkpoint]\nenable = true\nasync_mode = \"async\"\n";

struct Damage {
    const char* name;
    std::function<void(ir::Program&)> edit;
    const char* refusal;    // part of it
    const char* more = "";  // of the recipe
};
std::ostream& operator<<(std::ostream& out, const Damage& d) { return out << d.name; }

ir::Buffer& buffer(ir::Program& p, const std::string& name_begins) {
    for (ir::Buffer& b : p.buffers) {
        if (b.name.starts_with(name_begins)) return b;
    }
    throw std::runtime_error("no buffer " + name_begins);
}
// The first of the kind that a call of this entry uses.
ir::Buffer& buffer_of(ir::Program& p, ir::EntryKind entry, ir::MemoryKind kind) {
    for (const ir::Call& c : p.entry(entry)->calls) {
        for (const ir::Binding& b : c.bindings) {
            if (ir::Buffer& used = p.buffers[static_cast<size_t>(b.buffer)]; used.kind == kind) return used;
        }
    }
    throw std::runtime_error("no such buffer");
}
ir::Buffer& scratch_of(ir::Program& p, ir::EntryKind entry) {
    for (const ir::Call& c : p.entry(entry)->calls) {
        if (c.scratch >= 0) return p.buffers[static_cast<size_t>(c.scratch)];
    }
    throw std::runtime_error("no such buffer");
}
ir::Routine& routine(ir::Program& p, const std::string& name) {
    return *std::find_if(p.routines.begin(), p.routines.end(), [&](const ir::Routine& r) { return r.name == name; });
}
ir::Tensor& temporary(ir::Routine& r) {
    return *std::find_if(r.tensors.begin(), r.tensors.end(), [](const ir::Tensor& t) { return t.port < 0 && t.view_of < 0; });
}
constexpr int64_t kAligned = 64;

const Damage kDamages[] = {
    {"EvalsActivationsLieOverAMoment",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations).offset_bytes = buffer(p, "exp_avg").offset_bytes;
     },
     "eval: call"},
    {"EvalsScratchLiesOverAMoment",
     [](ir::Program& p) { scratch_of(p, ir::EntryKind::Eval).offset_bytes = buffer(p, "exp_avg_sq").offset_bytes; },
     "overwrites the state exp_avg_sq"},
    {"EvalsActivationsLieOverTheStepCount",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations).offset_bytes = buffer(p, "steps").offset_bytes;
     },
     "eval: call"},
    {"EvalsActivationsLieOverACopyThatIsBeingSaved",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations).offset_bytes = buffer(p, "snapshot.").offset_bytes;
     },
     "eval: call", kSaving},
    {"TheStepsActivationsLieOverEvalsInput",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Train, ir::MemoryKind::Activations).offset_bytes = buffer(p, "eval.in.").offset_bytes;
     },
     "train: call"},
    {"ABufferLiesBeforeTheArena", [](ir::Program& p) { buffer(p, "act").offset_bytes = -kAligned; }, "lies outside the arena"},
    {"ABufferLiesBehindTheArena", [](ir::Program& p) { buffer(p, "act").offset_bytes = p.arena_bytes; },
     "lies across the arena's end"},
    {"ABufferEndsBehindAllAddresses", [](ir::Program& p) { buffer(p, "act").offset_bytes = INT64_MAX / kAligned * kAligned; },
     "lies across the arena's end"},
    {"ACallHasNoScratch",
     [](ir::Program& p) {
         for (ir::Call& c : p.entries[0].calls) c.scratch = -1;
     },
     "has no scratch"},
    {"ATemporaryLiesBehindItsScratch",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         temporary(r).offset_bytes = r.scratch_bytes;
     },
     "lies outside the scratch"},
    {"ATemporaryLiesBeforeItsScratch", [](ir::Program& p) { temporary(routine(p, "layer.backward")).offset_bytes = -kAligned; },
     "lies outside the scratch"},
    {"AWorkspaceLiesBehindItsScratch",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         r.ops[0].workspace_bytes = kAligned;
         r.ops[0].workspace_offset_bytes = r.scratch_bytes;
     },
     "op 0 einsum: its workspace lies outside the scratch"},
    {"ATensorLiesBehindItsPort",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         r.tensors[static_cast<size_t>(r.port_tensors(r.port("x"))[0])].offset_bytes = kAligned;
     },
     "x of port x lies outside its port"},
    {"APortReachesBehindItsBuffer",
     [](ir::Program& p) { p.entries[0].calls[0].bindings[0].offset_bytes = INT64_MAX / kAligned * kAligned; },
     "reaches past buffer"},
};

class MemoryDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(MemoryDamage, IsRefused) {
    const compile::Recipe recipe =
        lockstep::testing::plain(compile::Recipe::from_text(std::string(kRecipe) + GetParam().more, "test"));
    ir::Program program = compile::compile(recipe, {kernels::reference_catalog(), "", {}}).programs[0];
    const std::vector<const ir::Program*> ranks(static_cast<size_t>(program.mesh.ranks()), &program);
    ASSERT_FALSE(check::prove(ranks).has_value());
    GetParam().edit(program);
    const std::optional<check::Refusal> refusal = check::prove(ranks);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find(GetParam().refusal), std::string::npos) << refusal->message;
}

INSTANTIATE_TEST_SUITE_P(Check, MemoryDamage, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::check_test
