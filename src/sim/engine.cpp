#include "sim/engine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"

namespace lockstep::sim {
namespace {

constexpr double kDone = 1e-12;  // of a share of work

enum class Phase { Waiting, Gathering, Running, Ended };

// Where a thread stands.
struct Player {
    const Thread* thread;
    int rank, index;
    size_t work = 0, segment = 0;
    Phase phase = Phase::Waiting;
    double start_s = 0, ready_s = 0;  // of the segment, or of the wait
    double core = 0, link = 0;        // shares of the segment's core and memory work, and of its link time, still to do
    double core_rate = 0, link_rate = 0;

    const Work& now() const { return thread->work[work]; }
    const Segment& piece() const { return now().segments[segment]; }
};

class Engine {
public:
    Engine(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine)
        : groups_(groups), machine_(machine), ended_(ranks.size()), arrived_(groups.size() * 2) {
        for (size_t r = 0; r < ranks.size(); ++r) {
            for (size_t t = 0; t < ranks[r].threads.size(); ++t)
                players_.push_back({&ranks[r].threads[t], static_cast<int>(r), static_cast<int>(t)});
        }
    }

    std::vector<Event> run() {
        while (true) {
            while (settle()) {
            }
            set_rates();
            const double step_s = next_end();
            if (step_s == std::numeric_limits<double>::infinity()) break;
            advance(step_s);
        }
        for (const Player& p : players_)
            ensure(p.phase == Phase::Ended, "simulator: the schedule cannot go on: a thread waits for what never comes");
        return std::move(events_);
    }

private:
    // Starts and ends everything that can start or end now. True if something changed.
    bool settle() {
        bool changed = false;
        for (Player& p : players_) {
            if (p.phase == Phase::Waiting) changed |= try_start(p);
            if (p.phase == Phase::Gathering) changed |= try_gather(p);
            if (p.phase == Phase::Running && p.core <= kDone && p.link <= kDone) finish(p), changed = true;
        }
        return changed;
    }

    bool try_start(Player& p) {
        if (p.work == p.thread->work.size()) {
            p.phase = Phase::Ended;
            return true;
        }
        const std::set<int>& ended = ended_[static_cast<size_t>(p.rank)];
        for (int w : p.now().waits) {
            if (!ended.contains(w)) return false;
        }
        if (!p.now().waits.empty())
            events_.push_back({p.rank, p.index, static_cast<int>(p.work), -1, p.start_s, p.start_s, now_s_});
        p.segment = 0;
        enter(p);
        return true;
    }

    // The segment at hand begins, or its call is over.
    void enter(Player& p) {
        p.start_s = now_s_;
        if (p.segment == p.now().segments.size()) {
            ended_[static_cast<size_t>(p.rank)].insert(p.now().id);
            ++p.work;
            p.phase = Phase::Waiting;
            return;
        }
        p.phase = Phase::Gathering;
        if (p.piece().group >= 0) ++arrivals(p);
    }

    // Collectives of one group on one thread meet in order: a member that has come k times waits for the others' k-th.
    int& arrivals(const Player& p) {
        return arrived_[static_cast<size_t>(p.piece().group) * 2 + static_cast<size_t>(p.index)][p.rank];
    }

    bool try_gather(Player& p) {
        if (p.piece().group >= 0) {
            const int mine = arrivals(p);
            auto& all = arrived_[static_cast<size_t>(p.piece().group) * 2 + static_cast<size_t>(p.index)];
            for (int member : groups_[static_cast<size_t>(p.piece().group)]) {
                if (all[member] < mine) return false;
            }
        }
        p.phase = Phase::Running;
        p.ready_s = now_s_;
        p.core = p.piece().core_s > 0 || p.piece().memory_s > 0 ? 1 : 0;
        p.link = p.piece().link_s > 0 ? 1 : 0;
        return true;
    }

    void finish(Player& p) {
        events_.push_back({p.rank, p.index, static_cast<int>(p.work), static_cast<int>(p.segment), p.start_s, p.ready_s, now_s_});
        ++p.segment;
        enter(p);
    }

    // Cores in equal parts to every thread that computes; then memory: nobody gets more than it can use, the rest equal parts.
    void set_rates() {
        double wanted = 0;
        std::vector<Player*> busy;
        std::map<std::pair<int, int>, int> on_link;
        for (Player& p : players_) {
            if (p.phase != Phase::Running) continue;
            if (p.core > kDone) wanted += p.thread->cores * machine_.copies, busy.push_back(&p);
            if (p.link > kDone && p.piece().link >= 0) ++on_link[{p.rank, p.piece().link}];
        }
        const double share = wanted > machine_.cores ? machine_.cores / wanted : 1;
        for (Player* p : busy) {
            const Segment& s = p->piece();
            p->core_rate = s.core_s > 0 ? share / s.core_s : std::numeric_limits<double>::infinity();
        }
        share_memory(busy);
        for (Player& p : players_) {
            if (p.phase != Phase::Running || p.link <= kDone) continue;
            const int sharing = p.piece().link >= 0 ? on_link[{p.rank, p.piece().link}] : 1;
            p.link_rate = 1 / (p.piece().link_s * sharing);
        }
    }

    void share_memory(std::vector<Player*> busy) {
        double left = 1, users = machine_.copies * static_cast<double>(busy.size());
        // Those who want least first: each gets an equal part of what is left, or less if it wants less.
        const auto wants = [](const Player* p) { return p->piece().memory_s > 0 ? p->core_rate * p->piece().memory_s : 0; };
        std::stable_sort(busy.begin(), busy.end(), [&](const Player* a, const Player* b) { return wants(a) < wants(b); });
        for (Player* p : busy) {
            const double got = std::min(wants(p), left / users);
            if (got < wants(p)) p->core_rate = got / p->piece().memory_s;
            left -= got * machine_.copies;
            users -= machine_.copies;
        }
    }

    double next_end() const {
        double step_s = std::numeric_limits<double>::infinity();
        for (const Player& p : players_) {
            if (p.phase != Phase::Running) continue;
            if (p.core > kDone) step_s = std::min(step_s, p.core / p.core_rate);
            if (p.link > kDone) step_s = std::min(step_s, p.link / p.link_rate);
        }
        return step_s;
    }

    void advance(double step_s) {
        now_s_ += step_s;
        for (Player& p : players_) {
            if (p.phase != Phase::Running) continue;
            if (p.core > kDone) p.core = std::max(0.0, p.core - step_s * p.core_rate);
            if (p.link > kDone) p.link = std::max(0.0, p.link - step_s * p.link_rate);
        }
    }

    const std::vector<std::vector<int>>& groups_;
    const Machine machine_;
    std::vector<Player> players_;
    std::vector<std::set<int>> ended_;         // ids, by rank
    std::vector<std::map<int, int>> arrived_;  // [group * 2 + thread][rank]: collectives reached
    std::vector<Event> events_;
    double now_s_ = 0;
};

}  // namespace

std::vector<Event> run(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Machine& machine) {
    return Engine(ranks, groups, machine).run();
}

}  // namespace lockstep::sim
