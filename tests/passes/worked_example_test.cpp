// One layer worked out by hand: hidden 8, 4 heads in 2 groups, ffn 12, vocab 16, seq 8; tp 4 (cut in two, since there are two
// key-value heads) x dp_shard 2, sequence parallel, fully sharded, 2 microbatches of 2 sequences.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

ir::Program example(const std::string& pass, Settings more = {}) {
    Settings settings = {{"parallelism.tensor_parallel_degree", "4"},
                         {"parallelism.data_parallel_shard_degree", "2"},
                         {"training.global_batch_size", "4"}};
    settings.insert(settings.end(), more.begin(), more.end());
    return program_after(pass, settings);
}

TEST(WorkedExample, CollectivesWithSequenceParallelism) {
    const ir::Program p = example("shard");
    EXPECT_EQ(collectives(p, "layer.forward"), (Strings{"all_gather(n1) over tp", "reduce_scatter(ao) over tp",
                                                        "all_gather(n2) over tp", "reduce_scatter(mlp) over tp"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"all_gather(d.y) over tp", "all_gather(n2) over tp", "reduce_scatter(d.n2.part) over tp",
                       "all_gather(d.x1) over tp", "all_gather(n1) over tp", "reduce_scatter(d.n1) over tp"}));
    EXPECT_EQ(collectives(p, "embed.forward"), (Strings{"reduce_scatter(y) over tp"}));
    EXPECT_EQ(collectives(p, "embed.backward"), (Strings{"all_gather(d.y) over tp"}));
}

TEST(WorkedExample, CollectivesWithoutSequenceParallelism) {
    const ir::Program p = example("shard", {{"parallelism.sequence_parallel", "false"}});
    EXPECT_EQ(collectives(p, "layer.forward"), (Strings{"all_reduce(ao) over tp", "all_reduce(mlp) over tp"}));
    EXPECT_EQ(collectives(p, "layer.backward"), (Strings{"all_reduce(d.n2.part) over tp", "all_reduce(d.n1) over tp"}));
}

TEST(WorkedExample, CollectivesOfABackwardThatRunsTheForwardAgain) {
    const ir::Program p = example("recompute", {{"activation_checkpoint.mode", "full"}});
    EXPECT_EQ(collectives(p, "layer.forward").size(), 4u);
    EXPECT_EQ(
        collectives(p, "layer.backward"),
        (Strings{"all_gather(n1.2) over tp", "reduce_scatter(ao) over tp", "all_gather(n2.2) over tp", "all_gather(d.y) over tp",
                 "reduce_scatter(d.n2.part) over tp", "all_gather(d.x1) over tp", "reduce_scatter(d.n1) over tp"}));
}

// The layer over context ranks in place of tensor-parallel ones, once its attention is cut into blocks.
ir::Program with_context_ranks(const char* degree, const char* method, const char* on_heads) {
    return example("ring_attention", {{"parallelism.tensor_parallel_degree", "1"},
                                      {"parallelism.context_parallel_degree", degree},
                                      {"parallelism.context_parallel_rotate_method", method},
                                      {"parallelism.context_parallel_head_degree", on_heads}});
}
// No other block communicates.
void expect_only_in_layers(const ir::Program& p) {
    for (const ir::Routine& r : p.routines) {
        if (r.block.empty() || r.block == "layer") continue;
        EXPECT_EQ(collectives(p, r.name), Strings{}) << r.name;
    }
}

TEST(WorkedExample, ContextRanksThatGather) {
    const ir::Program p = with_context_ranks("2", "allgather", "0");
    EXPECT_EQ(collectives(p, "layer.forward"), (Strings{"all_gather(k_rot) over cp", "all_gather(v) over cp"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"all_gather(k_rot) over cp", "all_gather(v) over cp", "reduce_scatter(d.k_rot.part) over cp",
                       "reduce_scatter(d.v.part) over cp"}));
    expect_only_in_layers(p);
}

// Keys, values, their positions and documents are one permute, and so are the sums of their gradients, which then go home.
TEST(WorkedExample, ContextRanksInARing) {
    const ir::Program p = with_context_ranks("2", "alltoall", "0");
    EXPECT_EQ(collectives(p, "layer.forward"), (Strings{"permute(k_all) over cp"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"permute(k_all) over cp", "permute(d.k_all.part.sum.0) over cp", "permute(d.k_all.part.sum.1) over cp"}));
    expect_only_in_layers(p);
}

// Attention's result is saved as the product after it reads it.
TEST(WorkedExample, ContextRanksOnHeads) {
    const ir::Program p = with_context_ranks("2", "ulysses", "0");
    EXPECT_EQ(collectives(p, "layer.forward"), (Strings{"all_to_all(k_rot) over cp", "all_to_all(v) over cp",
                                                        "all_to_all(q_rot) over cp", "all_to_all(o) over cp"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"all_to_all(o) over cp", "all_to_all(d.o.part) over cp", "all_to_all(d.q_rot.part) over cp",
                       "all_to_all(d.k_rot.part) over cp", "all_to_all(d.v.part) over cp"}));
    expect_only_in_layers(p);
}

TEST(WorkedExample, ContextRanksOnHeadsThatGather) {
    const ir::Program p = with_context_ranks("4", "allgather", "2");
    EXPECT_EQ(collectives(p, "layer.forward"),
              (Strings{"all_to_all(k_rot) over cp:(2)2", "all_gather(k_rot.a2a) over cp:(1)2", "all_to_all(v) over cp:(2)2",
                       "all_gather(v.a2a) over cp:(1)2", "all_to_all(q_rot) over cp:(2)2", "all_to_all(o) over cp:(2)2"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"all_to_all(k_rot) over cp:(2)2", "all_gather(k_rot.a2a) over cp:(1)2", "all_to_all(v) over cp:(2)2",
                       "all_gather(v.a2a) over cp:(1)2", "all_to_all(o) over cp:(2)2", "all_to_all(d.o.part) over cp:(2)2",
                       "all_to_all(d.q_rot.part) over cp:(2)2", "reduce_scatter(d.k_rot.part) over cp:(1)2",
                       "all_to_all(d.k_rot.part.rs) over cp:(2)2", "reduce_scatter(d.v.part) over cp:(1)2",
                       "all_to_all(d.v.part.rs) over cp:(2)2"}));
    expect_only_in_layers(p);
}

TEST(WorkedExample, ContextRanksOnHeadsInARing) {
    const ir::Program p = with_context_ranks("4", "alltoall", "2");
    EXPECT_EQ(collectives(p, "layer.forward"),
              (Strings{"all_to_all(k_rot) over cp:(2)2", "all_to_all(v) over cp:(2)2", "all_to_all(q_rot) over cp:(2)2",
                       "permute(k_all) over cp:(1)2", "all_to_all(o) over cp:(2)2"}));
    EXPECT_EQ(collectives(p, "layer.backward"),
              (Strings{"all_to_all(o) over cp:(2)2", "all_to_all(d.o.part) over cp:(2)2", "permute(k_all) over cp:(1)2",
                       "permute(d.k_all.part.sum.0) over cp:(1)2", "permute(d.k_all.part.sum.1) over cp:(1)2",
                       "all_to_all(d.q_rot.part) over cp:(2)2", "all_to_all(d.k_rot.part) over cp:(2)2",
                       "all_to_all(d.v.part) over cp:(2)2"}));
    expect_only_in_layers(p);
}

TEST(WorkedExample, ForwardStandsAsWorkedOut) {
    const ir::Program p = example("shard");
    const auto type = [&](const char* t) { return type_of(p, "layer.forward", t); };
    for (const char* t : {"x", "n1", "ao.rs", "x1", "n2", "mlp.rs", "y"})
        EXPECT_EQ(type(t), "f32[batch/dp_shard, seq/tp, hidden]") << t;
    for (const char* t : {"n1.ag", "n2.ag"}) EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, hidden]") << t;
    for (const char* t : {"ao", "mlp"}) EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, hidden] partial sum tp") << t;
    for (const char* t : {"q", "q_rot", "o"})
        EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, kv_heads/tp:(1)2, group/tp:(2)2, head_dim]") << t;
    for (const char* t : {"k", "v", "k_rot"}) EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, kv_heads/tp:(1)2, head_dim]") << t;
    for (const char* t : {"k_all", "v_all"}) EXPECT_EQ(type(t), "f32[batch/dp_shard, kv_seq, kv_heads/tp:(1)2, head_dim]") << t;
    EXPECT_EQ(type("gate_up"), "f32[batch/dp_shard, seq, gate_up, ffn/tp]");
    EXPECT_EQ(type("act"), "f32[batch/dp_shard, seq, ffn/tp]");
    EXPECT_EQ(type("lse"), "f32[batch/dp_shard, seq, kv_heads/tp:(1)2, group/tp:(2)2]");
    EXPECT_EQ(type("pos@whole"), "i32[batch/dp_shard, seq]");
}

TEST(WorkedExample, BackwardStandsAsWorkedOut) {
    const ir::Program p = example("shard");
    const auto type = [&](const char* t) { return type_of(p, "layer.backward", t); };
    EXPECT_EQ(type("d.act.part"), "f32[batch/dp_shard, seq, ffn/tp]");
    for (const char* t : {"d.n2.part", "d.n1.part", "d.n1.part.2", "d.n1.part.3", "d.n1"}) {
        EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, hidden] partial sum tp") << t;
    }
    for (const char* t : {"d.v.part", "d.k_rot.part", "d.k.part"}) {
        EXPECT_EQ(type(t), "f32[batch/dp_shard, seq, kv_heads/tp:(1)2, head_dim] partial sum tp:(2)2") << t;
    }
    EXPECT_EQ(type("d.q.part"), "f32[batch/dp_shard, seq, kv_heads/tp:(1)2, group/tp:(2)2, head_dim]");
    EXPECT_EQ(op_line(p, "layer.backward", "d.n1"),
              "d.n1: f32[batch/dp_shard, seq, hidden] partial sum tp = add(d.n1.part, d.n1.part.2, d.n1.part.3)");
    EXPECT_EQ(op_line(p, "layer.backward", "d.x"), "d.x = add(d.x1, d.x.part)");
}

TEST(WorkedExample, GradientsArePartialAsWorkedOut) {
    const ir::Program p = example("shard");
    const ir::Routine& r = *p.routine("layer.backward");
    const auto partial = [&](const char* param) {
        return p.mesh.text(r.tensors[r.find(std::string("grad.") + param)].placement.partial);
    };
    for (const char* param : {"wq", "wo", "w1.w3", "w2"}) EXPECT_EQ(partial(param), "dp_shard") << param;
    for (const char* param : {"attention_norm", "ffn_norm"}) EXPECT_EQ(partial(param), "dp_shard,tp") << param;
    for (const char* param : {"wk", "wv"}) EXPECT_EQ(partial(param), "dp_shard,tp:(2)2") << param;
}

TEST(WorkedExample, SegmentsHoldWhatIsReducedAlike) {
    const ir::Program p = example("partition_parameters");
    const ir::Unit& u = *p.unit("layer");
    ASSERT_EQ(u.segments.size(), 3u);
    const auto members = [&](size_t i) {
        std::string text;
        for (const ir::Member& m : u.segments[i].members) text += m.param + ":" + std::to_string(m.count) + " ";
        return text;
    };
    EXPECT_EQ(members(0), "wq:32 wo:32 w1:24 w3:24 w2:24 ");
    EXPECT_EQ(members(1), "attention_norm:8 ffn_norm:8 ");
    EXPECT_EQ(members(2), "wk:32 wv:32 ");
    EXPECT_TRUE(u.segments[0].decay);
    EXPECT_FALSE(u.segments[1].decay);
    EXPECT_TRUE(u.segments[2].decay);
    EXPECT_EQ(p.mesh.text(u.segments[2].grad_partial), "dp_shard,tp:(2)2");
    for (const ir::AxisList* split : {&u.weights, &u.gradients, &u.optimizer}) EXPECT_EQ(p.mesh.text(*split), "dp_shard");
    EXPECT_EQ(collectives(p, "gather.layer"), (Strings{"all_gather(weights0) over dp_shard"}));
    EXPECT_EQ(collectives(p, "reduce_micro.layer"), (Strings{"reduce_scatter(local0) over dp_shard"}));
    EXPECT_EQ(collectives(p, "reduce_step.layer"),
              (Strings{"all_reduce(gradients1) over tp", "all_reduce(gradients2) over tp:(2)2"}));
    EXPECT_EQ(collectives(p, "update.layer"), Strings{});
    EXPECT_EQ(collectives(p, "stats.all"), (Strings{"all_reduce(norm2) over dp_shard,tp"}));
}

// The head's forward and backward run together around the chunks of the loss, so its gather serves both.
TEST(WorkedExample, ScheduleOfTwoMicrobatches) {
    const auto microbatch = [](const std::string& m, bool last) {
        const auto step = [&](const char* reduce) { return last ? std::string(reduce) + "@" + m + " " : std::string(); };
        const auto at = [&](std::string text) {
            for (size_t i = 0; (i = text.find(" ", i)) != std::string::npos; i += 2 + m.size()) text.insert(i, "@" + m);
            return text;
        };
        return at("gather.embed[0] embed.forward[0] free.embed[0] gather.layer[0] layer.forward[0] free.layer[0] gather.layer[1] "
                  "layer.forward[1] free.layer[1] ") +
               at("gather.head[0] head.forward[0] ") + "head.loss[0]@" + m + "#0 head.loss[0]@" + m + "#1 " +
               at("head.backward[0] free.head[0] reduce_micro.head[0] ") + step("reduce_step.head[0]") +
               at("gather.layer[1] layer.backward[1] free.layer[1] reduce_micro.layer[1] ") + step("reduce_step.layer[1]") +
               at("gather.layer[0] layer.backward[0] free.layer[0] reduce_micro.layer[0] ") + step("reduce_step.layer[0]") +
               at("embed.backward[0] reduce_micro.embed[0] ");
    };
    const std::string expected = "count[0]@0 count[0]@1 begin[0]@0 " + microbatch("0", false) + microbatch("1", true) +
                                 "stats.embed[0]@1 stats.layer[0]@1 stats.layer[1]@1 stats.head[0]@1 stats.all[0]@1 "
                                 "update.embed[0]@1 update.layer[0]@1 update.layer[1]@1 update.head[0]@1";
    EXPECT_EQ(calls(example("schedule"), ir::EntryKind::Train), split_words(expected));
}

TEST(WorkedExample, NoLogitsOfAllTokens) {
    const auto logits_of_all_tokens = [](const ir::Program& p) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Tensor& t : r.tensors) {
                const auto has = [&](const char* dim, int64_t whole) {
                    return std::any_of(t.dims.begin(), t.dims.end(),
                                       [&](ir::DimId d) { return r.dims[d].name == dim && r.dims[d].size == whole; });
                };
                if (has("vocab", 16) && has("batch", 2) && has("seq", 8)) return true;
            }
        }
        return false;
    };
    EXPECT_FALSE(logits_of_all_tokens(ir::parse(ir::print(example("plan_memory")))));
    EXPECT_TRUE(logits_of_all_tokens(ir::parse(ir::print(example("plan_memory", {{"training.fuse_loss", "false"}})))));
}

}  // namespace
}  // namespace lockstep::testing
