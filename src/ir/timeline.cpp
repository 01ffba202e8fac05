#include "ir/timeline.h"

#include <algorithm>
#include <map>
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
    // The k-th launch of a group on a thread is the same one on all of its members; so are the k-th giving, taking and awaiting
    // of a transfer, of which who takes waits for who gives, and who awaits for who takes.
    using Launch = std::tuple<std::vector<int64_t>, size_t, int>;
    std::map<Launch, double> met_s;  // from when on nobody waits
    std::map<Launch, double> taken_s;
    const auto for_each = [&](const auto& f) {
        for (size_t rank = 0; rank < timelines.size(); ++rank) {
            const Program& p = *timelines[rank].program;
            std::map<std::tuple<std::vector<int64_t>, size_t, Meeting>, int> launched;
            for (size_t thread = 0; thread < 2; ++thread) {
                for (TimedOp& t : timelines[rank].threads[thread]) {
                    if (t.op < 0) continue;
                    const Op& op = p.routines[timelines[rank].entry->calls[t.call].routine].ops[t.op];
                    if (op.group.empty()) continue;
                    const auto members = members_of(p, op, p.mesh.group(static_cast<int64_t>(rank), op.group));
                    const Meeting meeting = meeting_of(op);
                    f(t, meeting, Launch{members, thread, launched[{members, thread, meeting}]++});
                }
            }
        }
    };
    for_each([&](const TimedOp& t, Meeting meeting, const Launch& launch) {
        if (meeting == Meeting::Take) taken_s[launch] = t.end_s;
        if (meeting == Meeting::Take || meeting == Meeting::Await) return;
        double& last = met_s.try_emplace(launch, t.start_s).first->second;
        last = std::max(last, t.start_s);
    });
    for_each([&](TimedOp& t, Meeting meeting, const Launch& launch) {
        const std::map<Launch, double>& of = meeting == Meeting::Await ? taken_s : met_s;
        const auto at = of.find(launch);
        if (at != of.end()) t.ready_s = std::min(std::max(t.ready_s, at->second), t.end_s);
    });
}

}  // namespace lockstep::ir
