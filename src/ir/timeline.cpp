#include "ir/timeline.h"

#include <algorithm>

namespace lockstep::ir {

Timeline room_for(const Program& program, const Entry& entry) {
    size_t records = 0;
    for (const Call& call : entry.calls) records += 1 + program.routines[call.routine].ops.size();
    Timeline timeline;
    for (std::vector<TimedOp>& thread : timeline.threads) thread.reserve(records);
    return timeline;
}

void match_collectives(const Program& program, const Entry& entry, std::vector<Timeline>& timelines) {
    // Every rank runs the same ops on the same threads in the same order, so a record's position names it on all ranks.
    for (size_t rank = 0; rank < timelines.size(); ++rank) {
        for (size_t thread = 0; thread < 2; ++thread) {
            std::vector<TimedOp>& mine = timelines[rank].threads[thread];
            for (size_t i = 0; i < mine.size(); ++i) {
                if (mine[i].op < 0) continue;
                const Op& op = program.routines[entry.calls[mine[i].call].routine].ops[mine[i].op];
                if (op.group.empty()) continue;
                for (int64_t member : program.mesh.group(static_cast<int64_t>(rank), op.group)) {
                    const TimedOp& theirs = timelines[static_cast<size_t>(member)].threads[thread].at(i);
                    mine[i].ready_s = std::max(mine[i].ready_s, theirs.start_s);
                }
                mine[i].ready_s = std::min(mine[i].ready_s, mine[i].end_s);
            }
        }
    }
}

}  // namespace lockstep::ir
