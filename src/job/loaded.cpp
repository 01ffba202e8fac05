#include "job/loaded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checksum.h"
#include "planning/machine.h"
#include "planning/refusal.h"
#include "runtime/load_states.h"
#include "runtime/ranks_options.h"

namespace lockstep::job {
namespace {

compile::Compiled compiled_for(const Stored& stored, const std::vector<ir::EntryKind>& entries, comm::ProcessGroup& group,
                               Facts facts) {
    const compile::Recipe& recipe = stored.recipe;
    for (const auto& [file, sums] : stored.manifest.files)
        facts.emplace_back(stored.folder + "/" + file, hex_checksum(fmt::format("{}", fmt::join(sums.xxh3, " "))));
    const compile::Config config = compile::config_of(recipe);
    planning::use_instruction_set(config);
    planning::note_other_machine(config);
    require_same_job(recipe, facts, group);
    compile::CompileOptions options = planning::compile_options(config, &group);
    options.entries = entries;
    compile::Compiled compiled = compile::compile(config, options);
    planning::require_runnable(config, options, compiled, planning::capacity_here(config, compiled.layout.ranks, &group));
    require_same_programs(compiled, group);
    return compiled;
}

}  // namespace

Loaded::Loaded(const Stored& stored, const std::vector<ir::EntryKind>& entries, comm::ProcessGroup& group, const Facts& flags)
    : compiled(compiled_for(stored, entries, group, flags)),
      ranks(compiled.programs, runtime::ranks_options(compile::config_of(stored.recipe), compiled, &group)),
      watch(compile::config_of(stored.recipe), ranks) {
    runtime::load_weights(ranks, stored.folder, stored.manifest);
}

}  // namespace lockstep::job
