#include "job/supervisor.h"

#include <fmt/format.h>

#include "base/error.h"
#include "compile/layout.h"
#include "job/hosts.h"
#include "job/islands.h"
#include "job/launch.h"
#include "job/stopping.h"
#include "planning/machine.h"
#include "planning/topology.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

// The job of the command, as a whole.
LaunchedJob whole_of(const SupervisorOptions& args) {
    if (!args.command.empty() && args.command[0] != "train")
        throw UserError(
            "launch.command", "--",
            fmt::format("launch starts train, but the command after -- is {}: write lockstep launch -- train recipe.toml",
                        args.command[0]));
    if (args.recipe.path.empty())
        throw UserError("launch.command", "--",
                        "nothing to start: write the command after --, as in lockstep launch -- train recipe.toml");
    LaunchedJob whole{hosts_of(args.hosts), planning::announced_for_training(args.recipe).recipe, args.processes, {}, {},
                      Output::Shown};
    planning::set_levels(whole.recipe, "");
    const compile::Config config = compile::config_of(whole.recipe);
    planning::use_instruction_set(config);
    if (!config.checkpoint.enable || config.checkpoint.interval < 1)
        telemetry::warn(
            "launch: without checkpoint.enable = true and a checkpoint.interval every restart begins at the first step");
    return whole;
}

}  // namespace

Supervised supervise(const SupervisorOptions& options) {
    const LaunchedJob whole = whole_of(options);
    const compile::Config config = compile::config_of(whole.recipe);
    if (config.fault_tolerance.enable && config.fault_tolerance.replica_id >= 0)
        throw UserError("launch.islands", "fault_tolerance.replica_id",
                        fmt::format("{}fault_tolerance.replica_id = {}: launch starts all islands and numbers them itself; leave "
                                    "it out",
                                    config.where("fault_tolerance.replica_id"), config.fault_tolerance.replica_id));
    if (!config.fault_tolerance.enable) {
        Launch launch(options, whole, nullptr);
        remember_signals(Again::IsRemembered);
        return launch.run();
    }
    compile::layout_of(config);  // what is wrong with islands is said before any is started
    remember_signals(Again::IsRemembered);
    return supervise_islands(options, whole, config);
}

}  // namespace lockstep::job
