#include "ir/timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace lockstep::ir {

Timeline room_for(const Program& program, const Entry& entry) {
    size_t records = 0;
    for (const Call& call : entry.calls) records += 1 + program.routines[call.routine].ops.size();
    Timeline timeline{&program, &entry, {}};
    for (std::vector<TimedOp>& thread : timeline.threads) thread.reserve(records);
    return timeline;
}

void match_collectives(std::vector<Timeline>& timelines) {
    // The k-th launch of a group on a thread is the same one on all of its members. The k-th receive waits for the k-th send,
    // and the k-th wait for the k-th receive.
    using Launch = std::tuple<std::vector<int64_t>, QueueName, int>;
    std::map<Launch, double> met_s;  // from when on nobody waits
    std::map<Launch, double> received_s;
    const auto for_each = [&](const auto& f) {
        for (size_t rank = 0; rank < timelines.size(); ++rank) {
            const Program& p = *timelines[rank].program;
            std::map<std::tuple<std::vector<int64_t>, QueueName, mesh::Collective>, int> launched;
            for (QueueName thread : kQueuesOfSteps) {
                for (TimedOp& t : timelines[rank].threads[thread]) {
                    if (t.op < 0) continue;
                    const Op& op = p.routines[timelines[rank].entry->calls[t.call].routine].ops[t.op];
                    const std::optional<mesh::Collective> named = mesh::collective_named(op.kind);
                    if (!named) continue;
                    const auto members = members_of(p, op, p.mesh.group(static_cast<int64_t>(rank), op.group));
                    // All symmetric ones of a group count as one kind.
                    const mesh::Collective kind = mesh::traits_of(*named).symmetric ? mesh::Collective::AllGather : *named;
                    f(t, kind, Launch{members, thread, launched[{members, thread, kind}]++});
                }
            }
        }
    };
    for_each([&](const TimedOp& t, mesh::Collective kind, const Launch& launch) {
        if (kind == mesh::Collective::Recv) received_s[launch] = t.end_s;
        if (kind == mesh::Collective::Recv || kind == mesh::Collective::Wait) return;
        double& last = met_s.try_emplace(launch, t.start_s).first->second;
        last = std::max(last, t.start_s);
    });
    for_each([&](TimedOp& t, mesh::Collective kind, const Launch& launch) {
        const std::map<Launch, double>& of = kind == mesh::Collective::Wait ? received_s : met_s;
        const auto at = of.find(launch);
        if (at != of.end()) t.ready_s = std::min(std::max(t.ready_s, at->second), t.end_s);
    });
}

}  // namespace lockstep::ir
