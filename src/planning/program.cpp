#include "planning/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"
#include "planning/run_data.h"
#include "planning/topology.h"

namespace lockstep::planning {

void require_passes(const ProgramOptions& options) {
    const auto known = [](const std::vector<std::string>& names, const std::string& flag, const std::string& given) {
        if (std::find(names.begin(), names.end(), given) != names.end()) return;
        throw UserError("show.unknown_pass", flag, fmt::format("{} {}: the passes are {}", flag, given, fmt::join(names, ", ")));
    };
    if (!options.after.empty()) known(compile::pass_names(), "--after", options.after);
    for (const std::string& s : options.skip) known(compile::optional_passes(), "--skip", s);
}

MachineProgram program_of(compile::Recipe recipe, const ProgramOptions& options) {
    require_passes(options);
    set_levels(recipe, "");
    open_run_data(recipe, MissingData::Assume);
    const compile::Config config = compile::config_of(recipe);
    Machine machine = machine_of(config, "");
    machine.options.microbatches = compile::Microbatches::All;
    machine.options.stop_after = options.after;
    machine.options.skip = options.skip;
    machine.options.report = options.report;
    compile::Compiled compiled = compile::compile(config, machine.options);
    return {std::move(machine), std::move(compiled)};
}

std::string text_of(const compile::Compiled& compiled) {
    std::string text;
    for (const ir::Program& p : compiled.programs) text += ir::print(p);
    return text;
}

}  // namespace lockstep::planning
