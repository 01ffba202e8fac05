#include "cli/loaded.h"

#include "cli/machine.h"
#include "runtime/snapshot.h"
#include "runtime/trainer.h"

namespace lockstep::cli {
namespace {

compile::Compiled compiled_for(const compile::Recipe& recipe, const std::vector<std::string>& entries, comm::Crew& crew) {
    compile::CompileOptions options = compile_options(recipe, &crew);
    options.entries = entries;
    compile::Compiled compiled = compile::compile(recipe, options);
    require_runnable(recipe, options, compiled, capacity_here(recipe, compiled.layout.ranks, &crew));
    require_same_programs(compiled, crew);
    return compiled;
}

}  // namespace

Loaded::Loaded(const Stored& stored, const std::vector<std::string>& entries, comm::Crew& crew)
    : compiled(compiled_for(stored.recipe, entries, crew)),
      ranks(compiled.programs, runtime::ranks_options(stored.recipe, compiled.layout, &crew)),
      watch(stored.recipe, ranks) {
    runtime::load_weights(ranks, stored.folder);
}

}  // namespace lockstep::cli
