#include "job/loaded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checksum.h"
#include "planning/machine.h"
#include "runtime/snapshot.h"
#include "runtime/trainer.h"

namespace lockstep::job {
namespace {

compile::Compiled compiled_for(const Stored& stored, const std::vector<ir::EntryKind>& entries, comm::Crew& crew, Facts facts) {
    const compile::Recipe& recipe = stored.recipe;
    for (const auto& [file, sums] : stored.manifest.files)
        facts.emplace_back(stored.folder + "/" + file, hex_checksum(fmt::format("{}", fmt::join(sums.xxh3, " "))));
    const compile::Config config = compile::config_of(recipe);
    planning::use_instruction_set(config);
    planning::note_other_machine(config);
    require_same_job(recipe, facts, crew);
    compile::CompileOptions options = planning::compile_options(config, &crew);
    options.entries = entries;
    compile::Compiled compiled = compile::compile(config, options);
    planning::require_runnable(config, options, compiled, planning::capacity_here(config, compiled.layout.ranks, &crew));
    require_same_programs(compiled, crew);
    return compiled;
}

}  // namespace

Loaded::Loaded(const Stored& stored, const std::vector<ir::EntryKind>& entries, comm::Crew& crew, const Facts& flags)
    : compiled(compiled_for(stored, entries, crew, flags)),
      ranks(compiled.programs, runtime::ranks_options(compile::config_of(stored.recipe), compiled.layout, &crew)),
      watch(compile::config_of(stored.recipe), ranks) {
    runtime::load_weights(ranks, stored.folder);
}

}  // namespace lockstep::job
