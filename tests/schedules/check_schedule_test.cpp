// Illegal tables are refused and the first wrong cell is named; random legal ones pass, each mutation of them does not.
#include "schedules/check_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "schedules/csv.h"
#include "tests/schedules/random_tables.h"

namespace lockstep::schedules {
namespace {

using testing::kTableMutations;
using testing::mutate;
using testing::Random;
using testing::random_legal;

// Rows as text: cells behind each other, a dot for an idle one.
Table table_of(int64_t stages, int64_t microbatches, const std::vector<const char*>& rows) {
    Table table{stages, microbatches, {}};
    for (const char* text : rows) {
        table.rows.emplace_back();
        std::istringstream in(text);
        for (std::string cell; in >> cell;) {
            Action a;
            char work = '.';
            if (cell != ".") std::istringstream(cell) >> a.stage >> work >> a.microbatch;
            a.work = static_cast<Work>(work);
            table.rows.back().push_back(a);
        }
    }
    return table;
}

struct Wrong {
    std::vector<const char*> rows;
    Cell cell;
    const char* message;
};
TEST(CheckSchedule, NamesTheFirstWrongCell) {
    EXPECT_FALSE(check_schedule(table_of(2, 2, {"0F0 0F1 . 0B0 0B1", "1F0 1I0 1F1 1B1 1W0"})));
    const Wrong all[] = {
        {{"0F0 0B0 0F1 0B1", "1F0 1B0 1B1 1F1"}, {1, 2}, "1B1 runs before its forward 1F1"},
        {{"0F0 0B0 0F1 0B1", "1F0 1B0 1B1"}, {1, 2}, "1B1 has no forward 1F1"},
        {{"0F0 0B0 0B1", "1F0 1B0 1F1 1B1"}, {0, 2}, "0B1 has no forward 0F1"},
        {{"0F0 0B0", "1F0 1B0 1F1 1B1"}, {1, 2}, "1F1 receives from 0F1, which no rank runs"},
        {{"0F0 0B0 0F1 0B1", "1F0 1B0 1F1"}, {1, 2}, "1F1 has no backward"},
        {{"0F0 0B0 0F1 0B1", "1F0 1B0"}, {0, 3}, "0B1 receives from the backward of microbatch 1 on stage 1, which no rank runs"},
        {{"0F0 0B0 0F1", "1F0 1B0 1F1 1B1"}, {0, 2}, "0F1 has no backward"},
        {{"0F0 0I0 0F1 0B1", "1F0 1B0 1F1 1B1"}, {0, 1}, "0I0 has no 0W0 after it"},
        {{"0F0 0W0 0I0 0F1 0B1", "1F0 1B0 1F1 1B1"}, {0, 1}, "0W0 runs before 0I0"},
        {{"0F0 0B0 0W0 0F1 0B1", "1F0 1B0 1F1 1B1"}, {0, 2}, "0W0 has no 0I0 before it"},
        {{"0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1 1B0"}, {1, 4}, "1B0 is a second backward"},
        {{"0F0 0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"}, {0, 1}, "0F0 is a second forward"},
        {{"0F0 0I0 0W0 0W0 0F1 0B1", "1F0 1B0 1F1 1B1"}, {0, 3}, "0W0 is a second backward of weights"},
        {{"0F0 0B0 0F1", "1F0 1B0 1F1 1B1 0B1"}, {1, 4}, "0B1 runs on rank 1, but stage 0 is on rank 0"},
        {{"0F0 0B0 0F1 0B1", "1F0 1B0 1F1 2B1"}, {1, 3}, "2B1 names stage 2, and stages are 0 to 1"},
        {{"0F0 0B0 0F1 0B2", "1F0 1B0 1F1 1B1"}, {0, 3}, "0B2 names microbatch 2, and microbatches are 0 to 1"},
        {{"0F0 0B0", "1F0 1B0"}, {0, 2}, "0F1 is missing"},
        {{"0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"},
         {1, 0},
         "1F1 waits for the forward of microbatch 1 on stage 0, which rank 0 runs after 0B0, which in turn waits for this "
         "cell"},
        {{"0F0 0F1 0B0 0B1", "1F0 1F1 1B1 1B0"}, {9, 9}, ""},  // sound, though of another order
    };
    for (const Wrong& w : all) {
        const auto wrong = check_schedule(table_of(2, 2, w.rows));
        if (w.cell.rank == 9) {
            EXPECT_FALSE(wrong);
            continue;
        }
        ASSERT_TRUE(wrong) << w.message;
        EXPECT_EQ(wrong->message, w.message);
        EXPECT_EQ(wrong->cell, w.cell) << w.message;
    }
    EXPECT_EQ(check_schedule(table_of(1, 1, {""}))->message, "0F0 is missing");
    EXPECT_EQ(check_schedule(table_of(2, 1, {"1F0 0F0 1B0 0B0"}))->message,
              "1F0 waits for the forward of microbatch 0 on stage 0, which rank 0 runs after 1F0, which in turn waits for "
              "this cell");
}

// What the check must find out, by the plainest means: is all there once, and does running row by row come to an end?
bool ends(const Table& t) {
    std::set<std::string> done;
    std::vector<size_t> at(t.rows.size(), 0);
    const auto ran = [&](Work work, int64_t stage, int64_t m) { return done.count(text_of({work, stage, m})) > 0; };
    const auto backward = [&](int64_t stage, int64_t m) {
        return stage == t.stages || ran(Work::Backward, stage, m) || ran(Work::BackwardInput, stage, m);
    };
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < t.rows.size(); ++r) {
            if (at[r] == t.rows[r].size()) continue;
            const Action& a = t.rows[r][at[r]];
            bool ready = true;
            if (a.work == Work::Forward) ready = a.stage == 0 || ran(Work::Forward, a.stage - 1, a.microbatch);
            if (is_backward(a.work)) ready = ran(Work::Forward, a.stage, a.microbatch) && backward(a.stage + 1, a.microbatch);
            if (a.work == Work::BackwardWeight) ready = ran(Work::BackwardInput, a.stage, a.microbatch);
            if (!ready) continue;
            done.insert(text_of(a));
            ++at[r];
            moved = true;
        }
    }
    for (size_t r = 0; r < t.rows.size(); ++r) {
        if (at[r] < t.rows[r].size()) return false;
    }
    return true;
}

TEST(CheckSchedule, RefusesEachMutationOfRandomLegalTables) {
    Random random(1);
    for (int64_t kind = 0; kind < static_cast<int64_t>(kTableMutations.size()); ++kind) {
        int refused = 0;
        for (int draw = 0; draw < 400; ++draw) {
            Table table = random_legal(random);
            const auto sound = check_schedule(table);
            ASSERT_FALSE(sound) << sound->message << "\n" << print_csv(table);
            if (!mutate(table, kind, random)) continue;
            const auto wrong = check_schedule(table);
            ASSERT_TRUE(wrong) << kTableMutations[static_cast<size_t>(kind)] << "\n" << print_csv(table);
            const Row& row = table.rows[wrong->cell.rank];
            ASSERT_LE(wrong->cell.position, static_cast<int64_t>(row.size()));
            if (wrong->cell.position < static_cast<int64_t>(row.size())) {
                ASSERT_EQ(wrong->message.rfind(text_of(row[wrong->cell.position]) + " ", 0), 0u) << wrong->message;
            }
            ++refused;
        }
        EXPECT_GE(refused, 100) << kTableMutations[static_cast<size_t>(kind)];
    }
}

TEST(CheckSchedule, AgreesWithRunningTheTableOnRandomSwaps) {
    Random random(2);
    int legal = 0, illegal = 0;
    for (int draw = 0; draw < 3000; ++draw) {
        Table table = random_legal(random);
        for (int64_t swaps = 1 + random.below(3); swaps > 0; --swaps) {
            Row& row = table.rows[random.below(static_cast<int64_t>(table.rows.size()))];
            const auto n = static_cast<int64_t>(row.size());
            const int64_t i = random.below(n);
            std::swap(row[i], row[std::min(n - 1, i + 1 + random.below(3))]);
        }
        const bool sound = ends(table);
        ASSERT_EQ(!check_schedule(table), sound) << print_csv(table);
        ++(sound ? legal : illegal);
    }
    EXPECT_GE(legal, 300);
    EXPECT_GE(illegal, 300);
}

}  // namespace
}  // namespace lockstep::schedules
