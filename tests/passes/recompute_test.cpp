#include "passes/recompute.h"

#include <gtest/gtest.h>

#include <set>

#include "passes/recompute_policies.h"

#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

const Settings kTp = {{"parallelism.tensor_parallel_degree", "2"}};

ir::Program full(const ir::Program& p) { return passes::recompute(p, passes::save_nothing(p)); }

std::set<std::string> ports(const ir::Program& p, const std::string& routine) {
    std::set<std::string> out;
    for (const ir::Port& port : p.routine(routine)->ports) out.insert(port.name);
    return out;
}

TEST(Recompute, SwitchedOffChangesNothing) {
    const ir::Program p = program_after("fuse_loss", kTp);
    EXPECT_TRUE(passes::recompute(p, {}) == p);
}

TEST(Recompute, BackwardReadsOnlyWhatStandsAtTheBordersOfTheBlock) {
    const ir::Program p = full(program_after("fuse_loss", kTp));
    EXPECT_EQ(ports(p, "layer.forward"), (std::set<std::string>{"x", "params", "y", "pos@whole", "doc@whole"}));
    EXPECT_EQ(ports(p, "layer.backward"),
              (std::set<std::string>{"x", "params", "d.y", "gradients", "d.x", "pos@whole", "doc@whole"}));
}

// What counts is that a block stands between two others, not how many of it there are.
TEST(Recompute, ServesABlockThatIsThereOnce) {
    const ir::Program p = program_after("fuse_loss", {{"model.n_layers", "1"}});
    EXPECT_TRUE(ports(p, "layer.backward").contains("frame"));
    EXPECT_FALSE(ports(full(p), "layer.backward").contains("frame"));
    const ir::Program after = full(p);
    for (const ir::Routine& r : p.routines) EXPECT_TRUE(r.block == "layer" || *after.routine(r.name) == r) << r.name;
}

TEST(Recompute, RerunOpsAreMarkedAndTheLastProductIsNotAmongThem) {
    const ir::Program p = full(program_after("fuse_loss", kTp));
    const ir::Routine& r = *p.routine("layer.backward");
    std::set<std::string> again;
    for (const ir::Op& op : r.ops) {
        if (op.attrs.contains("recomputed")) again.insert(op.kind);
        const auto reads = [&](const char* t) { return std::count(op.in.begin(), op.in.end(), r.find(t)) > 0; };
        EXPECT_FALSE(op.attrs.contains("recomputed") && reads("w2"));
    }
    EXPECT_EQ(again, (std::set<std::string>{"rmsnorm", "all_gather", "einsum", "split_qkv", "rename", "attention",
                                            "reduce_scatter", "add", "swiglu"}));
}

TEST(Recompute, ReshardsAreSharedWithBackward) {
    const ir::Program p = full(program_after("fuse_loss", kTp));
    std::set<std::vector<ir::TensorId>> gathered;
    for (const ir::Op& op : p.routine("layer.backward")->ops) {
        EXPECT_TRUE(op.kind != "all_gather" || gathered.insert(op.in).second);
    }
    EXPECT_EQ(gathered.size(), 4u);
}

TEST(Recompute, ForwardDoesTheSame) {
    const ir::Program before = program_after("fuse_loss", kTp), after = full(before);
    std::vector<std::string> kinds[2];
    for (const ir::Op& op : before.routine("layer.forward")->ops) kinds[0].push_back(op.kind);
    for (const ir::Op& op : after.routine("layer.forward")->ops) kinds[1].push_back(op.kind);
    EXPECT_EQ(kinds[0], kinds[1]);
}

std::set<std::string> frame(const ir::Program& p, const std::string& routine) {
    std::set<std::string> out;
    const ir::Routine& r = *p.routine(routine);
    for (ir::TensorId t : r.port_tensors(r.port("frame"))) out.insert(r.tensors[t].source);
    return out;
}
std::vector<std::string> recomputed(const ir::Program& p, const std::string& routine) {
    std::vector<std::string> out;
    for (const ir::Op& op : p.routine(routine)->ops) {
        if (op.attrs.contains("recomputed")) out.push_back(op.kind);
    }
    return out;
}

TEST(Recompute, BackwardComputesAgainWhatTheListLacks) {
    const ir::Program p = program_after("fuse_loss", {});
    const std::set<std::string> all = frame(p, "layer.forward");
    for (const std::string& value : all) {
        std::set<std::string> others = all;
        others.erase(value);
        const ir::Program q = passes::recompute(p, {{"layer", {}, others}});
        EXPECT_EQ(frame(q, "layer.forward"), others);
        EXPECT_EQ(frame(q, "layer.backward"), others);
        EXPECT_FALSE(recomputed(q, "layer.backward").empty()) << value;
    }
    const ir::Program same = passes::recompute(p, {{"layer", {}, all}});
    EXPECT_EQ(frame(same, "layer.backward"), all);
    EXPECT_EQ(same.routine("layer.backward")->ops.size(), p.routine("layer.backward")->ops.size());  // nothing comes on top
}

TEST(Recompute, InstancesAreSharedOutAmongTheLists) {
    const Settings four = {{"model.n_layers", "4"}};
    const ir::Program p = program_after("fuse_loss", four);
    const ir::Program q = passes::recompute(p, {{"layer", {1, 3}, {}}, {"layer", {0}, frame(p, "layer.forward")}});
    EXPECT_EQ(q.routine("layer.forward")->instances, (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(q.routine("layer.backward")->instances, (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(q.routine("layer.backward.2")->instances, (std::vector<int64_t>{0}));
    EXPECT_EQ(q.routine("layer.backward.3")->instances, (std::vector<int64_t>{2}));
    EXPECT_EQ(q.routine("layer.backward")->port("frame"), -1);
}

TEST(Recompute, EverySecondLayer) {
    const Settings five = {{"model.n_layers", "5"}};
    const auto lists = passes::recompute_every(program_after("fuse_loss", five), 2);
    EXPECT_EQ(lists, (std::vector<passes::SaveList>{{"layer", {1, 3}, {}}}));
    EXPECT_TRUE(passes::recompute_every(program_after("fuse_loss", five), 6).empty());
}

TEST(Recompute, CostlyOpsAreSaved) {
    const ir::Program p = program_after("fuse_loss", kTp);
    const auto lists = passes::save_costly_ops(p);
    ASSERT_EQ(lists.size(), 1u);
    const ir::Program q = passes::recompute(p, lists);
    const std::vector<std::string> again = recomputed(q, "layer.backward");
    EXPECT_EQ(std::count(again.begin(), again.end(), "attention"), 0);
    EXPECT_EQ(std::count(again.begin(), again.end(), "reduce_scatter"), 0);
    // Of qkv, o, gate and up, down: none. The second's sum over tp is there, and the last's result is dead.
    EXPECT_EQ(std::count(again.begin(), again.end(), "einsum"), 0);
    EXPECT_GT(std::count(again.begin(), again.end(), "rmsnorm"), 0);
}

std::vector<passes::Saved> hull_of(const ir::Program& p) {
    const passes::Choices choices = passes::least_time_choices(p.mesh, *p.routine("layer.forward"));
    std::vector<passes::Saved> out;
    for (size_t i : choices.hull) out.push_back(choices.front[i]);
    return out;
}

TEST(Recompute, ChoicesAreAHull) {
    const ir::Program p = program_after("fuse_loss", kTp);
    const std::vector<passes::Saved> hull = hull_of(p);
    ASSERT_GT(hull.size(), 2u);
    EXPECT_EQ(hull.front().bytes, 0);
    EXPECT_EQ(hull.back().time_s, 0);
    double last = 1e300;
    for (size_t k = 1; k < hull.size(); ++k) {
        const double gain = (hull[k - 1].time_s - hull[k].time_s) / static_cast<double>(hull[k].bytes - hull[k - 1].bytes);
        EXPECT_GT(gain, 0);
        EXPECT_LT(gain, last);
        last = gain;
        const ir::Program q = passes::recompute(p, {{"layer", {}, hull[k].values}});
        int64_t bytes = 0;
        const ir::Routine& r = *q.routine("layer.backward");
        for (ir::TensorId t : r.port_tensors(r.port("frame"))) bytes += ir::local_bytes(q.mesh, r, r.tensors[t]);
        EXPECT_EQ(bytes, hull[k].bytes);
    }
}

// Every subset of what may be saved costs, per byte, at least what the hull says.
TEST(Recompute, NoChoiceIsBelowTheHull) {
    const ir::Program p = program_after("fuse_loss", {});
    const std::vector<passes::Saved> hull = hull_of(p);
    const passes::Rates rates;
    const std::set<std::string> frame_values = frame(p, "layer.forward");
    const std::vector<std::string> all(frame_values.begin(), frame_values.end());
    for (uint32_t mask = 0; mask < 1u << all.size(); mask += 37) {
        std::set<std::string> values;
        for (size_t k = 0; k < all.size(); ++k) {
            if (mask >> k & 1) values.insert(all[k]);
        }
        const ir::Program q = passes::recompute(p, {{"layer", {}, values}});
        const ir::Routine& r = *q.routine("layer.backward");
        double bytes = 0, time_s = 0;
        if (r.port("frame") >= 0) {
            for (ir::TensorId t : r.port_tensors(r.port("frame")))
                bytes += static_cast<double>(ir::local_bytes(q.mesh, r, r.tensors[t]));
        }
        for (const ir::Op& op : r.ops) {
            if (!op.attrs.contains("recomputed")) continue;
            time_s += ops::flops_of(q.mesh, r, op).executed / rates.flops_per_s +
                      static_cast<double>(ops::bytes_moved(q.mesh, r, op)) / rates.bytes_per_s;
        }
        size_t k = 1;
        while (k + 1 < hull.size() && static_cast<double>(hull[k].bytes) < bytes) ++k;
        const double share =
            (bytes - static_cast<double>(hull[k - 1].bytes)) / static_cast<double>(hull[k].bytes - hull[k - 1].bytes);
        EXPECT_GE(time_s * (1 + 1e-9), hull[k - 1].time_s + share * (hull[k].time_s - hull[k - 1].time_s)) << mask;
    }
}

}  // namespace
}  // namespace lockstep::testing
