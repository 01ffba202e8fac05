#include "schedules/check_schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::schedules {
namespace {

constexpr int64_t kNone = -1;

class Checker {
public:
    explicit Checker(const Table& table)
        : table_(table),
          rank_of_(table.stages, kNone),
          forward_(table.stages * table.microbatches, kNone),
          backward_(forward_),
          weight_(forward_) {
        for (const Row& row : table.rows) longest_ = std::max(longest_, row.size());
    }

    std::optional<Violation> run() {
        if (auto wrong = first([&](Cell c, const Action& a) { return place(c, a); })) return wrong;
        if (auto wrong = first([&](Cell c, const Action& a) { return judge(c, a); })) return wrong;
        if (auto wrong = absent()) return wrong;
        return circle();
    }

private:
    // The message of the first cell, column by column, that `judge` has one for.
    template <typename Judge>
    std::optional<Violation> first(Judge judge) const {
        for (size_t position = 0; position < longest_; ++position) {
            for (size_t rank = 0; rank < table_.rows.size(); ++rank) {
                if (position >= table_.rows[rank].size() || table_.rows[rank][position].work == Work::Idle) continue;
                const Action& a = table_.rows[rank][position];
                const Cell cell{static_cast<int64_t>(rank), static_cast<int64_t>(position)};
                if (const std::string why = judge(cell, a); !why.empty()) return Violation{cell, text_of(a) + " " + why};
            }
        }
        return std::nullopt;
    }

    // Notes where each action is; refuses what has no place.
    std::string place(Cell cell, const Action& a) {
        if (a.stage < 0 || a.stage >= table_.stages)
            return fmt::format("names stage {}, and stages are 0 to {}", a.stage, table_.stages - 1);
        if (a.microbatch < 0 || a.microbatch >= table_.microbatches)
            return fmt::format("names microbatch {}, and microbatches are 0 to {}", a.microbatch, table_.microbatches - 1);
        int64_t& rank = rank_of_[a.stage];
        if (rank == kNone) rank = cell.rank;
        if (rank != cell.rank) return fmt::format("runs on rank {}, but stage {} is on rank {}", cell.rank, a.stage, rank);
        int64_t& position = line(a.work)[index(a.stage, a.microbatch)];
        if (position != kNone) return fmt::format("is a second {}", name_of(a.work));
        position = cell.position;
        return {};
    }

    // Order within the rank, and whether what is received and what follows exist at all.
    std::string judge(Cell cell, const Action& a) const {
        const auto own = [&](Work work) { return text_of({work, a.stage, a.microbatch}); };
        const size_t at = index(a.stage, a.microbatch);
        if (a.work == Work::Forward) {
            if (a.stage > 0 && forward_[at - table_.microbatches] == kNone)
                return fmt::format("receives from {}, which no rank runs", text_of({Work::Forward, a.stage - 1, a.microbatch}));
            return backward_[at] == kNone ? "has no backward" : "";
        }
        if (a.work == Work::BackwardWeight) {
            const bool split = backward_[at] != kNone && work_at(a.stage, backward_[at]) == Work::BackwardInput;
            if (!split) return fmt::format("has no {} before it", own(Work::BackwardInput));
            return backward_[at] < cell.position ? "" : fmt::format("runs before {}", own(Work::BackwardInput));
        }
        if (forward_[at] == kNone) return fmt::format("has no forward {}", own(Work::Forward));
        if (forward_[at] > cell.position) return fmt::format("runs before its forward {}", own(Work::Forward));
        if (a.stage + 1 < table_.stages && backward_[at + table_.microbatches] == kNone)
            return fmt::format("receives from the backward of microbatch {} on stage {}, which no rank runs", a.microbatch,
                               a.stage + 1);
        const bool lacks_weights = a.work == Work::BackwardInput && weight_[at] == kNone;
        return lacks_weights ? fmt::format("has no {} after it", own(Work::BackwardWeight)) : "";
    }

    // What no cell speaks of: a microbatch, or all there is.
    std::optional<Violation> absent() const {
        const auto it = std::find(forward_.begin(), forward_.end(), kNone);
        if (it == forward_.end()) return std::nullopt;
        const int64_t at = it - forward_.begin();
        const Action missing{Work::Forward, at / table_.microbatches, at % table_.microbatches};
        const int64_t rank = std::max<int64_t>(0, rank_of_[missing.stage]);
        const int64_t end = rank < static_cast<int64_t>(table_.rows.size()) ? static_cast<int64_t>(table_.rows[rank].size()) : 0;
        return Violation{{rank, end}, text_of(missing) + " is missing"};
    }

    std::optional<Violation> circle() const {
        const Timeline timeline = play(table_, [](const Action&) { return 1.0; });
        if (!timeline.stuck) return std::nullopt;
        const Cell cell = *timeline.stuck;
        const Action& a = table_.rows[cell.rank][cell.position];
        const int64_t peer = a.work == Work::Forward ? a.stage - 1 : a.stage + 1;
        const int64_t rank = rank_of_[peer];
        const Action& ahead = table_.rows[rank][timeline.start[rank].size()];
        return Violation{cell,
                         fmt::format("{} waits for the {} of microbatch {} on stage {}, which rank {} runs after {}, which in "
                                     "turn waits for this cell",
                                     text_of(a), name_of(a.work), a.microbatch, peer, rank, text_of(ahead))};
    }

    static std::string_view name_of(Work work) {
        return work == Work::Forward ? "forward" : is_backward(work) ? "backward" : "backward of weights";
    }
    std::vector<int64_t>& line(Work work) { return work == Work::Forward ? forward_ : is_backward(work) ? backward_ : weight_; }
    Work work_at(int64_t stage, int64_t position) const { return table_.rows[rank_of_[stage]][position].work; }
    size_t index(int64_t stage, int64_t microbatch) const { return stage * table_.microbatches + microbatch; }

    const Table& table_;
    size_t longest_ = 0;
    std::vector<int64_t> rank_of_;                      // per stage
    std::vector<int64_t> forward_, backward_, weight_;  // per (stage, microbatch): position in its rank's row
};

}  // namespace

std::optional<Violation> check_schedule(const Table& table) { return Checker(table).run(); }

}  // namespace lockstep::schedules
