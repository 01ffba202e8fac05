#include "passes/fuse_loss.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

// The small recipe has 8 tokens.
ir::Program fused(int64_t chunk_tokens, const Settings& settings = {}) {
    return passes::fuse_loss(program_after("shard", settings), {chunk_tokens});
}

bool over_vocab(const ir::Routine& r, const ir::Op& op) {
    const auto has = [&](ir::TensorId t) {
        return std::count(r.tensors[t].dims.begin(), r.tensors[t].dims.end(), r.dim("vocab")) > 0;
    };
    return std::any_of(op.in.begin(), op.in.end(), has) || std::any_of(op.out.begin(), op.out.end(), has);
}

TEST(FuseLoss, ChunksFollowTheLimit) {
    EXPECT_EQ(fused(512).routine("head.loss")->chunks, 1);
    EXPECT_EQ(fused(4).routine("head.loss")->chunks, 2);
    EXPECT_EQ(fused(3).routine("head.loss")->chunks, 4);  // 3 would do, but 8 tokens are not divisible
    EXPECT_EQ(fused(1).routine("head.loss")->chunks, 8);
}

TEST(FuseLoss, SequencesAreCutApartBeforeTokens) {
    const auto dims = [](int64_t bytes) {
        const ir::Program p = fused(bytes, {{"training.local_batch_size", "4"}});
        const ir::Routine& r = *p.routine("head.loss");
        return std::vector<int64_t>{r.chunks, r.dims[r.dim("batch")].size, r.dims[r.dim("seq")].size};
    };
    EXPECT_EQ(dims(16), (std::vector<int64_t>{2, 2, 8}));
    EXPECT_EQ(dims(8), (std::vector<int64_t>{4, 1, 8}));
    EXPECT_EQ(dims(4), (std::vector<int64_t>{8, 1, 4}));
}

TEST(FuseLoss, EveryOpOverVocabStandsInTheChunks) {
    for (const Settings& s :
         {Settings{}, Settings{{"parallelism.tensor_parallel_degree", "4"}},
          Settings{{"validation.enable", "true"}, {"model.vocab_size", "15"}, {"parallelism.tensor_parallel_degree", "2"}}}) {
        const ir::Program p = fused(4, s);
        for (const ir::Routine& r : p.routines) {
            if (r.block != "head") continue;
            int over = 0;
            for (const ir::Op& op : r.ops) over += over_vocab(r, op);
            EXPECT_EQ(over > 0, r.kind == ir::RoutineKind::Loss) << r.name;
        }
    }
}

TEST(FuseLoss, TheChunkRunsForwardAndBackwardTogether) {
    const ir::Program p = fused(4);
    std::vector<std::string> kinds;
    for (const ir::Op& op : p.routine("head.loss")->ops) kinds.push_back(op.kind);
    EXPECT_EQ(kinds, (std::vector<std::string>{"einsum", "max", "cross_entropy", "unary", "einsum", "cross_entropy_backward",
                                               "einsum", "einsum", "accumulate"}));
    EXPECT_EQ(p.routine("head.forward")->port("frame"), -1);
    EXPECT_EQ(p.routine("head.backward")->port("frame"), -1);
}

TEST(FuseLoss, TheNormIsNotRunAgain) {
    const ir::Program p = fused(4);
    int norms = 0;
    for (const char* name : {"head.forward", "head.loss", "head.backward"}) {
        for (const ir::Op& op : p.routine(name)->ops) norms += op.kind == "rmsnorm";
    }
    EXPECT_EQ(norms, 1);
}

TEST(FuseLoss, AnEvalForwardIsCutTheSameWay) {
    const ir::Program p = fused(2, {{"validation.enable", "true"}});
    EXPECT_EQ(p.routine("head.eval.loss")->chunks, 4);
    EXPECT_EQ(p.routine("head.eval.loss")->entry, ir::EntryKind::Eval);
    EXPECT_EQ(op_lines(p, "head.eval.sum").back(), "+loss_sum = accumulate(loss)");
}

TEST(FuseLoss, OtherBlocksAreLeftAlone) {
    const ir::Program before = program_after("shard"), after = fused(4);
    for (const ir::Routine& r : before.routines) {
        EXPECT_TRUE(r.block == "head" || *after.routine(r.name) == r) << r.name;
    }
}

}  // namespace
}  // namespace lockstep::testing
