#include "sim/devices.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "sim/clock.h"
#include "sim/tracks.h"

namespace lockstep::sim {
namespace {

enum class State { Waiting, Gathering, Running, Ended };

// What other threads look at, of a rank's next to each other.
struct Face {
    double next_s = kNever;  // when something of it ends, at these rates
    State state = State::Waiting;
    int group = -1;     // while it gathers: whom it waits for, if others
    Wait blocked_by{};  // while it waits: what it was found to wait for; no thread: nothing
};

// Where a thread is.
struct Runner {
    int thread, rank, index, work_count;
    Range recorded;
    int work = 0, segment = 0;
    int wait = 0;                     // in Track::waits: the next one
    const Segment* pieces = nullptr;  // of the work at hand
    int piece_count = 0;
    int turn = 0;               // of its group's launches this one is the k-th
    int run_end = 0;            // of a run: one past its last work; 0: it is in none
    double first_end_s = 0;     // and when its first segment, which is the one at hand, ends
    double ready_s = 0;         // of the segment
    double held_until_s = -1;   // by its call's delay and host; negative: not known yet
    double core = 0, link = 0;  // shares of the segment's core and link time still to do,
    double core_rate = 0, link_rate = 0;
    double as_of_s = 0;  // and when these shares were right

    const Segment& piece() const { return pieces[segment]; }
    bool is_last_piece() const { return segment + 1 == piece_count; }
    bool is_done() const { return core <= kDone && link <= kDone; }
};

// A time for each of n, and which is the soonest: a tree of the sooner of two.
class Soonest {
public:
    void reset(size_t n) {
        leaves_ = std::bit_ceil(std::max<size_t>(n, 1));
        times_s_.assign(2 * leaves_, kNever);
    }
    double operator[](size_t i) const { return times_s_[leaves_ + i]; }
    void set(size_t i, double time_s) {
        size_t node = leaves_ + i;
        times_s_[node] = time_s;
        while ((node /= 2) > 0) {
            const double sooner_s = std::min(times_s_[2 * node], times_s_[2 * node + 1]);
            if (times_s_[node] == sooner_s) return;
            times_s_[node] = sooner_s;
        }
    }
    double soonest_s() const { return times_s_[1]; }
    int soonest() const {
        size_t node = 1;
        while (node < leaves_) node = 2 * node + (times_s_[2 * node] == times_s_[node] ? 0 : 1);
        return static_cast<int>(node - leaves_);
    }

private:
    size_t leaves_ = 1;
    std::vector<double> times_s_;  // node i has the nodes 2 i and 2 i + 1 below it
};

}  // namespace

class Devices::Impl {
public:
    Impl(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Recorded& recorded)
        : groups_(groups), tracks_(groups) {
        first_.push_back(0);
        for (size_t r = 0; r < ranks.size(); ++r) {
            std::vector<std::vector<WorkTime>>& times = times_.emplace_back();
            for (size_t t = 0; t < ranks[r].threads.size(); ++t) {
                threads_.push_back({.thread = static_cast<int>(threads_.size()),
                                    .rank = static_cast<int>(r),
                                    .index = static_cast<int>(t),
                                    .work_count = static_cast<int>(ranks[r].threads[t].work.size()),
                                    .recorded = recorded[r][t]});
                times.emplace_back(static_cast<size_t>(recorded[r][t].end - recorded[r][t].begin));
            }
            first_.push_back(static_cast<int>(threads_.size()));
            tracks_.add(ranks[r]);
        }
    }

    void read_starts() { tracks_.read_starts(); }
    const WorkTimes& times() const { return times_; }

    double play(double beside_link) {
        begin(beside_link);
        for (size_t t = 0; t < runners_.size(); ++t) awake_.push_back(static_cast<int>(t));
        while (true) {
            settle();
            for (const int rank : changed_) set_rates(rank);
            changed_.clear();
            if (next_s_.soonest_s() == kNever) break;
            now_s_ = next_s_.soonest_s();
            end_due(next_s_.soonest());
        }
        for (const Face& f : faces_)
            ensure(f.state == State::Ended, "simulator: the schedule cannot go on: a thread waits for what never comes");
        return now_s_;
    }

private:
    // All is as before the first call, with the segments' times as they are now.
    void begin(double beside_link) {
        beside_link_ = beside_link;
        tracks_.read_times();
        for (std::vector<std::vector<WorkTime>>& of_rank : times_) {
            for (std::vector<WorkTime>& t : of_rank) std::fill(t.begin(), t.end(), WorkTime{});
        }
        runners_ = threads_;
        faces_.assign(threads_.size(), {});
        launches_.assign(groups_.size() * 2, {});
        next_s_.reset(times_.size());
        now_s_ = 0;
    }

    Face& face(const Runner& r) { return faces_[static_cast<size_t>(r.thread)]; }
    // Works of a thread end in their order.
    bool has_ended(const Wait& w) const { return w.thread >= 0 && runners_[static_cast<size_t>(w.thread)].work > w.work; }
    // Null: nobody asks for it.
    WorkTime* time_of(const Runner& r, int work) {
        if (work < r.recorded.begin || work >= r.recorded.end) return nullptr;
        return &times_[static_cast<size_t>(r.rank)][static_cast<size_t>(r.index)][static_cast<size_t>(work - r.recorded.begin)];
    }
    void add_busy(const Runner& r, double time_s) {
        if (WorkTime* time = time_of(r, r.work)) time->busy_s += time_s;
    }
    const Track& track_of(const Runner& r) const { return tracks_[static_cast<size_t>(r.thread)]; }
    Launches& launches(const Runner& r) { return launches_[static_cast<size_t>(r.piece().group) * 2 + (r.index == 0 ? 0 : 1)]; }

    void change(const Runner& r) {
        if (std::find(changed_.begin(), changed_.end(), r.rank) == changed_.end()) changed_.push_back(r.rank);
    }
    void settle() {
        for (size_t i = 0; i < awake_.size(); ++i) {
            while (step(runners_[static_cast<size_t>(awake_[i])])) {
            }
        }
        awake_.clear();
    }
    // True if it went on.
    bool step(Runner& r) {
        switch (face(r).state) {
            case State::Waiting: return try_start(r);
            case State::Gathering: return try_gather(r);
            case State::Running:
                if (!r.is_done()) return false;
                finish(r);
                return true;
            case State::Ended: break;
        }
        return false;
    }

    bool try_start(Runner& r) {
        if (r.work == r.work_count) {
            face(r).state = State::Ended;
            return false;
        }
        const Track& track = track_of(r);
        const Turn& turn = track.turns[static_cast<size_t>(r.work)];
        for (; r.wait < static_cast<int>(turn.waits_end); ++r.wait) {
            const Wait& wait = track.waits[static_cast<size_t>(r.wait)];
            if (has_ended(wait)) continue;
            face(r).blocked_by = wait;
            return false;
        }
        face(r).blocked_by = {};
        if (is_held(r, track, turn)) return false;
        set_pieces(r, turn);
        enter(r);
        return true;
    }
    void set_pieces(Runner& r, const Turn& turn) const {
        const Pieces& pieces = tracks_.pieces(turn);
        r.pieces = pieces.first, r.piece_count = pieces.count;
        r.segment = 0;
    }

    bool is_held(Runner& r, const Track& track, const Turn& turn) {
        if (r.held_until_s < 0) {
            const double delay_s = turn.is_delayed ? track.works[r.work].delay_s : 0;
            r.held_until_s = std::max(now_s_, turn.not_before_s) + delay_s;
            if (r.held_until_s > now_s_) {
                face(r).next_s = r.held_until_s;
                const auto rank = static_cast<size_t>(r.rank);
                next_s_.set(rank, std::min(next_s_[rank], r.held_until_s));
            }
        }
        if (r.held_until_s > now_s_) return true;
        r.held_until_s = -1;
        return false;
    }

    // The segment at hand begins, or its call is over.
    void enter(Runner& r) {
        if (r.segment == r.piece_count) {
            if (WorkTime* time = time_of(r, r.work)) time->end_s = now_s_;
            ++r.work;
            face(r).state = State::Waiting;
            wake_waiting(r);
            return;
        }
        face(r).state = State::Gathering;
        face(r).group = tracks_.joins(r.piece()) ? r.piece().group : -1;
        if (face(r).group < 0) return;
        r.turn = launches(r).add(r.piece().kind, r.rank);
        wake_group(r);
    }

    // A work of the rank has ended: those that wait for it.
    void wake_waiting(const Runner& r) {
        for (int t = first_[static_cast<size_t>(r.rank)]; t < first_[static_cast<size_t>(r.rank) + 1]; ++t) {
            const Face& other = faces_[static_cast<size_t>(t)];
            if (other.state == State::Waiting && other.blocked_by.thread == r.thread && other.blocked_by.work < r.work)
                awake_.push_back(t);
        }
    }
    void wake_group(const Runner& r) {
        for (const int member : groups_[static_cast<size_t>(r.piece().group)]) {
            for (int t = first_[static_cast<size_t>(member)]; t < first_[static_cast<size_t>(member) + 1]; ++t) {
                const Face& other = faces_[static_cast<size_t>(t)];
                if (other.state == State::Gathering && other.group == r.piece().group) awake_.push_back(t);
            }
        }
    }

    bool try_gather(Runner& r) {
        const Segment& piece = r.piece();
        if (tracks_.joins(piece) && !launches(r).has_all(piece.kind, r.turn, groups_[static_cast<size_t>(piece.group)]))
            return false;
        face(r).state = State::Running;
        r.ready_s = r.as_of_s = now_s_;
        r.core = piece.core_s > 0 ? 1 : 0;
        r.link = piece.link_s > 0 ? 1 : 0;
        change(r);
        return r.is_done();
    }

    void finish(Runner& r) {
        add_busy(r, now_s_ - r.ready_s);
        change(r);
        if (tracks_.joins(r.piece()) && r.piece().kind == mesh::Collective::Recv) {
            ++launches(r).received;
            wake_group(r);
        }
        ++r.segment;
        enter(r);
    }

    // What ends on the rank now has ended: rounding leaves nothing of it.
    void end_due(int rank) {
        for (int t = first_[static_cast<size_t>(rank)]; t < first_[static_cast<size_t>(rank) + 1]; ++t) {
            double& next_s = faces_[static_cast<size_t>(t)].next_s;
            if (next_s > now_s_) continue;
            next_s = kNever;
            Runner& r = runners_[static_cast<size_t>(t)];
            change(r);
            awake_.push_back(t);
            if (r.run_end > 0) {
                end_run(r);
                r.as_of_s = now_s_;
                continue;
            }
            const bool core_ends = r.core > kDone && r.as_of_s + r.core / r.core_rate <= now_s_,
                       link_ends = r.link > kDone && r.as_of_s + r.link / r.link_rate <= now_s_;
            advance(r);
            if (core_ends) r.core = 0;
            if (link_ends) r.link = 0;
        }
    }

    void advance(Runner& r) {
        const double passed_s = now_s_ - r.as_of_s;
        r.as_of_s = now_s_;
        if (passed_s <= 0) return;
        if (r.core > kDone) r.core = std::max(0.0, r.core - passed_s * r.core_rate);
        if (r.link > kDone) r.link = std::max(0.0, r.link - passed_s * r.link_rate);
    }

    // A segment of the rank has begun or ended: the rates of all of its threads, and when the next of them ends.
    void set_rates(int rank) {
        const auto first = static_cast<size_t>(first_[static_cast<size_t>(rank)]),
                   last = static_cast<size_t>(first_[static_cast<size_t>(rank) + 1]);
        running_.clear();
        for (size_t t = first; t < last; ++t) {
            if (faces_[t].state == State::Running) running_.push_back(&runners_[t]);
        }
        const bool goes_on = running_.size() == 1 && running_[0]->run_end > 0;  // as foreseen
        if (!goes_on) {
            for (Runner* r : running_) {
                if (r->run_end > 0) leave_run(*r);
                advance(*r);
            }
            for (Runner* r : running_) set_rate(*r);
            if (!(running_.size() == 1 && begin_run(*running_[0]))) {
                for (Runner* r : running_) foresee(*r);
            }
        }
        double next_s = kNever;
        for (size_t t = first; t < last; ++t) next_s = std::min(next_s, faces_[t].next_s);
        next_s_.set(static_cast<size_t>(rank), next_s);
    }

    void set_rate(Runner& r) const {
        const Segment& piece = r.piece();
        int on_link = 0;
        bool others_on_links = false;
        for (const Runner* o : running_) {
            if (o->link <= kDone) continue;
            const Segment& of_other = o->piece();
            if (of_other.link == piece.link) ++on_link;
            if (o != &r && of_other.takes_processors) others_on_links = true;
        }
        if (r.core > kDone) {
            r.core_rate = piece.core_s > 0 ? 1 / piece.core_s : kNever;
            if (beside_link_ < 1 && others_on_links) r.core_rate *= beside_link_;
        }
        if (r.link > kDone) r.link_rate = 1 / (piece.link_s * (piece.link >= 0 ? on_link : 1));
    }

    // When, at these rates, the first of a segment's two kinds of work is done.
    void foresee(const Runner& r) {
        double after_s = kNever;
        if (r.core > kDone) after_s = std::min(after_s, r.core / r.core_rate);
        if (r.link > kDone) after_s = std::min(after_s, r.link / r.link_rate);
        if (r.is_done()) after_s = 0;  // by rounding, at somebody else's end
        face(r).next_s = now_s_ + after_s;
    }

    // What the segments of the work at hand take by themselves that come behind segment `from`.
    static double behind_s(const Runner& r, int from) {
        double out = 0;
        for (int s = from + 1; s < r.piece_count; ++s) out += alone_s(r.pieces[s]);
        return out;
    }

    // The runner, whose rank does nothing else, goes on to the end of its run unless something begins at the same time.
    bool begin_run(Runner& r) {
        const Track& track = track_of(r);
        const auto work = static_cast<size_t>(r.work);
        if (!tracks_.pieces(track.turns[work]).meets_none) return false;
        const double first_end_s =
            now_s_ + std::max(r.core > kDone ? r.core / r.core_rate : 0, r.link > kDone ? r.link / r.link_rate : 0);
        const double origin_s = first_end_s + behind_s(r, r.segment) - track.before_s[work + 1];  // of works behind this one
        auto end = work + 1;
        const auto last = static_cast<size_t>(track.run_end[work]);
        while (end < last && track.turns[end].not_before_s <= origin_s + track.before_s[end]) ++end;
        if (end == work + 1 && r.is_last_piece()) return false;
        r.run_end = static_cast<int>(end);
        r.first_end_s = first_end_s;
        face(r).next_s = origin_s + track.before_s[end];
        return true;
    }

    // The runner is moved to where it is by now.
    void leave_run(Runner& r) {
        const auto end = static_cast<size_t>(std::exchange(r.run_end, 0));
        if (now_s_ <= r.first_end_s) return;
        const Track& track = track_of(r);
        pass_segment(r, r.first_end_s);
        double at_s = r.ready_s;
        // Works that have ended: all of them but the last of those that have begun.
        const auto next = static_cast<size_t>(r.work) + 1;
        if (const double work_end_s = at_s + behind_s(r, r.segment - 1); next < end && work_end_s < now_s_) {
            const double origin_s = work_end_s - track.before_s[next];
            const auto begun = std::upper_bound(track.before_s.begin() + static_cast<long>(next),
                                                track.before_s.begin() + static_cast<long>(end), now_s_ - origin_s);
            end_works(r, static_cast<int>(begun - track.before_s.begin()) - 1, at_s, origin_s);
            at_s = r.ready_s;
        }
        while (!r.is_last_piece() && at_s + alone_s(r.piece()) <= now_s_) {
            at_s += alone_s(r.piece());
            pass_segment(r, at_s);
        }
        const double done_s = now_s_ - at_s;
        const auto left = [&](double of_s) { return of_s > 0 ? std::max(0.0, 1 - done_s / of_s) : 0.0; };
        r.core = left(r.piece().core_s), r.link = left(r.piece().link_s);
        r.as_of_s = now_s_;
    }

    // The run has come to its end: its last segment ends now.
    void end_run(Runner& r) {
        const int end = std::exchange(r.run_end, 0);
        const Track& track = track_of(r);
        double at_s = r.first_end_s;
        if (r.work + 1 < end) {
            pass_segment(r, at_s);
            end_works(r, end - 1, at_s, at_s + behind_s(r, r.segment - 1) - track.before_s[static_cast<size_t>(r.work) + 1]);
            at_s = r.ready_s + alone_s(r.piece());
        }
        while (!r.is_last_piece()) {
            pass_segment(r, at_s);
            at_s += alone_s(r.piece());
        }
        r.core = r.link = 0;
    }

    // The segment at hand has ended.
    void pass_segment(Runner& r, double end_s) {
        add_busy(r, end_s - r.ready_s);
        ++r.segment;
        r.ready_s = end_s;
    }

    // Works before `next` have ended; the first of them is at `at_s` behind some of its segments. A work begins at
    // origin_s + before_s.
    void end_works(Runner& r, int next, double at_s, double origin_s) {
        const Track& track = track_of(r);
        for (int w = r.work; w < next; ++w) {
            const double begin_s = w == r.work ? at_s : origin_s + track.before_s[static_cast<size_t>(w)],
                         end_s = origin_s + track.before_s[static_cast<size_t>(w) + 1];
            if (WorkTime* time = time_of(r, w)) time->busy_s += end_s - begin_s, time->end_s = end_s;
        }
        r.work = next;
        set_pieces(r, track.turns[static_cast<size_t>(next)]);
        r.ready_s = origin_s + track.before_s[static_cast<size_t>(next)];
    }

    const std::vector<std::vector<int>>& groups_;
    std::vector<Runner> threads_;  // as they begin, rank by rank
    std::vector<int> first_;       // by rank, and of all: its first thread
    Tracks tracks_;                // by thread

    // Of one play:
    double beside_link_ = 1, now_s_ = 0;
    std::vector<Face> faces_;         // by thread, as
    std::vector<Runner> runners_;     // by thread
    std::vector<Launches> launches_;  // [group * 2 + thread]
    Soonest next_s_;                  // by rank: when something of it ends, or may begin
    std::vector<int> awake_;          // threads whose state may change now
    std::vector<int> changed_;        // ranks where a segment has begun or ended
    std::vector<Runner*> running_;    // on the rank at hand
    WorkTimes times_;
};

Recorded all_of(const std::vector<Rank>& ranks) {
    Recorded out;
    for (const Rank& rank : ranks) {
        std::vector<Range>& of_rank = out.emplace_back();
        for (const Thread& t : rank.threads) of_rank.push_back({0, static_cast<int>(t.work.size())});
    }
    return out;
}

Devices::Devices(const std::vector<Rank>& ranks, const std::vector<std::vector<int>>& groups, const Recorded& recorded)
    : impl_(std::make_unique<Impl>(ranks, groups, recorded)) {}
Devices::Devices(Devices&&) noexcept = default;
Devices::~Devices() = default;

void Devices::read_starts() { impl_->read_starts(); }
double Devices::play(double beside_link) { return impl_->play(beside_link); }
const WorkTimes& Devices::times() const { return impl_->times(); }

}  // namespace lockstep::sim
