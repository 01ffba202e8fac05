// Sends and receives of a table: each dependency between ranks once, and an order that cannot stand still.
#include "schedules/transfers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "schedules/csv.h"
#include "tests/schedules/random_tables.h"
#include "tests/schedules/stored_tables.h"

namespace lockstep::schedules {
namespace {

constexpr auto kUnit = [](const Action&) { return 1.0; };
// Stages of unequal length, backwards longer than forwards.
constexpr auto kUneven = [](const Action& a) {
    return (1.0 + static_cast<double>(a.stage * 7 % 4)) * (a.work == Work::Backward ? 2.3 : 1.0);
};

std::string text_of(const std::vector<Step>& steps) {
    std::string out;
    for (const Step& s : steps) {
        const char* verb = s.kind == StepKind::Send ? "send " : s.kind == StepKind::Receive ? "receive " : "";
        out += (out.empty() ? "" : ", ") + std::string(verb) + schedules::text_of(s.action);
    }
    return out;
}

TEST(PipelineTransfers, StandWhereTheyAreMade) {
    const auto steps = with_transfers(make_schedule("1F1B", {2, 1, 2}), kUnit);
    EXPECT_EQ(text_of(steps[0]), "0F0, send 0F0, 0F1, send 0F1, receive 1B0, 0B0, receive 1B1, 0B1");
    EXPECT_EQ(text_of(steps[1]), "receive 0F0, 1F0, receive 0F1, 1B0, send 1B0, 1F1, 1B1, send 1B1");
    EXPECT_EQ(steps[0][1].peer, 1);
    EXPECT_EQ(steps[1][0].peer, 0);
    // Stages 1 and 2 of a V lie on one rank: between them nothing is sent.
    EXPECT_EQ(text_of(with_transfers(make_schedule("ZBVZeroBubble", {2, 2, 1}), kUnit)[1]),
              "receive 0F0, 1F0, 2F0, send 2F0, receive 3I0, 2I0, 2W0, 1I0, send 1I0, 1W0");
}

// All heads wait at once: an action for the steps before it, a transfer for the peer's head to be the same transfer. What runs
// must find what it needs on its own rank.
std::string stands_still(const Table& table, const std::vector<std::vector<Step>>& ranks) {
    std::vector<size_t> head(ranks.size(), 0);
    std::vector<std::set<std::string>> has(ranks.size());
    std::map<std::string, int> sent;
    const auto meets = [&](size_t rank, const Step& s) {
        const auto peer = static_cast<size_t>(s.peer);
        if (head[peer] == ranks[peer].size()) return false;
        const Step& other = ranks[peer][head[peer]];
        return other.action == s.action && other.peer == static_cast<int64_t>(rank) && other.kind != s.kind &&
               other.kind != StepKind::Run;
    };
    const auto lacks = [&](size_t rank, const Action& a) {
        const auto found = [&](Work work, int64_t stage) {
            return has[rank].count(schedules::text_of({work, stage, a.microbatch})) > 0;
        };
        if (a.work == Work::Forward) return a.stage > 0 && !found(Work::Forward, a.stage - 1);
        const bool last = a.stage == table.stages - 1;
        return is_backward(a.work) && !last && !found(Work::Backward, a.stage + 1) && !found(Work::BackwardInput, a.stage + 1);
    };
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
            while (head[rank] < ranks[rank].size()) {
                const Step& s = ranks[rank][head[rank]];
                if (s.kind != StepKind::Run && !meets(rank, s)) break;
                if (s.kind == StepKind::Run && lacks(rank, s.action)) return schedules::text_of(s.action) + " runs too early";
                if (s.kind != StepKind::Run) {
                    const auto to = static_cast<size_t>(s.kind == StepKind::Send ? s.peer : static_cast<int64_t>(rank));
                    if (++sent[schedules::text_of(s.action)] > 1) return schedules::text_of(s.action) + " is sent twice";
                    has[to].insert(schedules::text_of(s.action));
                    ++head[static_cast<size_t>(s.peer)];
                } else {
                    has[rank].insert(schedules::text_of(s.action));
                }
                ++head[rank];
                moved = true;
            }
        }
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        if (head[rank] < ranks[rank].size()) return fmt::format("rank {} stands at step {}", rank, head[rank]);
    }
    return "";
}

TEST(PipelineTransfers, NeverStandStillUnderRendezvousInOneQueue) {
    for (const testing::StoredTable& t : testing::stored().tables) {
        if (t.refused) continue;
        const Table table = make_schedule(t.name, t.shape);
        EXPECT_EQ(stands_still(table, with_transfers(table, kUnit)), "") << t.title();
        EXPECT_EQ(stands_still(table, with_transfers(table, kUneven)), "") << t.title();
    }
    testing::Random random(3);
    for (int draw = 0; draw < 500; ++draw) {
        const Table table = testing::random_legal(random);
        const auto uneven = [](const Action& a) { return kUneven(a); };
        EXPECT_EQ(stands_still(table, with_transfers(table, uneven)), "") << print_csv(table);
    }
}

TEST(PipelineTransfers, AnotherOrderOfTransfersStandsStill) {
    const Table table = make_schedule("1F1B", {2, 1, 2});
    auto steps = with_transfers(table, kUnit);
    std::swap(steps[1][2], steps[1][4]);  // receives the second activation after it has sent its gradient
    EXPECT_NE(stands_still(table, steps), "");
}

}  // namespace
}  // namespace lockstep::schedules
