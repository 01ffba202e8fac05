#include "passes/async_tensor_parallel.h"

#include <gtest/gtest.h>

#include <map>

#include "check/check.h"
#include "ir/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "passes/part_routines.h"
#include "passes/shard.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

// One block on tp ranks, whose ops are `body`, behind the pass and in parts.
ir::Program cut(const std::string& body, int tp = 2, const std::string& head = "kind forward entry train chunks 1") {
    const std::string n = std::to_string(tp);
    ir::Program p =
        ir::parse("mesh dp_replicate=1 dp_shard=1 cp=1 tp=" + n + " tp:(1)" + n + "\nblock b x1\nroutine b.forward block b " +
                  head + " scratch 0\n  dims batch=2 seq=8 hidden=8 ffn=12\n" + body);
    p = passes::shard(std::move(p), {true});
    for (ir::Routine& r : p.routines) ops::renumber(r);
    p = passes::async_tensor_parallel(std::move(p));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    p = passes::part_routines(std::move(p));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    return p;
}

// "2: h.0 = einsum(...)": the ops of all routines, each with its part.
Strings parts(const ir::Program& p) {
    Strings out;
    for (const ir::Routine& r : p.routines) {
        for (const std::string& line : op_lines(p, r.name)) out.push_back(std::to_string(r.part) + ": " + line);
    }
    return out;
}

const std::string kX = "  port x value read\n    x: f32[batch, seq, hidden]?\n",
                  kMlp = "  port params params read\n    w: f32[ffn, hidden]? from w\n    v: f32[hidden, ffn]? from v\n",
                  kY = "  port y value write\n    y: f32[batch, seq, hidden]?\n", kPorts = kX + kMlp + kY,
                  kProducts =
                      "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n"
                      "  y = add(x, o)\n";

TEST(AsyncTensorParallel, BlocksTravelBesideTheProductsOfOthers) {
    EXPECT_EQ(
        parts(cut(kPorts + kProducts)),
        (Strings{"0: x.ag.from.1 = permute(x) {by=1} over tp",
                 "1: x.ag.0: f32[batch, seq.block2, hidden] = block(x) {dim=1, shift=0} over tp", "1: h.0 = einsum(x.ag.0, w)",
                 "2: x.ag.1: f32[batch, seq.block2, hidden] = block(x.ag.from.1) {dim=1, shift=0} over tp",
                 "2: h.1: f32[batch, seq.block2, ffn/tp] = einsum(x.ag.1, w)", "2: h = join_blocks(h.0, h.1) {dim=1} over tp",
                 "2: h.1.2: f32[batch, seq.block2, ffn/tp] = block(h) {dim=1, shift=1} over tp", "2: o.1 = einsum(h.1.2, v)",
                 "3: o.from.1 = permute(o.1) {by=1} over tp",
                 "4: h.0.2: f32[batch, seq.block2, ffn/tp] = block(h) {dim=1, shift=0} over tp", "4: o.0 = einsum(h.0.2, v)",
                 "5: o.rs: f32[batch, seq/tp, hidden] = sum_blocks(o.0, o.from.1) {dim=1} over tp", "5: y = add(x, o.rs)"}));
}

// Of four ranks: each product has its neighbour's block on the way, the own block is multiplied first and sent last.
TEST(AsyncTensorParallel, EveryRankOfAGroupHasABlock) {
    const ir::Program p = cut(kPorts + kProducts, 4);
    Strings order;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (op.kind == "permute" || op.kind == "einsum") order.push_back(r.tensors[op.out[0]].name);
        }
    }
    EXPECT_EQ(order, (Strings{"x.ag.from.1", "h.0", "x.ag.from.2", "h.1", "x.ag.from.3", "h.2", "h.3", "o.1", "o.from.1", "o.2",
                              "o.from.2", "o.3", "o.from.3", "o.0"}));
}

// An op between the two that is no product runs once, on the joined blocks.
TEST(AsyncTensorParallel, OtherOpsRunOnTheWhole) {
    const ir::Program p = cut("  port x value read\n    x: f32[batch, seq, hidden]?\n" + kMlp +
                              "  port z value write\n    z: f32[batch, seq, hidden]?\n"
                              "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  s: f32[batch, seq, ffn]? = unary(h) {fn='silu'}\n"
                              "  o: f32[batch, seq, hidden]? = einsum(s, v)\n  z = add(x, o)\n");
    for (const std::string& line : parts(p)) EXPECT_EQ(line.find("all_gather"), std::string::npos) << line;
    EXPECT_EQ(op_line(p, "b.forward@2", "s"), "s = unary(h) {fn='silu'}");
}

TEST(AsyncTensorParallel, LeavesAlone) {
    const auto is_whole = [](const ir::Program& p) { return p.routines.size() == 1 && p.routines[0].part == 0; };
    EXPECT_TRUE(is_whole(cut(kPorts + kProducts, 2, "kind forward entry train chunks 2"))) << "chunks";
    EXPECT_TRUE(is_whole(cut(kPorts + kProducts, 2, "kind forward entry prefill chunks 1"))) << "generation";
    const std::string norm = "  port g params read\n    g: f32[hidden]? from g\n";
    EXPECT_TRUE(is_whole(cut(kX + norm + kY + "  y; r: f32[batch, seq]? = rmsnorm(x, g) {eps=1e-05, over='hidden'}\n")))
        << "no product";
}

TEST(AsyncTensorParallel, WithoutSequenceParallelNothingIsCut) {
    const Settings settings = {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.sequence_parallel", "false"}};
    ir::Program p = program_after("split_backward", settings);
    const std::string before = ir::print(p);
    EXPECT_EQ(ir::print(passes::async_tensor_parallel(std::move(p))), before);
}

// The frame of a layer becomes one for each part that saves values; the backward reads the same ones.
TEST(AsyncTensorParallel, FramesAreThoseOfTheParts) {
    const ir::Program p = program_after("part_routines", {{"parallelism.tensor_parallel_degree", "2"},
                                                          {"parallelism.enable_async_tensor_parallel", "true"},
                                                          {"activation_checkpoint.mode", "none"}});
    std::map<std::string, std::vector<std::string>> written, read;  // by port: sources and where they lie
    for (const ir::Routine& r : p.routines) {
        for (size_t port = 0; port < r.ports.size(); ++port) {
            if (r.ports[port].kind != ir::PortKind::Frame || r.block != "layer") continue;
            auto& to = r.ports[port].access == ir::Access::Write ? written : read;
            EXPECT_NE(r.ports[port].access, ir::Access::Update) << r.name;
            for (ir::TensorId t : r.port_tensors(static_cast<int>(port)))
                to[r.ports[port].name].push_back(r.tensors[t].source + " &" + std::to_string(r.tensors[t].offset_bytes));
        }
    }
    EXPECT_GT(written.size(), 2u);
    EXPECT_FALSE(written.contains("frame"));
    for (const auto& [name, values] : read) {
        for (const std::string& value : values)
            EXPECT_NE(std::find(written[name].begin(), written[name].end(), value), written[name].end()) << name << " " << value;
    }
}

struct Edit {
    std::string from, to, message;
};

TEST(AsyncTensorParallel, VerifyRefusesBlocksOutOfPlace) {
    const std::string text = ir::print(cut(kPorts + kProducts));
    const std::vector<Edit> edits = {
        {"part 2 ", "part 3 ", "b.forward@2: does not follow part 2 of its routine"},
        {"block(h) {dim=1, shift=1}", "block(h) {dim=1, shift=2}", "it is shifted by more ranks than there are"},
        {"block(x) {dim=1, shift=0}", "block(x) {dim=1, shift=1}", "a rank has its own block only"},
        {"block(h) {dim=1, shift=0} over tp", "block(h) {dim=1, shift=0}", "its group has one rank"},
        {"join_blocks(h.0, h.1)", "join_blocks(h.0, h.1, h.1)", "not every rank has a block"},
        {"join_blocks(h.0, h.1)", "sum_blocks(h.0, h.1)", "it sums what is not partial over the group"},
        {"sum_blocks(o.0, o.from.1)", "join_blocks(o.0, o.from.1)", "its blocks are partial sums over the group"},
        {"seq.block2=4", "seq.block2=2", "a rank has not one block"},
        {"permute(o.1) {by=1}", "permute(o.1) {by=0}", "its shift by 0 is not between 1 and 1"},
        {"permute(o.1) {by=1}", "permute(o.1) {by=2}", "permute of o.1: its shift by 2 is not between 1 and 1"},
    };
    for (const Edit& e : edits) {
        std::string edited = text;
        const size_t at = edited.find(e.from);
        ASSERT_NE(at, std::string::npos) << e.from << "\n" << text;
        edited.replace(at, e.from.size(), e.to);
        if (e.from.starts_with("seq.block2")) {  // in every part
            for (size_t more; (more = edited.find(e.from)) != std::string::npos;) edited.replace(more, e.from.size(), e.to);
        }
        const auto violation = ops::verify(ir::parse(edited));
        ASSERT_TRUE(violation) << e.to;
        EXPECT_NE(violation->message.find(e.message), std::string::npos) << e.to << "\n" << violation->message;
    }
}

class AsyncTensorParallelOf : public ::testing::TestWithParam<NamedSettings> {};

// Every technique of the compiler with it: the programs hold, and nothing of a layer's forward is gathered or scattered whole
// over tensor-parallel ranks. Keys may be gathered over context ranks. Products in float8 are left as they are.
TEST_P(AsyncTensorParallelOf, ProgramsAreProved) {
    Settings settings = GetParam().settings;
    settings.emplace_back("parallelism.enable_async_tensor_parallel", "true");
    const compile::Compiled compiled = compile_recipe(small_recipe(settings), Backend::Reference);
    const auto refused = check::prove(compiled.of_ranks());
    EXPECT_FALSE(refused) << refused->message;
    if (!compiled.layout.sequence_parallel || converts(settings)) return;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            if (r.kind != ir::RoutineKind::Forward || r.block != "layer") continue;
            for (const ir::Op& op : r.ops) {
                if (!mesh::meet(op.group, p.mesh.whole(mesh::Axis::tp))) continue;
                EXPECT_NE(op.kind, "reduce_scatter") << r.name;
                EXPECT_NE(op.kind, "all_gather") << r.name;
            }
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Samples, AsyncTensorParallelOf, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
