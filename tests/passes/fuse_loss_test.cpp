#include "passes/fuse_loss.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

// Local logits of the small recipe: batch x seq 8 x vocab 16 / tp, in bytes of 4.
ir::Program fused(int64_t max_logits_bytes, const Settings& settings = {}) {
    return passes::fuse_loss(program_after("shard", settings), {max_logits_bytes, 1});
}

bool over_vocab(const ir::Routine& r, const ir::Op& op) {
    const auto has = [&](ir::TensorId t) {
        return std::count(r.tensors[t].dims.begin(), r.tensors[t].dims.end(), r.dim("vocab")) > 0;
    };
    return std::any_of(op.in.begin(), op.in.end(), has) || std::any_of(op.out.begin(), op.out.end(), has);
}

TEST(FuseLoss, ChunksFollowTheLimit) {
    EXPECT_EQ(fused(1 << 20).routine("head.loss")->chunks, 2);  // at least two
    EXPECT_EQ(fused(128).routine("head.loss")->chunks, 4);      // 512 bytes
    EXPECT_EQ(fused(100).routine("head.loss")->chunks, 8);      // 6 would do, but 8 tokens are not divisible
    EXPECT_EQ(fused(1).routine("head.loss")->chunks, 8);        // a token at least
    EXPECT_EQ(fused(128, {{"parallelism.tensor_parallel_degree", "2"}}).routine("head.loss")->chunks,
              2);  // half of vocab on a rank
}

TEST(FuseLoss, SequencesAreCutApartBeforeTokens) {
    const auto dims = [](int64_t bytes) {
        const ir::Program p = fused(bytes, {{"training.local_batch_size", "4"}});
        const ir::Routine& r = *p.routine("head.loss");
        return std::vector<int64_t>{r.chunks, r.dims[r.dim("batch")].size, r.dims[r.dim("seq")].size};
    };
    EXPECT_EQ(dims(1 << 20), (std::vector<int64_t>{2, 2, 8}));
    EXPECT_EQ(dims(512), (std::vector<int64_t>{4, 1, 8}));
    EXPECT_EQ(dims(256), (std::vector<int64_t>{8, 1, 4}));
}

TEST(FuseLoss, EveryOpOverVocabStandsInTheChunks) {
    for (const Settings& s :
         {Settings{}, Settings{{"parallelism.tensor_parallel_degree", "4"}},
          Settings{{"validation.enable", "true"}, {"model.vocab_size", "15"}, {"parallelism.tensor_parallel_degree", "2"}}}) {
        const ir::Program p = fused(1 << 20, s);
        for (const ir::Routine& r : p.routines) {
            if (r.block != "head") continue;
            int over = 0;
            for (const ir::Op& op : r.ops) over += over_vocab(r, op);
            EXPECT_EQ(over > 0, r.kind == ir::RoutineKind::Loss) << r.name;
        }
    }
}

TEST(FuseLoss, TheChunkRunsForwardAndBackwardTogether) {
    const ir::Program p = fused(1 << 20);
    std::vector<std::string> kinds;
    for (const ir::Op& op : p.routine("head.loss")->ops) kinds.push_back(op.kind);
    EXPECT_EQ(kinds, (std::vector<std::string>{"einsum", "max", "cross_entropy", "unary", "einsum", "cross_entropy_backward",
                                               "einsum", "einsum", "accumulate"}));
    EXPECT_EQ(p.routine("head.forward")->port("frame"), -1);
    EXPECT_EQ(p.routine("head.backward")->port("frame"), -1);
}

TEST(FuseLoss, TheNormIsNotRunAgain) {
    const ir::Program p = fused(1 << 20);
    int norms = 0;
    for (const char* name : {"head.forward", "head.loss", "head.backward"}) {
        for (const ir::Op& op : p.routine(name)->ops) norms += op.kind == "rmsnorm";
    }
    EXPECT_EQ(norms, 1);
}

TEST(FuseLoss, AnEvalForwardIsCutTheSameWay) {
    const ir::Program p = fused(128, {{"validation.enable", "true"}});
    EXPECT_EQ(p.routine("head.eval.loss")->chunks, 4);
    EXPECT_EQ(p.routine("head.eval.loss")->entry, "eval");
    EXPECT_EQ(op_lines(p, "head.eval.sum").back(), "+loss_sum = accumulate(loss)");
}

TEST(FuseLoss, OtherBlocksAreLeftAlone) {
    const ir::Program before = program_after("shard"), after = fused(1 << 20);
    for (const ir::Routine& r : before.routines) {
        EXPECT_TRUE(r.block == "head" || *after.routine(r.name) == r) << r.name;
    }
}

// A large vocabulary does not cut chunks so small that the head's weights are read and written for a few tokens each.
TEST(FuseLoss, AChunkHasTokensEnough) {
    const ir::Program shard = program_after("shard", {{"training.seq_len", "64"}});
    const auto chunks = [&](int64_t least_tokens) {
        const ir::Program p = passes::fuse_loss(shard, {1, least_tokens});
        return p.routine("head.loss")->chunks;
    };
    EXPECT_EQ(chunks(1), 64);
    EXPECT_EQ(chunks(16), 4);
    EXPECT_EQ(chunks(64), 2);
}

}  // namespace
}  // namespace lockstep::testing
