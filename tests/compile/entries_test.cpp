// A program holds the entries that are asked for, and only what they need.
#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "passes/check.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

compile::Compiled compiled_for(const std::vector<std::string>& entries, const Settings& settings) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.entries = entries;
    return compile::compile(small_recipe(settings), options);
}

std::string refusal_of(const compile::Compiled& c) {
    const std::vector<const ir::Program*> ranks(static_cast<size_t>(c.layout.ranks), &c.program);
    const auto refused = passes::check(ranks);
    return refused ? refused->reason + ": " + refused->message : "";
}

class Entries : public ::testing::TestWithParam<NamedSettings> {};
INSTANTIATE_TEST_SUITE_P(Sample, Entries, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Entries, EvaluationAloneIsSoundAndHasNoStatesOfTraining) {
    const compile::Compiled c = compiled_for({"eval"}, GetParam().settings);
    EXPECT_EQ(refusal_of(c), "");
    ASSERT_EQ(c.program.entries.size(), 1u);
    EXPECT_EQ(c.program.entries[0].name, "eval");
    for (const ir::Buffer& b : c.program.buffers) {
        EXPECT_NE(b.kind, ir::MemoryKind::Gradients) << b.name;
        EXPECT_NE(b.kind, ir::MemoryKind::Optimizer) << b.name;
    }
    for (const ir::Routine& r : c.program.routines) {
        const bool reads = r.kind == ir::RoutineKind::Gather || r.kind == ir::RoutineKind::Free;
        EXPECT_TRUE(r.entry == "eval" || reads) << r.name;
    }
    EXPECT_LT(c.program.arena_bytes, compiled_for({"train"}, GetParam().settings).program.arena_bytes);
}

}  // namespace
}  // namespace lockstep::testing
