#include "schedules/transfers.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace lockstep::schedules {
namespace {

// A step and its place in the one order: an action when it starts, a transfer when its action has ended; transfers first.
struct TimedStep {
    double time;
    bool runs;
    int64_t stage, microbatch;
    Step step;

    auto key() const { return std::tuple(time, runs, stage, microbatch, step.action.work); }
};

}  // namespace

std::vector<std::vector<Step>> with_transfers(const Table& table, Cost cost) {
    Table dense = table;
    for (Row& row : dense.rows) std::erase(row, Action{});
    const Timeline timeline = play(dense, cost);
    ensure(!timeline.stuck, "pipeline: an illegal table has no transfers");
    std::vector<int64_t> rank_of(table.stages, -1);
    for (size_t rank = 0; rank < dense.rows.size(); ++rank) {
        for (const Action& a : dense.rows[rank]) rank_of[a.stage] = static_cast<int64_t>(rank);
    }
    std::vector<std::vector<TimedStep>> placed(dense.rows.size());
    for (size_t rank = 0; rank < dense.rows.size(); ++rank) {
        for (size_t i = 0; i < dense.rows[rank].size(); ++i) {
            const Action& a = dense.rows[rank][i];
            const double start = timeline.start[rank][i];
            placed[rank].push_back({start, true, a.stage, a.microbatch, {StepKind::Run, a, -1}});
            const int64_t next = a.work == Work::Forward ? a.stage + 1 : is_backward(a.work) ? a.stage - 1 : -1;
            if (next < 0 || next == table.stages || rank_of[next] == static_cast<int64_t>(rank)) continue;
            const auto add = [&](int64_t at, StepKind kind, int64_t peer) {
                placed[at].push_back({start + cost(a), false, a.stage, a.microbatch, {kind, a, peer}});
            };
            add(static_cast<int64_t>(rank), StepKind::Send, rank_of[next]);
            add(rank_of[next], StepKind::Receive, static_cast<int64_t>(rank));
        }
    }
    std::vector<std::vector<Step>> out(placed.size());
    for (size_t rank = 0; rank < placed.size(); ++rank) {
        std::sort(placed[rank].begin(), placed[rank].end(),
                  [](const TimedStep& a, const TimedStep& b) { return a.key() < b.key(); });
        for (const TimedStep& p : placed[rank]) out[rank].push_back(p.step);
    }
    return out;
}

}  // namespace lockstep::schedules
