// Schedules against PyTorch's tables, cell by cell, and against the formulas of their papers.
#include "schedules/schedules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "schedules/check_schedule.h"
#include "schedules/csv.h"
#include "schedules/timeline.h"
#include "tests/schedules/stored_tables.h"

namespace lockstep::schedules {
namespace {

using testing::stored;
using testing::StoredTable;

struct Costs {
    double forward = 1, input = 1, weight = 1;
    double operator()(const Action& a) const {
        switch (a.work) {
            case Work::Idle: return 0;
            case Work::Forward: return forward;
            case Work::BackwardInput: return input;
            case Work::BackwardWeight: return weight;
            case Work::Backward: return input + weight;
        }
        return 0;
    }
};
double bubble(const Table& table, const Costs& costs) {
    return play(table, [&](const Action& a) { return costs(a); }).bubble;
}

TEST(PipelineSchedules, EachTableIsPyTorchsCellByCell) {
    std::map<std::string, int> equal, refused;
    for (const StoredTable& t : stored().tables) {
        if (t.refused) {
            EXPECT_THROW(make_schedule(t.name, t.shape), UserError) << t.title();
            ++refused[t.name];
            continue;
        }
        const Table ours = make_schedule(t.name, t.shape);
        ASSERT_EQ(print_csv(ours), t.csv) << t.title();
        EXPECT_EQ(in_flight(ours).of_stage, t.in_flight) << t.title();
        ++equal[t.name];
    }
    for (const Schedule& s : schedules()) {
        if (s.name != "ZB-H1") {
            EXPECT_GE(equal[std::string(s.name)], 20) << s.name;
        }
    }
    EXPECT_EQ(refused, (std::map<std::string, int>{{"Interleaved1F1B", 3}, {"InterleavedZeroBubble", 3}}));
}

// "This is implementing the ZB1P schedule in the paper", says PyTorch of its InterleavedZeroBubble; ZB-H1 is the handcrafted
// schedule there that takes as much memory.
TEST(PipelineSchedules, ZbH1IsPyTorchsZeroBubbleWithOneStageARank) {
    int compared = 0;
    for (const StoredTable& t : stored().tables) {
        if (t.name != "InterleavedZeroBubble" || t.shape.stages_per_rank != 1 || t.refused) continue;
        EXPECT_EQ(print_csv(make_schedule("ZB-H1", t.shape)), t.csv) << t.title();
        ++compared;
    }
    EXPECT_GE(compared, 20);
}

void for_each_shape(const Schedule& s, const std::function<void(const Shape&)>& use) {
    for (int64_t ranks : {1, 2, 3, 4, 5, 8}) {
        for (int64_t chunks : {1, 2, 3, 4}) {
            if (chunks < s.min_stages_per_rank || chunks > s.max_stages_per_rank) continue;
            for (int64_t microbatches = 1; microbatches <= 3 * ranks; ++microbatches) {
                const Shape shape{ranks, chunks, microbatches};
                if (s.name.rfind("Interleaved", 0) == 0 && microbatches % std::max<int64_t>(1, microbatches / ranks) != 0)
                    continue;
                use(shape);
            }
        }
    }
}

TEST(PipelineSchedules, EachIsLegalWithFewerMicrobatchesThanRanksToo) {
    for (const Schedule& s : schedules()) {
        for_each_shape(s, [&](const Shape& shape) {
            const auto wrong = check_schedule(make_schedule(s.name, shape));
            EXPECT_FALSE(wrong) << s.name << " " << shape.ranks << " " << shape.stages_per_rank << " " << shape.microbatches
                                << ": " << wrong->message;
        });
    }
}

// GPipe and 1F1B: (p - 1)(F + B) whatever the costs. Interleaved: 1/v of it, F and B being a stage's (2104.04473, 2.2); breadth
// first alike (2211.05953). ZB-H1: (p - 1)(F + I - W) (2401.10241, table 2). ZB-V: none where F = I = W and there are
// microbatches enough (2401.10241, section 6).
TEST(PipelineSchedules, BubblesAreThePapers) {
    for (const Costs& c : {Costs{}, Costs{1, 1, 0.5}, Costs{2, 3, 1}}) {
        const double whole = c.forward + c.input + c.weight;
        for (int64_t p : {2, 3, 4, 8}) {
            for (int64_t m : {p, p + 1, 2 * p, 5 * p}) {
                EXPECT_DOUBLE_EQ(bubble(make_schedule("GPipe", {p, 1, m}), c), (p - 1) * whole);
                EXPECT_DOUBLE_EQ(bubble(make_schedule("1F1B", {p, 1, m}), c), (p - 1) * whole);
                EXPECT_DOUBLE_EQ(bubble(make_schedule("ZB-H1", {p, 1, m}), c), (p - 1) * (c.forward + c.input - c.weight))
                    << p << " " << m << " " << c.forward << c.input << c.weight;
                for (int64_t v : {2, 3}) {
                    if (m % p != 0) continue;
                    EXPECT_DOUBLE_EQ(bubble(make_schedule("Interleaved1F1B", {p, v, m}), c), (p - 1) * whole) << p << v << m;
                    EXPECT_DOUBLE_EQ(bubble(make_schedule("LoopedBFS", {p, v, m}), c), (p - 1) * whole) << p << v << m;
                    EXPECT_DOUBLE_EQ(bubble(make_schedule("InterleavedZeroBubble", {p, v, m}), c),
                                     (p - 1) * (c.forward + c.input - c.weight))
                        << p << v << m;
                }
            }
        }
    }
    for (int64_t p : {2, 3, 4, 8}) {
        for (int64_t m : {2 * p, 3 * p, 5 * p + 1})
            EXPECT_EQ(bubble(make_schedule("ZBVZeroBubble", {p, 2, m}), {}), 0) << p << " " << m;
    }
}

// In units of a stage's microbatch. 1F1B and ZB-H1: stage k of p holds p - k, ZB-H1 until its W, so p on each (2401.10241, table
// 2). Interleaved: warm-up and one more (Megatron-LM's schedules.py). ZB-V: as 1F1B's first stage on every rank: p whole, 2 p
// halves.
TEST(PipelineSchedules, MicrobatchesInFlightAreThePapers) {
    for (int64_t p : {1, 2, 3, 4, 8}) {
        for (int64_t m : {int64_t{1}, p, 2 * p, 5 * p}) {
            for (int64_t k = 0; k < p; ++k) {
                const auto held = [&](const char* name, int64_t v) {
                    return in_flight(make_schedule(name, {p, v, m})).of_rank[static_cast<size_t>(k)];
                };
                EXPECT_EQ(held("GPipe", 1), m);
                EXPECT_EQ(held("LoopedBFS", 3), 3 * m);
                EXPECT_EQ(held("1F1B", 1), std::min(p - k, m));
                EXPECT_EQ(held("ZB-H1", 1), std::min(p, m));
                if (m >= p) {
                    EXPECT_EQ(held("Interleaved1F1B", 2), std::min(p + 2 * (p - 1 - k) + 1, 2 * m)) << p << m << k;
                }
                if (m >= 2 * p) {
                    EXPECT_EQ(held("ZBVZeroBubble", 2), 2 * p) << p << m << k;
                }
            }
        }
    }
}

TEST(PipelineSchedules, LargeOnesAreMadeAndProvedQuickly) {
    const Table table = make_schedule("1F1B", {64, 1, 1600});
    EXPECT_FALSE(check_schedule(table));
    EXPECT_EQ(in_flight(table).of_stage[0], 64);
    EXPECT_EQ(bubble(table, {}), 63 * 3);
}

TEST(PipelineSchedules, DrawingsArePyTorchs) {
    ASSERT_GE(stored().drawings.size(), 3u);
    for (const testing::StoredDrawing& d : stored().drawings) EXPECT_EQ(draw(make_schedule(d.name, d.shape)), d.text) << d.name;
}

TEST(PipelineSchedules, WaitsAreDrawnWhereUnitCostsPutThem) {
    EXPECT_EQ(draw(with_waits(make_schedule("1F1B", {2, 1, 3}))),
              "        Rank 0 Rank 1\n"
              "Step 0: 0F0\n"
              "Step 1: 0F1    1F0\n"
              "Step 2:        1B0\n"
              "Step 3: 0B0    1F1\n"
              "Step 4: 0F2    1B1\n"
              "Step 5: 0B1    1F2\n"
              "Step 6:        1B2\n"
              "Step 7: 0B2\n");
}

TEST(PipelineSchedules, NamesAreFoundAsPyTorchFindsThem) { EXPECT_EQ(find_schedule("interleaved1f1b").name, "Interleaved1F1B"); }

struct Refused {
    const char *id, *name, *message;
    Shape shape;
};
TEST(PipelineSchedules, RefusalsSayWhatToChange) {
    const Refused all[] = {
        {"pipeline.unknown_schedule",
         "DualPipeV",
         "there is no pipeline schedule 'DualPipeV': choose one of GPipe, 1F1B, Interleaved1F1B, LoopedBFS, ZB-H1, "
         "InterleavedZeroBubble, ZBVZeroBubble",
         {2, 1, 4}},
        {"pipeline.stages_per_rank",
         "1F1B",
         "the schedule 1F1B runs one stage a rank, the cut makes 2: change the layers per stage or the schedule",
         {2, 2, 4}},
        {"pipeline.stages_per_rank",
         "ZBVZeroBubble",
         "the schedule ZBVZeroBubble runs 2 stages a rank, the cut makes 3: change the layers per stage or the schedule",
         {2, 3, 4}},
        {"pipeline.rounds",
         "Interleaved1F1B",
         "the schedule Interleaved1F1B sends microbatches through 4 ranks in equal rounds, and 9 do not divide into 2: choose a "
         "batch "
         "of 8 or 12 microbatches, or another schedule",
         {4, 2, 9}},
    };
    for (const Refused& r : all) {
        try {
            make_schedule(r.name, r.shape);
            ADD_FAILURE() << r.id << ": not refused";
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), r.id);
            EXPECT_STREQ(e.what(), r.message);
        }
    }
}

}  // namespace
}  // namespace lockstep::schedules
