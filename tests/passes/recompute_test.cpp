#include "passes/recompute.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

const Settings kTp = {{"parallelism.tensor_parallel_degree", "2"}};

std::set<std::string> ports(const ir::Program& p, const std::string& routine) {
    std::set<std::string> out;
    for (const ir::Port& port : p.routine(routine)->ports) out.insert(port.name);
    return out;
}

TEST(Recompute, SwitchedOffChangesNothing) {
    const ir::Program p = program_after("fuse_loss", kTp);
    EXPECT_TRUE(passes::recompute(p, {false}) == p);
}

TEST(Recompute, BackwardReadsOnlyWhatStandsAtTheBordersOfTheBlock) {
    const ir::Program p = passes::recompute(program_after("fuse_loss", kTp), {true});
    EXPECT_EQ(ports(p, "layer.forward"), (std::set<std::string>{"x", "params", "y", "pos@whole", "doc@whole"}));
    EXPECT_EQ(ports(p, "layer.backward"),
              (std::set<std::string>{"x", "params", "d.y", "gradients", "d.x", "pos@whole", "doc@whole"}));
}

TEST(Recompute, RerunOpsAreMarkedAndTheLastProductIsNotAmongThem) {
    const ir::Program p = passes::recompute(program_after("fuse_loss", kTp), {true});
    const ir::Routine& r = *p.routine("layer.backward");
    std::set<std::string> again;
    for (const ir::Op& op : r.ops) {
        if (op.attrs.contains("recomputed")) again.insert(op.kind);
        const auto reads = [&](const char* t) { return std::count(op.in.begin(), op.in.end(), r.find(t)) > 0; };
        EXPECT_FALSE(op.attrs.contains("recomputed") && reads("w2"));
    }
    EXPECT_EQ(again, (std::set<std::string>{"rmsnorm", "all_gather", "einsum", "rope", "rename", "attention", "reduce_scatter",
                                            "add", "swiglu"}));
}

TEST(Recompute, ReshardsAreSharedWithBackward) {
    const ir::Program p = passes::recompute(program_after("fuse_loss", kTp), {true});
    std::set<std::vector<ir::TensorId>> gathered;
    for (const ir::Op& op : p.routine("layer.backward")->ops) {
        EXPECT_TRUE(op.kind != "all_gather" || gathered.insert(op.in).second);
    }
    EXPECT_EQ(gathered.size(), 4u);
}

TEST(Recompute, ForwardDoesTheSame) {
    const ir::Program before = program_after("fuse_loss", kTp), after = passes::recompute(before, {true});
    std::vector<std::string> kinds[2];
    for (const ir::Op& op : before.routine("layer.forward")->ops) kinds[0].push_back(op.kind);
    for (const ir::Op& op : after.routine("layer.forward")->ops) kinds[1].push_back(op.kind);
    EXPECT_EQ(kinds[0], kinds[1]);
}

TEST(Recompute, BlocksThatStandOnceAreLeftAlone) {
    const ir::Program before = program_after("fuse_loss", kTp), after = passes::recompute(before, {true});
    for (const ir::Routine& r : before.routines) EXPECT_TRUE(r.block == "layer" || *after.routine(r.name) == r) << r.name;
    Settings one = kTp;
    one.emplace_back("model.n_layers", "1");
    const ir::Program single = program_after("fuse_loss", one);
    EXPECT_TRUE(passes::recompute(single, {true}) == single);
}

}  // namespace
}  // namespace lockstep::testing
