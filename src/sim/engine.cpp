#include "sim/engine.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace lockstep::sim {
namespace {

constexpr double kDone = 1e-12;  // of a share of work
constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Phase { Waiting, Gathering, Running, Ended };

// Where a thread is.
struct Player {
    const Thread* thread;
    int rank, index, host;
    size_t work = 0, segment = 0;
    Phase phase = Phase::Waiting;
    double start_s = 0, ready_s = 0;  // of the segment, or of the wait
    double held_until_s = -1;         // by its call's delay and host; negative: not known yet
    int blocked_by = -1;              // a call that it was found to wait for; -1: none
    int turn = 0;                     // of its meetings this one is the k-th
    double core = 0, link = 0;        // shares of the segment's core and memory work, and of its link time, still to do
    double core_rate = 0, link_rate = 0;
    double as_of_s = 0;   // when these shares were right
    int64_t version = 0;  // of the rates: what was foreseen under older ones does not come
    // Of a run: one past its last work, 0: it is in none; and when its first segment, which is the one at hand, ends.
    size_t run_end = 0;
    double first_end_s = 0;

    const Work& now() const { return thread->work[work]; }
    const std::vector<Segment>& pieces() const { return *now().segments; }
    const Segment& piece() const { return pieces()[segment]; }
    bool runs() const { return phase == Phase::Running; }
    bool is_done() const { return core <= kDone && link <= kDone; }
};

// The launches of a group on one thread so far: the k-th of every member is the same one.
struct Launches {
    std::map<int, int> come;  // to symmetric ones, by rank
    int sends = 0, receives = 0, received = 0, waits = 0;

    int come_of(int rank) const {
        const auto at = come.find(rank);
        return at == come.end() ? 0 : at->second;
    }
};

// How long a segment takes on a device whose rank does nothing else.
double alone_s(const Segment& s) { return std::max(s.core_s, s.link_s); }

// Where runs of a thread may go: works that follow each other and that nobody joins or waits for before the last has ended.
struct Track {
    std::vector<double> before_s;  // by work, and of all: the sum of what those before it take by themselves
    std::vector<size_t> run_end;   // by work: one past the last of a run that it begins or is in
    std::vector<bool> meets_none;  // by work
};

enum class Detail { Events, Times };

class Engine {
public:
    Engine(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine, Detail detail)
        : groups_(groups), machine_(machine), players_of_(ranks.size()), ended_(ranks.size()), launches_(groups.size() * 2) {
        keeps_events_ = detail == Detail::Events;
        size_t events = 0;
        for (size_t r = 0; r < ranks.size(); ++r) {
            for (size_t t = 0; t < ranks[r].threads.size(); ++t) {
                players_of_[r].push_back(static_cast<int>(players_.size()));
                players_.push_back({&ranks[r].threads[t], static_cast<int>(r), static_cast<int>(t), ranks[r].host});
                hosts_ = std::max(hosts_, ranks[r].host + 1);
                int last = -1;
                for (const Work& w : ranks[r].threads[t].work) {
                    last = std::max(last, w.id);
                    for (int waited : w.waits) last = std::max(last, waited);
                    events += w.segments->size() + (w.waits.empty() ? 0 : 1);
                }
                if (static_cast<size_t>(last + 1) > ended_[r].size()) ended_[r].resize(static_cast<size_t>(last + 1), false);
            }
            if (!keeps_events_) add_tracks(ranks[r], ended_[r].size());
        }
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

    // A player whose state may change now. One that runs, or has ended, goes on by itself.
    void wake(int player) {
        const Phase phase = players_[static_cast<size_t>(player)].phase;
        if (phase == Phase::Waiting || phase == Phase::Gathering) awake_.push_back(player);
    }

    // A call of the rank has ended: those that may have waited for it.
    void wake_waiting(int rank) {
        const std::vector<bool>& ended = ended_[static_cast<size_t>(rank)];
        for (const int other : players_of_[static_cast<size_t>(rank)]) {
            const Player& o = players_[static_cast<size_t>(other)];
            if (keeps_events_) {  // events of one moment keep their order
                wake(other);
                continue;
            }
            if (o.phase != Phase::Waiting || (o.blocked_by >= 0 && !ended[static_cast<size_t>(o.blocked_by)])) continue;
            awake_.push_back(other);
        }
    }

    void settle() {
        while (!awake_.empty()) {
            Player& p = players_[static_cast<size_t>(awake_.front())];
            awake_.pop_front();
            while (step(p)) {
            }
        }
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
        const std::vector<bool>& ended = ended_[static_cast<size_t>(p.rank)];
        if (p.blocked_by >= 0 && !ended[static_cast<size_t>(p.blocked_by)]) return false;
        for (int w : p.now().waits) {
            if (!ended[static_cast<size_t>(w)]) {
                p.blocked_by = w;
                return false;
            }
        }
        p.blocked_by = -1;
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
        Launches& m = launches(p);
        switch (p.piece().kind) {
            case mesh::Collective::Send: p.turn = ++m.sends; break;
            case mesh::Collective::Recv: p.turn = ++m.receives; break;
            case mesh::Collective::Wait: p.turn = ++m.waits; break;
            case mesh::Collective::AllGather:
            case mesh::Collective::ReduceScatter:
            case mesh::Collective::AllReduce:
            case mesh::Collective::AllToAll:
            case mesh::Collective::Broadcast:
            case mesh::Collective::Permute: p.turn = ++m.come[p.rank]; break;
        }
        wake_group(p);
    }

    static bool is_over(const Launches& m, const std::vector<int>& members, const Player& p) {
        switch (p.piece().kind) {
            case mesh::Collective::Send: return true;
            case mesh::Collective::Recv: return m.sends >= p.turn;
            case mesh::Collective::Wait: return m.received >= p.turn;
            case mesh::Collective::AllGather:
            case mesh::Collective::ReduceScatter:
            case mesh::Collective::AllReduce:
            case mesh::Collective::AllToAll:
            case mesh::Collective::Broadcast:
            case mesh::Collective::Permute: break;
        }
        return std::all_of(members.begin(), members.end(), [&](int member) { return m.come_of(member) >= p.turn; });
    }

    void end_work(const Player& p, size_t work, double end_s) {
        ended_[static_cast<size_t>(p.rank)][static_cast<size_t>(p.thread->work[work].id)] = true;
        if (!keeps_events_) times_of(p)[work].end_s = end_s;
    }
    std::vector<WorkTime>& times_of(const Player& p) { return times_[static_cast<size_t>(&p - players_.data())]; }

    bool joins(const Segment& s) const { return s.group >= 0 && groups_[static_cast<size_t>(s.group)].size() > 1; }
    bool joins(const Player& p) const { return joins(p.piece()); }
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
        if (joins(p) && !is_over(launches(p), groups_[static_cast<size_t>(p.piece().group)], p)) return false;
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
                const size_t first = of.size();
                for (int p : players_of_[static_cast<size_t>(rank)]) {
                    if (players_[static_cast<size_t>(p)].runs()) of.push_back(&players_[static_cast<size_t>(p)]);
                }
                if (of.size() == first + 1 && of[first]->run_end > 0) of.pop_back();  // it goes on as foreseen
                for (size_t i = first; i < of.size(); ++i) {
                    if (of[i]->run_end > 0) leave_run(*of[i]);
                }
            }
        }
        changed_.clear();
        for (Player* p : of) advance(*p);
        set_rates(of);
        for (size_t i = 0; i < of.size(); ++i) {
            const bool is_only_one =
                (i == 0 || of[i - 1]->rank != of[i]->rank) && (i + 1 == of.size() || of[i + 1]->rank != of[i]->rank);
            if (!(is_only_one && begin_run(*of[i]))) foresee(*of[i]);
        }
    }

    void add_tracks(const Rank& rank, size_t calls) {
        std::vector<bool> awaited(calls, false);
        for (const Thread& t : rank.threads) {
            for (const Work& w : t.work) {
                for (int waited : w.waits) awaited[static_cast<size_t>(waited)] = true;
            }
        }
        for (const Thread& t : rank.threads) {
            Track& track = tracks_.emplace_back();
            const size_t n = t.work.size();
            track.before_s.assign(n + 1, 0), track.run_end.assign(n, n), track.meets_none.assign(n, true);
            for (size_t w = 0; w < n; ++w) {
                double sum_s = 0;
                for (const Segment& s : *t.work[w].segments) {
                    sum_s += alone_s(s);
                    if (joins(s)) track.meets_none[w] = false;
                }
                track.before_s[w + 1] = track.before_s[w] + sum_s;
            }
            for (size_t w = n; w-- > 0;) {
                const bool goes_on = w + 1 < n && !awaited[static_cast<size_t>(t.work[w].id)] && track.meets_none[w + 1] &&
                                     may_follow(t.work[w + 1]);
                track.run_end[w] = goes_on ? track.run_end[w + 1] : w + 1;
            }
        }
    }
    static bool may_follow(const Work& w) { return w.waits.empty() && w.delay_s == 0 && !w.segments->empty(); }

    const Track& track_of(const Player& p) const { return tracks_[static_cast<size_t>(&p - players_.data())]; }

    // What the segments of the work at hand take by themselves that come behind segment `from`.
    static double behind_s(const Player& p, size_t from) {
        double out = 0;
        for (size_t s = from + 1; s < p.pieces().size(); ++s) out += alone_s(p.pieces()[s]);
        return out;
    }

    // The player, whose rank does nothing else, goes on to the end of its run unless something begins at the same time.
    bool begin_run(Player& p) {
        if (keeps_events_ || machine_.cores < kNever) return false;
        const Track& track = track_of(p);
        if (!track.meets_none[p.work] || p.piece().memory_s > 0) return false;
        const double first_end_s =
            now_s_ + std::max(p.core > kDone ? p.core / p.core_rate : 0, p.link > kDone ? p.link / p.link_rate : 0);
        const double origin_s = first_end_s + behind_s(p, p.segment) - track.before_s[p.work + 1];  // of works behind this one
        size_t end = p.work + 1;
        while (end < track.run_end[p.work] && p.thread->work[end].not_before_s <= origin_s + track.before_s[end]) ++end;
        if (end == p.work + 1 && p.segment + 1 == p.pieces().size()) return false;
        p.run_end = end;
        p.first_end_s = first_end_s;
        const double end_s = origin_s + track.before_s[end];
        ahead_.push({end_s, static_cast<int>(&p - players_.data()), ++p.version});
        return true;
    }

    // The player is moved to where it is by now.
    void leave_run(Player& p) {
        const size_t end = std::exchange(p.run_end, 0);
        if (now_s_ <= p.first_end_s) return;
        const Track& track = track_of(p);
        pass_segment(p, p.first_end_s);
        double at_s = p.start_s;
        // Works that have ended: all of them but the last of those that have begun.
        if (const double work_end_s = at_s + behind_s(p, p.segment - 1); p.work + 1 < end && work_end_s < now_s_) {
            const double origin_s = work_end_s - track.before_s[p.work + 1];
            const auto begun = std::upper_bound(track.before_s.begin() + static_cast<long>(p.work) + 1,
                                                track.before_s.begin() + static_cast<long>(end), now_s_ - origin_s);
            const auto now = static_cast<size_t>(begun - track.before_s.begin()) - 1;
            end_works(p, now, at_s, origin_s);
            at_s = p.start_s;
        }
        while (p.segment + 1 < p.pieces().size() && at_s + alone_s(p.piece()) <= now_s_) {
            at_s += alone_s(p.piece());
            pass_segment(p, at_s);
        }
        const double done_s = now_s_ - at_s;
        const auto left = [&](double of_s) { return of_s > 0 ? std::max(0.0, 1 - done_s / of_s) : 0.0; };
        p.core = left(p.piece().core_s), p.link = left(p.piece().link_s);
        p.as_of_s = now_s_;
    }

    // The run has come to its end: its last segment ends now.
    void end_run(Player& p) {
        const size_t end = std::exchange(p.run_end, 0);
        const Track& track = track_of(p);
        double at_s = p.first_end_s;
        if (p.work + 1 < end) {
            pass_segment(p, at_s);
            end_works(p, end - 1, at_s, at_s + behind_s(p, p.segment - 1) - track.before_s[p.work + 1]);
            at_s = p.start_s + alone_s(p.piece());
        }
        while (p.segment + 1 < p.pieces().size()) {
            pass_segment(p, at_s);
            at_s += alone_s(p.piece());
        }
        p.core = p.link = 0;
    }

    // The segment at hand has ended.
    void pass_segment(Player& p, double end_s) {
        times_of(p)[p.work].busy_s += end_s - p.ready_s;
        ++p.segment;
        p.start_s = p.ready_s = end_s;
    }

    // Works before `next` have ended; the first of them is at `at_s` behind some of its segments. A work begins at
    // origin_s + before_s.
    void end_works(Player& p, size_t next, double at_s, double origin_s) {
        const Track& track = track_of(p);
        for (size_t w = p.work; w < next; ++w) {
            const double begin_s = w == p.work ? at_s : origin_s + track.before_s[w], end_s = origin_s + track.before_s[w + 1];
            times_of(p)[w].busy_s += end_s - begin_s;
            end_work(p, w, end_s);
        }
        p.work = next, p.segment = 0;
        p.start_s = p.ready_s = origin_s + track.before_s[next];
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
            return o != &p && o->rank == p.rank && o->link > kDone && o->piece().kind != mesh::Collective::Permute;
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
            if (p.run_end > 0) {
                end_run(p);
                p.as_of_s = now_s_;
                changed_.push_back(p.rank);
                awake_.push_back(e.player);
                continue;
            }
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
    std::vector<std::vector<bool>> ended_;      // calls, by rank
    std::vector<Launches> launches_;            // [group * 2 + thread]
    std::deque<int> awake_;
    std::vector<int> changed_;             // ranks where a segment has begun or ended
    std::vector<Player*> sharing_, busy_;  // of set_rates
    std::priority_queue<Foreseen> ahead_;
    bool keeps_events_ = true;
    std::vector<Event> events_;
    std::vector<Track> tracks_;                 // by player, as
    std::vector<std::vector<WorkTime>> times_;  // these are; none where events are kept
    double now_s_ = 0;
};

}  // namespace

std::vector<Event> run(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine) {
    return Engine(ranks, groups, machine, Detail::Events).run();
}

WorkTimes times_of(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine) {
    return Engine(ranks, groups, machine, Detail::Times).times();
}

}  // namespace lockstep::sim
