#include "schedules/timeline.h"

#include <algorithm>
#include <cmath>

namespace lockstep::schedules {
namespace {

constexpr double kNever = -1;

class Player {
public:
    Player(const Table& table, Cost cost, Delay delay, bool forwards_alone)
        : table_(table),
          cost_(cost),
          delay_(delay),
          forwards_alone_(forwards_alone),
          forward_(table.stages * table.microbatches, kNever),
          backward_(forward_),
          clock_(table.rows.size(), 0),
          first_(table.rows.size(), kNever) {
        out_.start.resize(table.rows.size());
        out_.busy.resize(table.rows.size(), 0);
    }

    Timeline run() && {
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t rank = 0; rank < table_.rows.size(); ++rank) moved |= advance(rank);
        }
        for (size_t rank = 0; rank < table_.rows.size(); ++rank) {
            const auto position = static_cast<int64_t>(out_.start[rank].size());
            const bool waits = out_.start[rank].size() < table_.rows[rank].size();
            if (waits && (!out_.stuck || position < out_.stuck->position)) out_.stuck = {static_cast<int64_t>(rank), position};
            out_.bubble = std::max(out_.bubble, clock_[rank] - std::max(first_[rank], 0.0) - out_.busy[rank]);
        }
        return std::move(out_);
    }

private:
    // As many cells as can run by now.
    bool advance(size_t rank) {
        const Row& row = table_.rows[rank];
        std::vector<double>& start = out_.start[rank];
        const size_t before = start.size();
        while (start.size() < row.size()) {
            const Action& a = row[start.size()];
            const double ready = a.work == Work::Idle ? 0 : ready_at(a);
            if (ready == kNever) break;
            start.push_back(std::max(clock_[rank], ready));
            clock_[rank] = start.back() + cost_(a);
            if (a.work == Work::Idle) continue;
            if (first_[rank] == kNever) first_[rank] = start.back();
            out_.busy[rank] += cost_(a);
            if (a.work == Work::Forward) forward_[index(a.stage, a.microbatch)] = clock_[rank];
            if (is_backward(a.work)) backward_[index(a.stage, a.microbatch)] = clock_[rank];
        }
        return start.size() > before;
    }

    // When what the action needs has ended; kNever while it has not.
    double ready_at(const Action& a) const {
        if (a.work == Work::Forward) return a.stage == 0 ? 0 : arrived(forward_, a, a.stage - 1);
        if (forwards_alone_) return 0;
        if (a.work == Work::BackwardWeight) return backward_[index(a.stage, a.microbatch)];
        const double own = forward_[index(a.stage, a.microbatch)];
        if (a.stage == table_.stages - 1) return own;
        const double gradient = arrived(backward_, a, a.stage + 1);
        return own == kNever || gradient == kNever ? kNever : std::max(own, gradient);
    }

    double arrived(const std::vector<double>& made, const Action& a, int64_t from) const {
        const double end = made[index(from, a.microbatch)];
        return end == kNever ? kNever : end + delay_(from, a.stage);
    }

    size_t index(int64_t stage, int64_t microbatch) const { return stage * table_.microbatches + microbatch; }

    const Table& table_;
    Cost cost_;
    Delay delay_;
    bool forwards_alone_;
    std::vector<double> forward_, backward_;  // when each ended
    std::vector<double> clock_, first_;       // per rank
    Timeline out_;
};

Table spaced(Table table, const Timeline& timeline) {
    for (size_t rank = 0; rank < table.rows.size(); ++rank) {
        Row row;
        for (size_t i = 0; i < timeline.start[rank].size(); ++i) {
            row.resize(static_cast<size_t>(std::lround(timeline.start[rank][i])));
            row.push_back(table.rows[rank][i]);
        }
        table.rows[rank] = std::move(row);
    }
    return table;
}

constexpr auto kOne = [](const Action&) { return 1.0; };
constexpr auto kAtOnce = [](int64_t, int64_t) { return 0.0; };

}  // namespace

Timeline play(const Table& table, Cost cost) { return play(table, cost, kAtOnce); }

Timeline play(const Table& table, Cost cost, Delay delay) { return Player(table, cost, delay, false).run(); }

Table with_waits(const Table& table) {
    Table dense = table;
    for (Row& row : dense.rows) std::erase(row, Action{});
    const Timeline timeline = play(dense, kOne);
    return spaced(std::move(dense), timeline);
}

Table wait_for_forwards(const Table& table) { return spaced(table, Player(table, kOne, kAtOnce, true).run()); }

InFlight in_flight(const Table& table) {
    InFlight out{std::vector<int64_t>(table.stages, 0), std::vector<int64_t>(table.rows.size(), 0)};
    for (size_t rank = 0; rank < table.rows.size(); ++rank) {
        std::vector<int64_t> held(table.stages, 0);
        int64_t all = 0;
        for (const Action& a : table.rows[rank]) {
            const int64_t change = a.work == Work::Forward ? 1 : is_release(a.work) ? -1 : 0;
            held[a.stage] += change;
            all += change;
            out.of_stage[a.stage] = std::max(out.of_stage[a.stage], held[a.stage]);
            out.of_rank[rank] = std::max(out.of_rank[rank], all);
        }
    }
    return out;
}

}  // namespace lockstep::schedules
