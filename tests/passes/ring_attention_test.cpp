#include "passes/ring_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "passes/part_routines.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

struct Ring {
    int64_t ranks = 3, window = 0, head_tail = 1;
    std::string narrow = "bf16", wide = "f32", entry = "train", more_attrs = {};
    bool drops = false, rings = true;
};

std::string attrs_of(const Ring& ring) {
    return fmt::format("{{{}{}scale=0.5, window={}}}{}", ring.drops ? "dropout=0.1, rng_key=7, " : "", ring.more_attrs,
                       ring.window, ring.rings ? " over cp" : "");
}

// A tensor's text: q, k and what is like them.
std::string queries(const Ring& r, const std::string& name, const std::string& type) {
    return fmt::format("{}: {}[batch, seq{}, kv_heads, group, head_dim]", name, type, r.rings ? "/cp" : "");
}
std::string keys(const Ring& r, const std::string& name, const std::string& type) {
    return fmt::format("{}: {}[batch, kv_seq{}, kv_heads, head_dim]", name, type, r.rings ? "/cp" : "");
}
std::string port_of_one(const std::string& tensor, const std::string& kind_and_access) {
    return fmt::format("  port {} {}\n    {}\n", tensor.substr(0, tensor.find(':')), kind_and_access, tensor);
}

// A routine whose ports are the operands and results of one op of attention.
std::string routine_of(const Ring& r, bool forward, const std::string& op) {
    const std::string cp = r.rings ? "/cp" : "";
    std::string text =
        fmt::format("routine b.{0} block b kind {0} entry {1} chunks 1 scratch 0\n", forward ? "forward" : "backward", r.entry) +
        "  dims batch=2 seq=24 kv_seq=24(seq/1) kv_heads=1 group=2 head_dim=4\n";
    const std::string lse = fmt::format("lse: {}[batch, seq{}, kv_heads, group]", r.wide, cp);
    text += port_of_one(queries(r, "q", r.narrow), "value read");
    for (const char* name : {"k", "v"}) text += port_of_one(keys(r, name, r.narrow), "value read");
    for (const char* name : {"pos", "doc", "noise"})
        text += port_of_one(fmt::format("{}: i32[batch, seq{}]", name, cp), "input read");
    for (const char* name : {"kv_pos", "kv_doc"})
        text += port_of_one(fmt::format("{}: i32[batch, kv_seq{}]", name, cp), "input read");
    if (forward) return text + port_of_one(queries(r, "out", r.narrow), "value write") + port_of_one(lse, "value write") + op;
    text += port_of_one(queries(r, "dy", r.narrow), "value read") + port_of_one(queries(r, "out", r.narrow), "value read") +
            port_of_one(lse, "value read");
    text += port_of_one(queries(r, "dq", r.narrow), "value write");
    for (const char* name : {"dk", "dv"}) text += port_of_one(keys(r, name, r.wide), "value write");
    return text + op;
}
std::string forward(const Ring& r) {
    return routine_of(
        r, true,
        fmt::format("  out; lse = attention(q, k, v, pos, kv_pos, doc, kv_doc{}) {}\n", r.drops ? ", noise" : "", attrs_of(r)));
}
std::string backward(const Ring& r) {
    return routine_of(r, false,
                      fmt::format("  dq; dk; dv = attention_backward(dy, q, k, v, pos, kv_pos, doc, kv_doc, out, lse{}) {}\n",
                                  r.drops ? ", noise" : "", attrs_of(r)));
}

ir::Program parsed(const Ring& r, const std::string& routines) {
    const std::string head_tail = r.head_tail > 1 ? fmt::format("head_tail {}\n", r.head_tail) : "";
    ir::Program p =
        ir::parse(fmt::format("mesh dp_replicate=1 dp_shard=1 cp={0} tp=1 cp:(1){0}\nmicrobatches 1\n{1}arena 0\nblock b x1\n",
                              r.ranks, head_tail) +
                  routines);
    for (ir::Routine& routine : p.routines) ops::renumber(routine);
    return p;
}
ir::Program after(const Ring& r, const std::string& routines) {
    ir::Program p = parsed(r, routines);
    const auto before = ops::verify(p);
    EXPECT_FALSE(before) << before->message << "\n" << ir::print(p);
    p = passes::ring_attention(std::move(p));
    for (ir::Routine& routine : p.routines) ops::renumber(routine);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    return p;
}

// Without types.
Strings lines_of_ops(const ir::Program& p) {
    const ir::Routine& r = p.routines[0];
    Strings out;
    for (const std::string& line : op_lines(p, r.name)) {
        Strings results;
        for (const ir::TensorId t : r.ops[out.size()].out) results.push_back(r.tensors[static_cast<size_t>(t)].name);
        out.push_back(fmt::format("{}{}", fmt::join(results, "; "), line.substr(line.find(" = "))));
    }
    return out;
}

TEST(RingAttention, EachBlockTravelsWhileTheOneBeforeItIsComputed) {
    EXPECT_EQ(
        lines_of_ops(after({}, forward({}))),
        (Strings{
            "k.from.1; v.from.1; kv_pos.from.1; kv_doc.from.1 = permute(k, v, kv_pos, kv_doc) {aside=1, by=1} over cp",
            "out.wide; lse = attention_block(q, k, v, pos, kv_pos, doc, kv_doc) {hops=3, scale=0.5, shift=0, window=0} over cp",
            "k.from.2; v.from.2; kv_pos.from.2; kv_doc.from.2 = permute(k.from.1, v.from.1, kv_pos.from.1, kv_doc.from.1) "
            "{aside=1, by=1} over cp",
            "out.wide; lse = attention_block(q, k.from.1, v.from.1, pos, kv_pos.from.1, doc, kv_doc.from.1, out.wide, lse) "
            "{hops=3, scale=0.5, shift=1, window=0} over cp",
            "out.wide; lse = attention_block(q, k.from.2, v.from.2, pos, kv_pos.from.2, doc, kv_doc.from.2, out.wide, lse) "
            "{hops=3, scale=0.5, shift=2, window=0} over cp",
            "out = cast(out.wide)"}));
}

TEST(RingAttention, SumsOfGradientsFollowTheirBlockAndGoHome) {
    EXPECT_EQ(lines_of_ops(after({}, backward({}))),
              (Strings{"k.from.1; v.from.1; kv_pos.from.1; kv_doc.from.1 = permute(k, v, kv_pos, kv_doc) {aside=1, by=1} over cp",
                       "dq.wide; dk.sum.0; dv.sum.0 = attention_block_backward(dy, q, k, v, pos, kv_pos, doc, kv_doc, out, lse) "
                       "{hops=3, scale=0.5, shift=0, window=0} over cp",
                       "k.from.2; v.from.2; kv_pos.from.2; kv_doc.from.2; dk.from.1; dv.from.1 = permute(k.from.1, v.from.1, "
                       "kv_pos.from.1, kv_doc.from.1, dk.sum.0, dv.sum.0) {aside=1, by=1} over cp",
                       "dq.wide; dk.1; dv.1 = attention_block_backward(dy, q, k.from.1, v.from.1, pos, kv_pos.from.1, doc, "
                       "kv_doc.from.1, out, lse, dq.wide) {hops=3, scale=0.5, shift=1, window=0} over cp",
                       "dk.sum.1 = add(dk.from.1, dk.1)", "dv.sum.1 = add(dv.from.1, dv.1)",
                       "dk.from.2; dv.from.2 = permute(dk.sum.1, dv.sum.1) {aside=1, by=1} over cp",
                       "dq.wide; dk.2; dv.2 = attention_block_backward(dy, q, k.from.2, v.from.2, pos, kv_pos.from.2, doc, "
                       "kv_doc.from.2, out, lse, dq.wide) {hops=3, scale=0.5, shift=2, window=0} over cp",
                       "dk.sum.2 = add(dk.from.2, dk.2)", "dv.sum.2 = add(dv.from.2, dv.2)",
                       "dk; dv = permute(dk.sum.2, dv.sum.2) {aside=1, by=1} over cp", "dq = cast(dq.wide)"}));
}

// The own block and the one before it hold what a window sees. The sums then go all the way around.
TEST(RingAttention, AWindowPrunesBlocks) {
    const Ring ring{.ranks = 4, .window = 7};
    EXPECT_EQ(lines_of_ops(after(ring, forward(ring))).size(), 4u);
    const Strings back = lines_of_ops(after(ring, backward(ring)));
    ASSERT_EQ(back.size(), 8u);
    EXPECT_EQ(back[2], "dk.from.1; dv.from.1 = permute(dk.sum.0, dv.sum.0) {aside=1, by=1} over cp");
    EXPECT_EQ(back[6], "dk; dv = permute(dk.sum.1, dv.sum.1) {aside=1, by=3} over cp");
}

TEST(RingAttention, AWindowOfOneTokenNeedsNobodysKeys) {
    const Ring ring{.ranks = 4, .window = 1};
    EXPECT_EQ(
        lines_of_ops(after(ring, forward(ring))),
        (Strings{"out.wide; lse = attention_block(q, k, v, pos, kv_pos, doc, kv_doc) {hops=1, scale=0.5, shift=0, window=1} "
                 "over cp",
                 "out = cast(out.wide)"}));
    EXPECT_EQ(lines_of_ops(after(ring, backward(ring))),
              (Strings{"dq.wide; dk; dv = attention_block_backward(dy, q, k, v, pos, kv_pos, doc, kv_doc, out, lse) {hops=1, "
                       "scale=0.5, shift=0, window=1} over cp",
                       "dq = cast(dq.wide)"}));
}

// By ranks, window and order: how many blocks a rank meets.
TEST(RingAttention, HopsAreTheBlocksThatAQueryCanSee) {
    const auto hops = [](const Ring& r) {
        const ir::Program p = after(r, forward(r));
        int64_t blocks = 0;
        for (const ir::Op& op : p.routines[0].ops) {
            if (op.kind != ir::kAttentionBlock) continue;
            EXPECT_EQ(op.integer("shift"), blocks++);
            EXPECT_EQ(op.attrs.contains("head_tail"), r.head_tail > 1);
        }
        for (const ir::Op& op : p.routines[0].ops) {
            if (op.kind != ir::kAttentionBlock) continue;
            EXPECT_EQ(op.integer("hops"), blocks);
        }
        return blocks;
    };
    EXPECT_EQ(hops({.ranks = 2}), 2);
    EXPECT_EQ(hops({.ranks = 4, .window = 2}), 2);
    EXPECT_EQ(hops({.ranks = 4, .window = 8}), 3);
    EXPECT_EQ(hops({.ranks = 4, .window = 13}), 3);
    EXPECT_EQ(hops({.ranks = 4, .window = 14}), 4);
    EXPECT_EQ(hops({.ranks = 4, .window = 100}), 4);
    EXPECT_EQ(hops({.ranks = 4, .window = 2, .head_tail = 4}), 4);
}

TEST(RingAttention, Float64NeedsNoCast) {
    const Ring ring{.ranks = 2, .narrow = "f64", .wide = "f64"};
    const Strings ahead = lines_of_ops(after(ring, forward(ring))), back = lines_of_ops(after(ring, backward(ring)));
    EXPECT_EQ(ahead.back(),
              "out; lse = attention_block(q, k.from.1, v.from.1, pos, kv_pos.from.1, doc, kv_doc.from.1, out, lse) "
              "{hops=2, scale=0.5, shift=1, window=0} over cp");
    EXPECT_EQ(back.back(), "dk; dv = permute(dk.sum.1, dv.sum.1) {aside=1, by=1} over cp");
}

// Noise of the queries stays; it comes before what is carried.
TEST(RingAttention, NoiseIsOfTheQueries) {
    const Ring ring{.ranks = 2, .drops = true};
    const std::string attrs = "{dropout=0.1, hops=2, rng_key=7, scale=0.5, shift=1, window=0} over cp";
    EXPECT_EQ(lines_of_ops(after(ring, forward(ring)))[2],
              "out.wide; lse = attention_block(q, k.from.1, v.from.1, pos, kv_pos.from.1, doc, kv_doc.from.1, noise, out.wide, "
              "lse) " +
                  attrs);
    EXPECT_EQ(lines_of_ops(after(ring, backward(ring)))[3],
              "dq.wide; dk.1; dv.1 = attention_block_backward(dy, q, k.from.1, v.from.1, pos, kv_pos.from.1, doc, kv_doc.from.1, "
              "out, lse, noise, dq.wide) " +
                  attrs);
}

TEST(RingAttention, AForwardThatIsComputedAgainSaysSo) {
    const Ring ring{.ranks = 2, .more_attrs = "recomputed=1, "};
    const ir::Program p = after(ring, forward(ring));
    EXPECT_EQ(p.routines[0].ops.size(), 4u);
    for (const ir::Op& op : p.routines[0].ops) EXPECT_TRUE(op.attrs.contains("recomputed")) << op.kind;
}

TEST(RingAttention, WideGradientsWithoutARingAreOneBlock) {
    const Ring ring{.rings = false};
    EXPECT_EQ(lines_of_ops(after(ring, backward(ring))),
              (Strings{"dq.wide; dk; dv = attention_block_backward(dy, q, k, v, pos, kv_pos, doc, kv_doc, out, lse) {hops=1, "
                       "scale=0.5, shift=0, window=0}",
                       "dq = cast(dq.wide)"}));
    EXPECT_EQ(lines_of_ops(after(ring, forward(ring))),
              Strings{"out; lse = attention(q, k, v, pos, kv_pos, doc, kv_doc) {scale=0.5, window=0}"});
}

TEST(RingAttention, LeavesAlone) {
    const auto is_unchanged = [](const Ring& r, const std::string& routine) {
        return ir::print(after(r, routine)) == ir::print(parsed(r, routine));
    };
    const Ring narrow{.narrow = "f32", .rings = false}, prefill{.entry = "prefill"};
    EXPECT_TRUE(is_unchanged(narrow, backward(narrow))) << "gradients of the queries' type";
    EXPECT_TRUE(is_unchanged(prefill, forward(prefill))) << "generation";
    const Ring eval{.entry = "eval"};
    EXPECT_FALSE(is_unchanged(eval, forward(eval)));
}

// What is merged in one place crosses the parts in a port that they update.
TEST(RingAttention, PartsUpdateWhatTheyGoOnWith) {
    ir::Program p = passes::part_routines(after({}, forward({})));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message;
    const auto access = [&](size_t part, const char* port) {
        const ir::Routine& r = p.routines.at(part);
        return r.ports.at(static_cast<size_t>(r.port(port))).access;
    };
    ASSERT_EQ(p.routines.size(), 5u);  // permute, block, permute, block, block
    EXPECT_EQ(access(1, "forward.out.wide"), ir::Access::Write);
    EXPECT_EQ(access(3, "forward.out.wide"), ir::Access::Update);
    EXPECT_EQ(access(4, "forward.out.wide"), ir::Access::Update);
    EXPECT_EQ(access(1, "lse"), ir::Access::Write);
    EXPECT_EQ(access(4, "lse"), ir::Access::Update);
    EXPECT_EQ(access(4, "out"), ir::Access::Write);

    const Ring two{.ranks = 2};  // nothing but the last part reads what the first has made
    p = passes::part_routines(after(two, forward(two)));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto wrong = ops::verify(p);
    EXPECT_FALSE(wrong) << wrong->message;
    ASSERT_EQ(p.routines.size(), 3u);
    EXPECT_EQ(access(1, "forward.out.wide"), ir::Access::Write);
    EXPECT_EQ(access(2, "forward.out.wide"), ir::Access::Update);
}

}  // namespace
}  // namespace lockstep::testing
