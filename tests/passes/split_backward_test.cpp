#include "passes/split_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/rule.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

ir::Program split(const Settings& settings = {}) {
    return passes::split_backward(program_after("recompute", settings), passes::WholeBackward::Drop);
}

std::set<std::string> tensors_of(const ir::Program& p, const std::string& routine, const std::string& port) {
    const ir::Routine& r = *p.routine(routine);
    std::set<std::string> out;
    if (const int at = r.port(port); at >= 0) {
        for (ir::TensorId t : r.port_tensors(at)) out.insert(r.tensors[t].name);
    }
    return out;
}

using Names = std::set<std::string>;

TEST(SplitBackward, ProductsOfWeightsComeLater) {
    const ir::Program p = split();
    EXPECT_FALSE(ops::verify(p));
    EXPECT_EQ(p.routine("layer.backward"), nullptr);
    EXPECT_EQ(tensors_of(p, "layer.backward_input", "gradients"), (Names{"grad.attention_norm", "grad.ffn_norm"}));
    EXPECT_EQ(tensors_of(p, "layer.backward_weight", "gradients"), (Names{"grad.wq.wk.wv", "grad.wo", "grad.w1.w3", "grad.w2"}));
    EXPECT_EQ(tensors_of(p, "layer.backward_weight", "params"), Names{});
    EXPECT_EQ(p.routine("layer.backward_weight")->port("d.x"), -1);
    EXPECT_EQ(p.routine("embed.backward_input"), nullptr);
    EXPECT_NE(p.routine("embed.backward_weight"), nullptr);
}

TEST(SplitBackward, FramesAreDividedByWhoReadsThem) {
    const ir::Program p = split();
    const Names input = tensors_of(p, "layer.forward", "frame"), kept = tensors_of(p, "layer.forward", "frame.kept"),
                both = tensors_of(p, "layer.forward", "frame.both");
    EXPECT_EQ(kept, (Names{"act", "n1", "n2"}));
    EXPECT_TRUE(both.contains("o"));
    EXPECT_TRUE(input.contains("n1.rstd") && input.contains("lse") && input.contains("gate_up"));
    EXPECT_EQ(tensors_of(p, "layer.backward_weight", "frame"), Names{});
    EXPECT_EQ(tensors_of(p, "layer.backward_weight", "frame.weight"), tensors_of(p, "layer.backward_input", "frame.weight"));
    EXPECT_TRUE(tensors_of(p, "layer.backward_input", "frame.weight").contains("d.gate_up.part"));
}

TEST(SplitBackward, ReductionsAreNeverMadeAgain) {
    const ir::Program p = split({{"parallelism.tensor_parallel_degree", "2"}, {"activation_checkpoint.mode", "full"}});
    EXPECT_FALSE(ops::verify(p));
    const auto count = [&](const char* routine, const char* kind) {
        const ir::Routine& r = *p.routine(routine);
        return std::count_if(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) { return op.kind == kind; });
    };
    EXPECT_GT(count("layer.backward_weight", "all_gather"), 0);
    EXPECT_EQ(count("layer.backward_weight", "reduce_scatter"), 0);
    EXPECT_EQ(count("layer.backward_weight", "rmsnorm_backward"), 0);
}

TEST(SplitBackward, NothingIsDoneTwiceButWhatIsCheap) {
    const ir::Program whole = program_after("recompute"), parts = split();
    for (const char* block : {"layer", "head"}) {
        const auto ops_of = [&](const ir::Program& p, const std::string& routine) {
            std::multiset<std::string> out;
            const ir::Routine* r = p.routine(std::string(block) + "." + routine);
            if (!r) return out;
            for (const ir::Op& op : r->ops) {
                if (op.kind != "rename" && op.kind != "all_gather" && op.kind != "slice") out.insert(op.kind);
            }
            return out;
        };
        std::multiset<std::string> both = ops_of(parts, "backward_input");
        both.merge(ops_of(parts, "backward_weight"));
        EXPECT_EQ(both, ops_of(whole, "backward")) << block;
    }
}

}  // namespace
}  // namespace lockstep::testing
