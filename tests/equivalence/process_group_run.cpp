#include "tests/equivalence/process_group_run.h"

#include <fmt/format.h>

#include "checkpoint/folder.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"

namespace lockstep::testing {

std::optional<Draw> draw_for(const std::vector<int>& host_of, uint64_t seed, Dtype dtype, bool (*of)(const compile::Recipe&)) {
    const auto processes = static_cast<int64_t>(host_of.size());
    const auto wanted = [&](const compile::Recipe& r) {
        return (!of || of(r)) && compile::layout_of(compile::config_of(r)).ranks % processes == 0;
    };
    std::optional<Draw> d = draw(seed, dtype, false, wanted);
    if (!d) return d;
    d->recipe.set("checkpoint.enable", "true");
    d->recipe.set("checkpoint.async_mode", seed % 2 == 0 ? "async" : "disabled");
    mesh::Topology topology;
    topology.ranks_per_process = static_cast<int>(compile::layout_of(compile::config_of(d->recipe)).ranks / processes);
    for (int host : host_of)
        topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(topology.ranks_per_process), host);
    topology.peers = seed % 3 == 0;  // by these transports it is only another program
    // Tensors are tiny: at times none is small, so that all go the long ways.
    d->compiled = compile_recipe(d->recipe, backend_of(dtype), {}, {topology, seed % 4 == 0 ? mesh::kSmallBytes : 0});
    return d;
}

Saved train_and_save(const Draw& d, const std::string& root, comm::ProcessGroup& group) {
    const data::SyntheticSource source = synthetic_data(d.recipe, d.compiled);
    runtime::Trainer trainer(compile::config_of(d.recipe), d.compiled, source, &group);
    Saved out;
    group.guard([&] {
        start(trainer, d.recipe);
        go_on(trainer, 2, out.outcome);
        runtime::Saver saver(trainer, d.recipe, root);
        group.guard([&] {
            saver.save(runtime::SaveContents::All);
            go_on(trainer, 1, out.outcome);
            saver.finish();
        });
        out.checkpoint = saver.latest();
    });
    return out;
}

runtime::GlobalTensors weights_of(const Draw& d, const std::string& checkpoint, comm::ProcessGroup& group) {
    const data::SyntheticSource source = synthetic_data(d.recipe, d.compiled);
    runtime::Trainer trainer(compile::config_of(d.recipe), d.compiled, source, &group);
    runtime::load(trainer, checkpoint);
    return trainer.state(runtime::saved_as("{}"));
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
