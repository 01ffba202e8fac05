#include "runtime/player.h"

#include <fmt/format.h>

namespace lockstep::runtime {

std::vector<QueueName> Playing::other_queues() const {
    ByStepQueue<bool> used;
    for (const ir::Entry& e : program.entries) {
        for (const ir::Call& c : e.calls) {
            if (traits_of(c.queue).in_steps) used[c.queue] = true;
        }
    }
    std::vector<QueueName> out;
    std::ranges::copy_if(kQueuesOfSteps, std::back_inserter(out),
                         [&](QueueName queue) { return queue != QueueName::Compute && used[queue]; });
    return out;
}

void Playing::fill_with_nan(const ir::Call& call, device::Queue& queue) const {
    const ir::Routine& r = program.routines[static_cast<size_t>(call.routine)];
    const auto fill = [&](int buffer, int64_t bytes) {
        device.fill(queue, prepared.buffer(buffer), 0xff, bytes);  // all ones: NaN in float and double
    };
    if (call.scratch >= 0) fill(call.scratch, r.scratch_bytes);
    if (r.kind == ir::RoutineKind::Free) fill(call.bindings[0].buffer, r.ports[0].bytes);
}

comm::Aborted Playing::failure(const Launch& launch, const std::exception& error) const {
    const std::string reason =
        fmt::format("rank {}, {} (layer {}, microbatch {}), op {} {}: {}", rank, launch.routine->name, launch.call->instance,
                    launch.call->microbatch, launch.index, launch.op->kind, error.what());
    comm.abort(reason);
    return comm::Aborted(reason);
}

}  // namespace lockstep::runtime
