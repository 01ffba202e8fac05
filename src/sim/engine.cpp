#include "sim/engine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "sim/clock.h"
#include "sim/devices.h"

namespace lockstep::sim {
namespace {

enum class Phase { Waiting, Gathering, Running, Ended };

// Where a thread is.
struct Player {
    const Thread* thread;
    int rank, index, host;
    size_t work = 0, segment = 0;
    Phase phase = Phase::Waiting;
    double start_s = 0, ready_s = 0;  // of the segment, or of the wait
    double held_until_s = -1;         // by its call's delay and host; negative: not known yet
    int turn = 0;                     // of its meetings this one is the k-th
    double core = 0, link = 0;        // shares of the segment's core and memory work, and of its link time, still to do
    double core_rate = 0, link_rate = 0;
    double as_of_s = 0;   // when these shares were right
    int64_t version = 0;  // of the rates: what was foreseen under older ones does not come

    const Work& now() const { return thread->work[work]; }
    const std::vector<Segment>& pieces() const { return *now().segments; }
    const Segment& piece() const { return pieces()[segment]; }
    bool runs() const { return phase == Phase::Running; }
    bool is_done() const { return core <= kDone && link <= kDone; }
};

enum class Detail { Events, Times };

class Engine {
public:
    Engine(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine, Detail detail)
        : groups_(groups), machine_(machine), players_of_(ranks.size()), launches_(groups.size() * 2) {
        keeps_events_ = detail == Detail::Events;
        size_t events = 0;
        size_t calls = 0;
        for (size_t r = 0; r < ranks.size(); ++r) {
            first_call_.push_back(calls);
            int last = -1;
            for (size_t t = 0; t < ranks[r].threads.size(); ++t) {
                players_of_[r].push_back(static_cast<int>(players_.size()));
                players_.push_back({&ranks[r].threads[t], static_cast<int>(r), static_cast<int>(t), ranks[r].host});
                hosts_ = std::max(hosts_, ranks[r].host + 1);
                for (const Work& w : ranks[r].threads[t].work) {
                    last = std::max(last, w.id);
                    for (int waited : w.waits) last = std::max(last, waited);
                    events += w.segments->size() + (w.waits.empty() ? 0 : 1);
                }
            }
            calls += static_cast<size_t>(last + 1);
        }
        ended_.assign(calls, 0);
        blocked_by_.assign(players_.size(), kNothing);
        if (keeps_events_) events_.reserve(events);
        for (const Player& p : players_) {
            if (!keeps_events_) times_.emplace_back(p.thread->work.size());
        }
    }

    std::vector<Event> run() {
        play();
        return std::move(events_);
    }

    WorkTimes times() {
        play();
        WorkTimes out(players_of_.size());
        for (size_t p = 0; p < players_.size(); ++p) out[static_cast<size_t>(players_[p].rank)].push_back(std::move(times_[p]));
        return out;
    }

private:
    void play() {
        for (size_t p = 0; p < players_.size(); ++p) wake(static_cast<int>(p));
        while (true) {
            settle();
            set_rates();
            if (!next_event()) break;
        }
        for (const Player& p : players_)
            ensure(p.phase == Phase::Ended, "simulator: the schedule cannot go on: a thread waits for what never comes");
    }

    static constexpr size_t kNothing = std::numeric_limits<size_t>::max();

    // A player whose state may change now. One that runs, or has ended, goes on by itself.
    void wake(int player) {
        const Phase phase = players_[static_cast<size_t>(player)].phase;
        if (phase == Phase::Waiting || phase == Phase::Gathering) awake_.push_back(player);
    }

    // A call of the rank has ended: those that may have waited for it.
    void wake_waiting(int rank) {
        for (const int other : players_of_[static_cast<size_t>(rank)]) {
            // Events of one moment keep their order.
            if (keeps_events_ || (phase_of(other) == Phase::Waiting && !is_blocked(other))) wake(other);
        }
    }
    Phase phase_of(int player) const { return players_[static_cast<size_t>(player)].phase; }
    // Is it still as when it was found to wait for a call?
    bool is_blocked(int player) const {
        const size_t call = blocked_by_[static_cast<size_t>(player)];
        return call != kNothing && ended_[call] == 0;
    }

    void settle() {
        for (size_t i = 0; i < awake_.size(); ++i) {
            if (is_blocked(awake_[i])) continue;
            Player& p = players_[static_cast<size_t>(awake_[i])];
            while (step(p)) {
            }
        }
        awake_.clear();
    }
    // True if it went on.
    bool step(Player& p) {
        switch (p.phase) {
            case Phase::Waiting: return try_start(p);
            case Phase::Gathering: return try_gather(p);
            case Phase::Running:
                if (!p.is_done()) return false;
                finish(p);
                return true;
            case Phase::Ended: break;
        }
        return false;
    }

    bool try_start(Player& p) {
        if (p.work == p.thread->work.size()) {
            p.phase = Phase::Ended;
            return false;
        }
        size_t& blocked_by = blocked_by_[static_cast<size_t>(&p - players_.data())];
        for (int w : p.now().waits) {
            blocked_by = call_number(p, w);
            if (ended_[blocked_by] == 0) return false;
        }
        blocked_by = kNothing;
        if (is_held(p)) return false;
        if (!p.now().waits.empty() && keeps_events_)
            events_.push_back({p.rank, p.index, static_cast<int>(p.work), -1, p.start_s, p.start_s, now_s_});
        p.segment = 0;
        enter(p);
        return true;
    }

    bool is_held(Player& p) {
        if (p.held_until_s < 0) {
            p.held_until_s = std::max(now_s_, p.now().not_before_s) + p.now().delay_s;
            if (p.held_until_s > now_s_) ahead_.push({p.held_until_s, static_cast<int>(&p - players_.data()), ++p.version});
        }
        if (p.held_until_s > now_s_) return true;
        p.held_until_s = -1;
        return false;
    }

    // The segment at hand begins, or its call is over.
    void enter(Player& p) {
        p.start_s = now_s_;
        if (p.segment == p.pieces().size()) {
            end_work(p, p.work, now_s_);
            wake_waiting(p.rank);
            ++p.work;
            p.phase = Phase::Waiting;
            return;
        }
        p.phase = Phase::Gathering;
        if (!joins(p)) return;
        p.turn = launches(p).add(p.piece().kind, p.rank);
        wake_group(p);
    }

    size_t call_number(const Player& p, int call) const {
        return first_call_[static_cast<size_t>(p.rank)] + static_cast<size_t>(call);
    }
    void end_work(const Player& p, size_t work, double end_s) {
        ended_[call_number(p, p.thread->work[work].id)] = 1;
        if (!keeps_events_) times_of(p)[work].end_s = end_s;
    }
    std::vector<WorkTime>& times_of(const Player& p) { return times_[static_cast<size_t>(&p - players_.data())]; }

    bool joins(const Player& p) const { return p.piece().group >= 0 && groups_[static_cast<size_t>(p.piece().group)].size() > 1; }
    void wake_group(const Player& p) {
        for (int member : groups_[static_cast<size_t>(p.piece().group)]) {
            for (const int other : players_of_[static_cast<size_t>(member)]) {
                const Player& o = players_[static_cast<size_t>(other)];
                if (keeps_events_) wake(other);
                else if (o.phase == Phase::Gathering && o.piece().group == p.piece().group) awake_.push_back(other);
            }
        }
    }
    Launches& launches(const Player& p) { return launches_[static_cast<size_t>(p.piece().group) * 2 + (p.index == 0 ? 0 : 1)]; }

    bool try_gather(Player& p) {
        if (joins(p) && !launches(p).has_all(p.piece().kind, p.turn, groups_[static_cast<size_t>(p.piece().group)])) return false;
        p.phase = Phase::Running;
        p.ready_s = p.as_of_s = now_s_;
        p.core = p.piece().core_s > 0 || p.piece().memory_s > 0 ? 1 : 0;
        p.link = p.piece().link_s > 0 ? 1 : 0;
        changed_.push_back(p.rank);
        return p.is_done();
    }

    void finish(Player& p) {
        if (keeps_events_)
            events_.push_back(
                {p.rank, p.index, static_cast<int>(p.work), static_cast<int>(p.segment), p.start_s, p.ready_s, now_s_});
        else times_of(p)[p.work].busy_s += now_s_ - p.ready_s;
        changed_.push_back(p.rank);
        if (joins(p) && p.piece().kind == mesh::Collective::Recv) {
            ++launches(p).received;
            wake_group(p);
        }
        ++p.segment;
        enter(p);
    }

    // Sets the rates of all threads that share something with a rank where a segment has begun or ended.
    void set_rates() {
        if (changed_.empty()) return;
        std::vector<Player*>& of = sharing_;
        of.clear();
        if (machine_.cores < kNever) {
            for (Player& p : players_) {
                if (p.runs()) of.push_back(&p);
            }
        } else {
            std::sort(changed_.begin(), changed_.end());
            changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
            for (int rank : changed_) {
                for (int p : players_of_[static_cast<size_t>(rank)]) {
                    if (players_[static_cast<size_t>(p)].runs()) of.push_back(&players_[static_cast<size_t>(p)]);
                }
            }
        }
        changed_.clear();
        for (Player* p : of) advance(*p);
        set_rates(of);
        for (Player* p : of) foresee(*p);
    }

    // Cores in equal parts to every thread that computes; then memory: nobody gets more than it can use, the rest equal parts.
    void set_rates(const std::vector<Player*>& running) {
        for (int host = 0; host < hosts_; ++host) share_host(running, host);
        for (Player* p : running) {
            if (p->link <= kDone) continue;
            const auto on_same_link = [&](const Player* o) { return o->link > kDone && o->piece().link == p->piece().link; };
            const auto sharing = p->piece().link >= 0 ? std::count_if(running.begin(), running.end(), on_same_link) : 1;
            p->link_rate = 1 / (p->piece().link_s * static_cast<double>(sharing));
        }
    }

    void share_host(const std::vector<Player*>& running, int host) {
        double wanted = 0;
        std::vector<Player*>& busy = busy_;
        busy.clear();
        for (Player* p : running) {
            if (p->host != host || p->core <= kDone) continue;
            wanted += p->thread->cores * machine_.copies * p->piece().computing;
            busy.push_back(p);
        }
        const double share = wanted > machine_.cores ? machine_.cores / wanted : 1;
        for (Player* p : busy) {
            const Segment& s = p->piece();
            p->core_rate = s.core_s > 0 ? share / s.core_s : kNever;
            if (machine_.beside_link < 1 && has_link_beside(running, *p)) p->core_rate *= machine_.beside_link;
        }
        share_memory(busy);
    }

    static bool has_link_beside(const std::vector<Player*>& running, const Player& p) {
        return std::any_of(running.begin(), running.end(), [&](const Player* o) {
            return o != &p && o->rank == p.rank && o->link > kDone && o->piece().takes_processors;
        });
    }

    void share_memory(std::vector<Player*>& busy) {
        double left = 1, users = machine_.copies * static_cast<double>(busy.size());
        // Those who want least first: each gets an equal part of what is left, or less if it wants less.
        const auto wants = [](const Player* p) { return p->piece().memory_s > 0 ? p->core_rate * p->piece().memory_s : 0; };
        if (busy.size() > 1)
            std::stable_sort(busy.begin(), busy.end(), [&](const Player* a, const Player* b) { return wants(a) < wants(b); });
        for (Player* p : busy) {
            const double got = std::min(wants(p), left / users);
            if (got < wants(p)) p->core_rate = got / p->piece().memory_s;
            left -= got * machine_.copies;
            users -= machine_.copies;
        }
    }

    void advance(Player& p) {
        const double passed_s = now_s_ - p.as_of_s;
        p.as_of_s = now_s_;
        if (passed_s <= 0) return;
        if (p.core > kDone) p.core = std::max(0.0, p.core - passed_s * p.core_rate);
        if (p.link > kDone) p.link = std::max(0.0, p.link - passed_s * p.link_rate);
    }

    // When, at these rates, the first of a segment's two kinds of work is done.
    void foresee(Player& p) {
        double after_s = kNever;
        if (p.core > kDone) after_s = std::min(after_s, p.core / p.core_rate);
        if (p.link > kDone) after_s = std::min(after_s, p.link / p.link_rate);
        if (p.is_done()) after_s = 0;  // by rounding, at somebody else's end
        ++p.version;
        if (after_s < kNever) ahead_.push({now_s_ + after_s, static_cast<int>(&p - players_.data()), p.version});
    }

    // To the next moment at which work is done; false where nothing runs.
    bool next_event() {
        bool any = false;
        while (!ahead_.empty() && (!any || ahead_.top().time_s <= now_s_)) {
            const Foreseen e = ahead_.top();
            ahead_.pop();
            Player& p = players_[static_cast<size_t>(e.player)];
            if (e.version != p.version) continue;
            any = true;
            now_s_ = e.time_s;
            // What ends now has ended: rounding leaves nothing of it.
            const bool core_ends = p.core > kDone && p.as_of_s + p.core / p.core_rate <= now_s_,
                       link_ends = p.link > kDone && p.as_of_s + p.link / p.link_rate <= now_s_;
            advance(p);
            if (core_ends) p.core = 0;
            if (link_ends) p.link = 0;
            changed_.push_back(p.rank);
            awake_.push_back(e.player);
        }
        return any;
    }

    struct Foreseen {
        double time_s;
        int player;
        int64_t version;
        bool operator<(const Foreseen& o) const {
            return std::tie(time_s, player) > std::tie(o.time_s, o.player);
        }  // soonest first
    };

    const std::vector<std::vector<int>>& groups_;
    const Machine machine_;
    int hosts_ = 1;
    std::vector<Player> players_;
    std::vector<std::vector<int>> players_of_;  // by rank
    std::vector<size_t> first_call_;            // by rank
    std::vector<char> ended_;                   // calls of all ranks
    std::vector<size_t> blocked_by_;            // by player: a call that it was found to wait for, or kNothing
    std::vector<Launches> launches_;            // [group * 2 + thread]
    std::vector<int> awake_;
    std::vector<int> changed_;             // ranks where a segment has begun or ended
    std::vector<Player*> sharing_, busy_;  // of set_rates
    std::priority_queue<Foreseen> ahead_;
    bool keeps_events_ = true;
    std::vector<Event> events_;
    std::vector<std::vector<WorkTime>> times_;  // by player; none where events are kept
    double now_s_ = 0;
};

}  // namespace

std::vector<Event> run(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine) {
    return Engine(ranks, groups, machine, Detail::Events).run();
}

WorkTimes times_of(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine) {
    if (machine.cores < kNever) return Engine(ranks, groups, machine, Detail::Times).times();
    Devices devices(ranks, groups, all_of(ranks));
    devices.play(machine.beside_link);
    return devices.times();
}

}  // namespace lockstep::sim
