#include "tests/equivalence/crew_run.h"

#include <fmt/format.h>

#include "checkpoint/folder.h"
#include "runtime/saver.h"
#include "runtime/snapshot.h"

namespace lockstep::testing {

std::optional<Draw> draw_for(int processes, uint64_t seed, Dtype dtype) {
    const auto wanted = [&](const compile::Recipe& r) { return compile::layout_of(r).ranks % processes == 0; };
    std::optional<Draw> d = draw(seed, dtype, false, wanted);
    if (!d) return d;
    d->recipe.set("checkpoint.enable", "true");
    d->recipe.set("checkpoint.async_mode", seed % 2 == 0 ? "async" : "disabled");
    d->compiled = compile_recipe(d->recipe, backend_of(dtype));
    return d;
}

Saved train_and_save(const Draw& d, const std::string& root, comm::Crew& crew) {
    const data::SyntheticSource source = synthetic_data(d.recipe, d.compiled);
    runtime::Trainer trainer(d.recipe, d.compiled, source, &crew);
    Saved out;
    crew.guard([&] {
        start(trainer, d.recipe);
        go_on(trainer, 2, out.outcome);
        runtime::Saver saver(trainer, d.recipe, root);
        crew.guard([&] {
            saver.save(runtime::SaveContents::All);
            go_on(trainer, 1, out.outcome);
            saver.finish();
        });
        out.checkpoint = saver.latest();
    });
    return out;
}

runtime::GlobalTensors weights_of(const Draw& d, const std::string& checkpoint, comm::Crew& crew) {
    const data::SyntheticSource source = synthetic_data(d.recipe, d.compiled);
    runtime::Trainer trainer(d.recipe, d.compiled, source, &crew);
    runtime::load(trainer, checkpoint);
    return trainer.state(runtime::StateKind::Weights);
}

std::string difference_of(const Saved& a, const Saved& b) {
    std::string where;
    if (difference(a.outcome, b.outcome, &where) != 0) return where;
    const checkpoint::FileSums x = checkpoint::read_manifest(a.checkpoint).files,
                               y = checkpoint::read_manifest(b.checkpoint).files;
    if (x != y) return "the checkpoints' checksums";
    return checkpoint::what_is_wrong(b.checkpoint).value_or("");
}

}  // namespace lockstep::testing
