#include "sim/played.h"

#include <algorithm>

namespace lockstep::sim {

StepPlayer::StepPlayer(const Job& job) : job_(job) {
    for (size_t rank = 0; rank < job.ranks().size(); ++rank) add_works(rank);
    if (job.cluster().devices) devices_.emplace(job.ranks(), job.groups(), recorded_);
}

void StepPlayer::add_works(size_t rank) {
    const SteadyTimes steady(job_.programs());
    const std::vector<Thread>& threads = job_.ranks()[rank].threads;
    std::vector<SteadyWork>& works = works_.emplace_back();
    std::vector<Range>& recorded = recorded_.emplace_back(threads.size());
    for (size_t thread = 0; thread < threads.size(); ++thread) {
        for (size_t work = 0; work < threads[thread].work.size(); ++work) {
            const int call = job_.call_of(rank, static_cast<int>(thread), static_cast<int>(work));
            const ir::Routine& r = job_.routine_of(rank, call);
            const ir::Call& c = job_.entry(rank).calls[static_cast<size_t>(call)];
            const SteadyWork of{static_cast<int>(thread), static_cast<int>(work), call, steady.has(r, c),
                                rank == 0 && thread == 0 && steady.asks_end(r, c)};
            if (!of.is_steady && !of.asks_end) continue;
            works.push_back(of);
            if (thread > 0) continue;
            Range& range = recorded[thread];
            if (range.end == 0) range.begin = of.work;
            range.end = of.work + 1;
        }
    }
}

void StepPlayer::read_starts() {
    if (devices_) devices_->read_starts();
}

StepPlayer::Played StepPlayer::play() {
    Played out{0, SteadyTimes(job_.programs())};
    const Machine machine = job_.machine();
    WorkTimes of_host;
    if (devices_) {
        out.end_s = devices_->play(machine.beside_link);
    } else {
        of_host = times_of(job_.ranks(), job_.groups(), machine);
        for (const auto& rank : of_host) {
            for (const std::vector<WorkTime>& thread : rank) {
                for (const WorkTime& w : thread) out.end_s = std::max(out.end_s, w.end_s);
            }
        }
    }
    const WorkTimes& times = devices_ ? devices_->times() : of_host;
    for (size_t rank = 0; rank < works_.size(); ++rank) {
        const std::vector<ir::Call>& calls = job_.entry(rank).calls;
        const int first = devices_ ? recorded_[rank][0].begin : 0;
        for (const SteadyWork& w : works_[rank]) {
            if (w.thread == 0) {
                const WorkTime& time = times[rank][0][static_cast<size_t>(w.work - first)];
                if (w.asks_end) out.steady.end(job_.routine_of(rank, w.call), calls[static_cast<size_t>(w.call)], time.end_s);
                if (w.is_steady) out.steady.compute(rank, time.busy_s);
            }
            if (!w.is_steady) continue;
            for (const Segment& s : job_.segments_of(rank, w.call))
                if (s.link >= 0) out.steady.use_link(s.link, s.link_s);
        }
    }
    return out;
}

StepTime step_of(const Job& job, const StepPlayer::Played& played) {
    return played.steady.step(played.end_s, job.programs(), job.cluster());
}

}  // namespace lockstep::sim
