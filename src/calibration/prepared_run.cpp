#include "calibration/prepared_run.h"

#include <filesystem>

#include "base/error.h"
#include "compile/memory_report.h"
#include "planning/machine.h"
#include "planning/plan.h"
#include "sim/simulate.h"

namespace lockstep::calibration {

std::vector<sim::Source> ClusterFiles::sources(const std::string& cluster, const std::string& stack) const {
    const auto path_of = [&](const std::string& name, const std::string& folder) {
        return name.empty() || name.find('/') != std::string::npos || name.ends_with(".toml") ? name
                                                                                              : folder + "/" + name + ".toml";
    };
    return sim::read_sources(path_of(cluster, folder_), "cluster", path_of(stack, folder_ + "/stacks"));
}

PreparedRun prepare(const Run& run, const ClusterFiles& files) {
    PreparedRun out;
    out.run = &run;
    out.sources = files.sources(run.cluster, run.stack);
    const sim::Cluster cluster = sim::cluster_of(out.sources);
    out.parts = cluster.parts;
    try {
        out.config = compile::config_of(*run.recipe);
        planning::Machine machine = planning::described_machine(out.config, cluster, run.cluster);
        out.rank_threads = machine.rank_threads;
        machine.options.verify = false;
        out.compiled = compile::compile(out.config, machine.options);
        const planning::Needed needed = planning::needed_by(machine, out.compiled);
        const bool reserved = run.memory_is_reserved || needed.of_stack.empty();
        out.memory_bytes = reserved ? static_cast<double>(needed.bytes) : needed.allocated_bytes;
        out.fits = planning::has_room(machine, needed.bytes);
        out.flops_model = compile::flops_model_of_a_rank(compile::reports_of(out.compiled));
    } catch (const UserError& e) {
        out.refusal = e.what();
    }
    return out;
}

double step_s(const PreparedRun& run, const sim::Cluster& cluster) {
    return planning::step_s(run.compiled, sim::time_of(run.compiled.programs, ir::EntryKind::Train, cluster, run.rank_threads));
}

}  // namespace lockstep::calibration
