// lockstep schedule as a user types it.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

TEST(CliSchedule, DrawsAndCounts) {
    Scratch s;
    const nlohmann::json j = s.lockstep("schedule 1F1B --ranks 4 --microbatches 8 --json").json();
    EXPECT_EQ(j["stages"], 4);
    EXPECT_EQ(j["in_flight_of_rank"], (std::vector<int>{4, 3, 2, 1}));
    EXPECT_DOUBLE_EQ(j["bubble_fraction"].get<double>(), 3.0 / 11);  // (p - 1) / (m + p - 1)
    EXPECT_EQ(j["rows"][3][3], "3F0");                               // after three waits
    EXPECT_EQ(s.lockstep("schedule interleaved1f1b --ranks 2 --microbatches 4 --json").json()["stages"], 4);
    const Finished drawn = s.lockstep("schedule GPipe --ranks 2 --microbatches 2");
    EXPECT_EQ(drawn.code, 0);
    EXPECT_NE(drawn.out.find("Rank 1"), std::string::npos);
    EXPECT_NE(drawn.out.find("rank 0 holds at most 2 microbatches"), std::string::npos);
    EXPECT_NE(s.lockstep("schedule").out.find("ZBVZeroBubble"), std::string::npos);
}

TEST(CliSchedule, AFileIsCheckedAndComesBack) {
    Scratch s;
    const std::string csv = s.lockstep("schedule ZB-H1 --ranks 2 --microbatches 3 --csv").out;
    s.write("z.csv", csv);
    EXPECT_EQ(s.lockstep("schedule --from z.csv --ranks 2 --microbatches 3 --csv").out, csv);
    s.write("wrong.csv", "0F0,0B0\n1B0,1F0\n");
    const Finished refused = s.lockstep("schedule --from wrong.csv --ranks 2 --microbatches 1");
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("wrong.csv:2: cell 1: 1B0 runs before its forward 1F0"), std::string::npos) << refused.err;
    EXPECT_EQ(s.lockstep("schedule --from z.csv GPipe").code, 2);
}

TEST(CliSchedule, KindErrors) {
    Scratch s;
    const Finished missing = s.lockstep("schedule --from none.csv --json");
    EXPECT_EQ(missing.code, 1);
    EXPECT_EQ(missing.json()["error"]["id"], "schedule.unreadable");
    EXPECT_NE(missing.err.find("none.csv: cannot be read (No such file or directory)"), std::string::npos) << missing.err;
    EXPECT_NE(s.lockstep("schedule --from .").err.find("schedule .: cannot be read (Is a directory)"), std::string::npos);
    s.write("empty.csv", "");
    EXPECT_NE(s.lockstep("schedule --from empty.csv").err.find("empty.csv has 0 lines"), std::string::npos);
    EXPECT_EQ(s.lockstep("schedule 1F2B").code, 1);
    EXPECT_EQ(s.lockstep("schedule 1F1B --stages-per-rank 2").code, 1);
}

}  // namespace
}  // namespace lockstep::testing
