// Rings of context ranks whose programs have one thing wrong: each is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "ops/verify.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

using ir::Op;
using ir::Routine;

// Layers in parts, of a ring of four ranks, or of two blocks of it.
ir::Program ring_program(const char* window, const char* pass) {
    return program_after(pass, {{"parallelism.context_parallel_degree", "4"},
                                {"parallelism.context_parallel_rotate_method", "alltoall"},
                                {"parallelism.context_parallel_load_balancer", "none"},
                                {"training.seq_len", "16"},
                                {"model.sliding_window", window}});
}

// The ops of a kind in the layer's forwards or backwards, in their order.
std::vector<Op*> ops_in(ir::Program& p, ir::RoutineKind kind, std::string_view op_kind) {
    std::vector<Op*> out;
    for (Routine& r : p.routines) {
        if (r.kind != kind || r.block != "layer" || r.entry != ir::EntryKind::Train) continue;
        for (Op& op : r.ops) {
            if (op.kind == op_kind) out.push_back(&op);
        }
    }
    return out;
}
Routine& routine_with(ir::Program& p, const Op* op) {
    for (Routine& r : p.routines) {
        if (!r.ops.empty() && op >= r.ops.data() && op < r.ops.data() + r.ops.size()) return r;
    }
    ADD_FAILURE() << "no routine has the op";
    return p.routines[0];
}
void drop(ir::Program& p, const Op* op) {
    Routine& r = routine_with(p, op);
    r.ops.erase(r.ops.begin() + (op - r.ops.data()));
}

constexpr auto kAhead = ir::RoutineKind::Forward, kBack = ir::RoutineKind::Backward;

struct RingDamage {
    const char *name, *window;
    std::function<void(ir::Program&)> edit;
    const char* message;
    const char* pass = "part_routines";  // behind which it is damaged
};
void PrintTo(const RingDamage& d, std::ostream* out) { *out << d.name; }

const std::vector<RingDamage> kRingDamages = {
    {"KeysGoTooFar", "0", [](ir::Program& p) { ops_in(p, kAhead, "permute").at(1)->attrs["by"] = int64_t{2}; },
     "is of the rank 3 places before, not of the one 2 before"},
    {"SumsGoTooFar", "0", [](ir::Program& p) { ops_in(p, kBack, "permute").at(2)->attrs["by"] = int64_t{3}; }, "places before"},
    {"ABlockTwice", "0", [](ir::Program& p) { ops_in(p, kAhead, ir::kAttentionBlock).at(2)->attrs["shift"] = int64_t{1}; },
     "is of the rank 2 places before, not of the one 1 before"},
    {"TheSameBlockAgain", "0",
     [](ir::Program& p) {
         Op* op = ops_in(p, kAhead, ir::kAttentionBlock).at(3);
         Routine& r = routine_with(p, op);
         r.ops.insert(r.ops.begin() + (op - r.ops.data()) + 1, Op(*op));
     },
     "has block 3 already"},
    {"AHopIsMissing", "0", [](ir::Program& p) { drop(p, ops_in(p, kAhead, ir::kAttentionBlock).at(3)); },
     "which has 3 of 4 blocks"},
    {"MoreHopsThanTheQueriesSee", "0",
     [](ir::Program& p) {
         for (Op* op : ops_in(p, kAhead, ir::kAttentionBlock)) op->attrs["hops"] = int64_t{5};
     },
     "5 blocks are not those that its queries can see"},
    {"TokensInAnotherOrder", "0",
     [](ir::Program& p) { ops_in(p, kAhead, ir::kAttentionBlock).at(1)->attrs["head_tail"] = int64_t{4}; },
     "its tokens are in the order of 4 ranks, the program's in that of 1"},
    {"SumsAreNotHome", "5", [](ir::Program& p) { ops_in(p, kBack, "permute").back()->attrs["by"] = int64_t{1}; },
     "which is of the rank 2 places before"},
    {"SumsAreAddedBeforeTheyArrive", "0",
     [](ir::Program& p) {
         Op* block = ops_in(p, kBack, ir::kAttentionBlockBackward).at(1);
         const Op* sent = ops_in(p, kBack, "permute").at(1);
         Op& add = block[1];
         const auto at = std::find(sent->out.begin(), sent->out.end(), add.in[0]);
         ASSERT_NE(at, sent->out.end());
         add.in[0] = sent->in[static_cast<size_t>(at - sent->out.begin())];
     },
     "is of the rank 0 places before and", "ring_attention"},
    {"PositionsStay", "0",
     [](ir::Program& p) {
         const std::vector<Op*> blocks = ops_in(p, kAhead, ir::kAttentionBlock);
         blocks.at(1)->in[4] = blocks.at(0)->in[4];
     },
     "is of the rank 0 places before, not of the one 1 before", "ring_attention"},
    {"KeysForValues", "0",
     [](ir::Program& p) {
         Op* block = ops_in(p, kAhead, ir::kAttentionBlock).at(1);
         std::swap(block->in[1], block->in[2]);
     },
     "is of another attention"},
    {"DocumentsForPositions", "0",
     [](ir::Program& p) {
         Op* block = ops_in(p, kAhead, ir::kAttentionBlock).at(1);
         block->in[3] = block->in[5];
     },
     "is of another attention"},
    {"GradientsOfValuesForThoseOfKeys", "0",
     [](ir::Program& p) {
         Op* block = ops_in(p, kBack, ir::kAttentionBlockBackward).at(1);
         block[1].in[1] = block->out[2];
     },
     "are not parts of one sum", "ring_attention"},
    {"GradientsChangePlacesOnTheWay", "0",
     [](ir::Program& p) {
         Op* sent = ops_in(p, kBack, "permute").at(2);
         std::swap(sent->out.at(4), sent->out.at(5));
     },
     "are not parts of one sum"},
    {"ASumLeavesABlockOut", "0",
     [](ir::Program& p) {
         Op* block = ops_in(p, kBack, ir::kAttentionBlockBackward).at(1);
         Op* sent = ops_in(p, kBack, "permute").at(2);
         std::replace(sent->in.begin(), sent->in.end(), block[1].out[0], block[1].in[0]);
     },
     "which has 3 of 4 blocks", "ring_attention"},
    {"AReaderBeforeTheLastBlock", "0",
     [](ir::Program& p) {
         Op* last = ops_in(p, kAhead, ir::kAttentionBlock).at(3);
         std::swap(last[0], last[1]);
     },
     "which has 3 of 4 blocks", "ring_attention"},
};

class VerifyRingDamage : public ::testing::TestWithParam<RingDamage> {};

TEST_P(VerifyRingDamage, IsRefused) {
    ir::Program p = ring_program(GetParam().window, GetParam().pass);
    const auto accepted = ops::verify(p);
    ASSERT_FALSE(accepted) << accepted->message;
    GetParam().edit(p);
    const auto violation = ops::verify(p);
    ASSERT_TRUE(violation);
    EXPECT_EQ(name_of(violation->invariant), "ring") << violation->message;
    EXPECT_NE(violation->message.find(GetParam().message), std::string::npos) << violation->message;
}
INSTANTIATE_TEST_SUITE_P(Damages, VerifyRingDamage, ::testing::ValuesIn(kRingDamages),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::testing
