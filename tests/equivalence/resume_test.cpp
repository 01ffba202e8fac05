// A run that stops in one random layout and goes on in another from its checkpoint, held to one rank that never stopped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/base/from_environment.h"
#include "tests/base/scratch_folder.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

constexpr int kBefore = 2, kAfter = 3;

// Two steps and a save in one layout, with a third step running while the save is written; three steps from it in the other.
Outcome stop_and_go_on(const Draw& first, const Draw& second, const std::string& root) {
    Outcome out;
    {
        const data::SyntheticSource data = synthetic_data(first.recipe, first.compiled);
        runtime::Trainer trainer(compile::config_of(first.recipe), first.compiled, data);
        start(trainer, first.recipe);
        go_on(trainer, kBefore, out);
        runtime::Saver saver(trainer, first.recipe, root);
        saver.save(runtime::SaveContents::All);
        Outcome beside;
        go_on(trainer, 1, beside);
        saver.finish();
    }
    const data::SyntheticSource data = synthetic_data(second.recipe, second.compiled);
    runtime::Trainer trainer(compile::config_of(second.recipe), second.compiled, data);
    runtime::load(trainer, checkpoint::folder_of(root, kBefore));
    go_on(trainer, kAfter, out);
    return out;
}

void hold_resumed_to_one_rank(Dtype dtype, int64_t wanted) {
    double farthest = 0;
    int several = 0;
    for (uint64_t seed = 1; wanted > 0; ++seed) {
        std::optional<Draw> first = draw(seed, dtype);
        if (!first) continue;
        --wanted;
        first->recipe.set("checkpoint.enable", "true");
        first->recipe.set("checkpoint.async_mode", seed % 2 == 0 ? "async" : "disabled");
        first->compiled = compile_recipe(first->recipe, backend_of(dtype));
        EXPECT_EQ(refusal(first->compiled), "");
        const Draw second = other_layout(first->recipe, seed + 77, dtype);
        several += second.compiled.layout.ranks > 1;
        const ScratchFolder scratch;
        const Outcome one = run(one_rank(first->recipe), backend_of(dtype), kBefore + kAfter);
        std::string where;
        const double diff = difference(one, stop_and_go_on(*first, second, scratch.path("c")), &where);
        const double allowed = tolerance(first->recipe, one, dtype);
        EXPECT_LE(diff, allowed) << "at " << where << ", seed " << seed << "\n"
                                 << first->recipe.toml() << "\nthen\n"
                                 << second.recipe.toml();
        farthest = std::max(farthest, diff / allowed);
    }
    EXPECT_GT(several, 0);
    fmt::print("the farthest from one rank reaches {:.2g} of what is allowed\n", farthest);
}

int64_t draws_of_resumes() { return std::max<int64_t>(4, from_environment("LOCKSTEP_DRAWS", 80) / 5); }

TEST(EquivalenceResume, AnyLayoutGoesOnWhereAnotherStoppedFloat64) { hold_resumed_to_one_rank(Dtype::F64, draws_of_resumes()); }
TEST(EquivalenceResume, AnyLayoutGoesOnWhereAnotherStoppedFloat32) {
    hold_resumed_to_one_rank(Dtype::F32, std::max<int64_t>(4, draws_of_resumes() / 5));
}

}  // namespace
}  // namespace lockstep::testing
