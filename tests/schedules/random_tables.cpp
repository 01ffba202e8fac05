#include "tests/schedules/random_tables.h"

#include <algorithm>

namespace lockstep::testing {

using schedules::Action;
using schedules::Row;
using schedules::Table;
using schedules::Work;

namespace {

// How far an action is on the way of its microbatch, from the first forward to the last backward; W stands beside that way.
int64_t progress(const Table& t, const Action& a) { return a.work == Work::Forward ? a.stage : 2 * t.stages - 1 - a.stage; }
}  // namespace

bool needs(const Table& t, const Action& later, const Action& earlier) {
    if (later.microbatch != earlier.microbatch || earlier.work == Work::BackwardWeight) return false;
    const int64_t distance = progress(t, later) - progress(t, earlier);
    return later.work == Work::BackwardWeight ? distance >= 0 : distance > 0;
}

// Appends, again and again, any action that can run by now, in rows that need not know of each other.
Table random_legal(Random& random) {
    const int64_t ranks = 1 + random.below(4), stages = ranks + random.below(4), microbatches = 1 + random.below(5);
    Table table{stages, microbatches, std::vector<Row>(ranks)};
    std::vector<int64_t> rank_of(stages);
    for (int64_t s = 0; s < stages; ++s) rank_of[s] = s < ranks ? s : random.below(ranks);
    std::vector<Action> left, done;
    for (int64_t s = 0; s < stages; ++s) {
        for (int64_t m = 0; m < microbatches; ++m) {
            left.push_back({Work::Forward, s, m});
            const bool split = random.below(2) == 0;
            left.push_back({split ? Work::BackwardInput : Work::Backward, s, m});
            if (split) left.push_back({Work::BackwardWeight, s, m});
        }
    }
    while (!left.empty()) {
        const int64_t k = random.below(static_cast<int64_t>(left.size()));
        const Action a = left[k];
        if (std::any_of(left.begin(), left.end(), [&](const Action& b) { return needs(table, a, b); })) continue;
        Row& row = table.rows[rank_of[a.stage]];
        if (random.below(5) == 0) row.push_back({});
        row.push_back(a);
        left.erase(left.begin() + k);
    }
    return table;
}

namespace {

// A random cell that is not idle.
std::pair<Row*, int64_t> pick(Table& t, Random& random) {
    for (;;) {
        Row& row = t.rows[random.below(static_cast<int64_t>(t.rows.size()))];
        if (row.empty()) continue;
        const int64_t i = random.below(static_cast<int64_t>(row.size()));
        if (row[i].work != Work::Idle) return {&row, i};
    }
}

int64_t other(int64_t value, int64_t below, Random& random) {  // the number past the end among them
    const int64_t v = random.below(below);
    return v == value ? below : v;
}

}  // namespace

bool mutate(Table& t, int64_t kind, Random& random) {
    auto [row, i] = pick(t, random);
    const Action a = (*row)[i];
    switch (kind) {
        case 0: row->erase(row->begin() + i); return true;
        case 1: row->insert(row->begin() + random.below(static_cast<int64_t>(row->size()) + 1), a); return true;
        case 2: {
            const Work letters[] = {Work::Forward, Work::Backward, Work::BackwardInput, Work::BackwardWeight};
            while ((*row)[i].work == a.work) (*row)[i].work = letters[random.below(4)];
            return true;
        }
        case 3: (*row)[i].microbatch = other(a.microbatch, t.microbatches, random); return true;
        case 4: (*row)[i].stage = other(a.stage, t.stages, random); return true;
        case 5: {
            Row& to = t.rows[random.below(static_cast<int64_t>(t.rows.size()))];
            if (&to == row) return false;
            row->erase(row->begin() + i);
            to.insert(to.begin() + random.below(static_cast<int64_t>(to.size()) + 1), a);
            return true;
        }
        default: {  // something runs before what it needs, on this rank or around through others
            const auto cause = std::find_if(row->begin(), row->begin() + i,
                                            [&](const Action& b) { return b.work != Work::Idle && needs(t, a, b); });
            if (cause == row->begin() + i) return false;
            std::rotate(cause, row->begin() + i, row->begin() + i + 1);
            return true;
        }
    }
}

}  // namespace lockstep::testing
