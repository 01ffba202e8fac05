#include "runtime/ranks_options.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/processors.h"
#include "compile/work.h"
#include "device/late.h"
#include "plugins/gpu_module.h"

namespace lockstep::runtime {
namespace {

// Of this process among those of its host.
int place_on_host(const comm::ProcessGroup& group) {
    int place = 0;
    for (int process = 0; process < group.process(); ++process)
        place += group.host_of(process) == group.host_of(group.process()) ? 1 : 0;
    return place;
}

}  // namespace

compile::RankThreads rank_threads_of(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group) {
    return group ? compile::rank_threads_of(config, group->ranks_on_a_host(ranks), group->cores())
                 : compile::rank_threads_of(config, ranks, static_cast<int>(usable_cpus().size()));
}

std::string why_no_peers(comm::ProcessGroup& group) {
    const plugins::GpuModule& module = plugins::gpu_module();
    return module.why_no_peers(group, place_on_host(group));
}

RanksOptions ranks_options(const compile::Config& config, const compile::Compiled& compiled, comm::ProcessGroup* group) {
    const compile::Layout& layout = compiled.layout;
    const compile::RankThreads rank_threads = rank_threads_of(config, layout.ranks, group);
    RanksOptions o;
    o.threads_per_rank = rank_threads.threads_per_rank;
    o.pin_threads = config.runtime.pin_threads;
    o.comm_thread = rank_threads.comm_thread;
    o.debug_fill = config.runtime.debug_fill;
    o.graphs = compile::runs_as_graph(config, compiled.programs) && config.debug.device == compile::DeviceKind::Host;
    o.flight_entries = config.comm.trace_buf_size;
    o.links.link = compile::local_link(config);
    o.group = group;
    o.island = layout.job, o.island_timeout_s = static_cast<double>(config.comm.train_timeout_seconds);
    const bool is_late = config.debug.device == compile::DeviceKind::Late;
    if (config.on_gpu()) {
        if (is_late)
            throw UserError(
                "recipe.device", "debug.device",
                fmt::format("{}debug.device = \"late\" runs the kernels of the host, and runtime.kernels = \"cuda\" those of "
                            "a GPU: leave one of them out",
                            config.where("debug.device")));
        const plugins::GpuModule& module = plugins::gpu_module();
        if (config.comm.reductions == compile::Reductions::Nccl) module.avoid_sums_in_switches();
        o.backend = {module.machine(group ? place_on_host(*group) : 0), module.moves, module.across_processes};
    } else if (is_late) {
        o.backend.machine = device::late_machine(static_cast<uint64_t>(config.debug.device_seed));
    }
    return o;
}

}  // namespace lockstep::runtime
