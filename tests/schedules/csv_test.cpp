// Tables as CSV: what PyTorch wrote is read back as it was; what is wrong is named by line and cell.
#include "schedules/csv.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "schedules/schedules.h"
#include "tests/schedules/stored_tables.h"

namespace lockstep::schedules {
namespace {

TEST(PipelineCsv, ReadsWhatPyTorchWrote) {
    for (const testing::StoredTable& t : testing::stored().tables) {
        if (t.refused) continue;
        const Table table = read_csv(t.csv, {"x.csv", t.shape.ranks, t.shape.microbatches});
        EXPECT_EQ(table, make_schedule(t.name, t.shape)) << t.title();
        EXPECT_EQ(print_csv(table), t.csv) << t.title();
    }
}

TEST(PipelineCsv, LineEndsBlanksAndQuotesDoNotMatter) {
    const Table table = read_csv(" 0F0 ,,\"0B0\"\r\n,1F0,1I0,1W0\r\n\r\n", {"x.csv", 2, 1});
    EXPECT_EQ(print_csv(table), "0F0,,0B0\n,1F0,1I0,1W0\n");
    EXPECT_EQ(table.stages, 2);
}

struct RefusedText {
    const char *id, *text, *message;
};
TEST(PipelineCsv, RefusalsNameLineAndCell) {
    const char* cell_help =
        ", expected stage, one of F, I, W, B, and microbatch, as in 2F0, or nothing for an idle cell (transfers and gathers "
        "follow from "
        "these and are not in the file)";
    const RefusedText all[] = {
        {"pipeline.csv_ranks", "", "x.csv has 0 lines, expected one for each of the 2 ranks of pipeline_parallel_degree"},
        {"pipeline.csv_ranks", "0F0,0B0\n",
         "x.csv has 1 lines, expected one for each of the 2 ranks of pipeline_parallel_degree"},
        {"pipeline.csv_cell", "0F0,0B0\n1F0,1G0\n", "x.csv:2: cell 2 is '1G0'"},
        {"pipeline.csv_cell", "0F0,0B\n1F0,1B0\n", "x.csv:1: cell 2 is '0B'"},
        {"pipeline.csv_cell", "0F0,0B0 \n0UNSHARD,1F0,1B0\n", "x.csv:2: cell 1 is '0UNSHARD'"},
        {"pipeline.csv_cell", "0F0,0SEND_F0,0B0\n1F0,1B0\n", "x.csv:1: cell 2 is '0SEND_F0'"},
        {"pipeline.csv_cell", "0F99999999999999999999\n1F0,1B0\n", "x.csv:1: cell 1 is '0F99999999999999999999'"},
        {"pipeline.csv_illegal", "0F0,0B0\n1B0,1F0\n", "x.csv:2: cell 1: 1B0 runs before its forward 1F0"},
        {"pipeline.csv_illegal", "0F0,0B0\n1F0,1B0,1F1,1B1\n",
         "x.csv:2: cell 3: 1F1 names microbatch 1, and microbatches are 0 to 0"},
        {"pipeline.csv_illegal", "0F0,0B0\n7F0,7B0\n", "x.csv:2: cell 1: 7F0 names stage 7, and stages are 0 to 1"},
    };
    for (const RefusedText& r : all) {
        try {
            read_csv(r.text, {"x.csv", 2, 1});
            ADD_FAILURE() << r.message << ": not refused";
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), r.id);
            EXPECT_EQ(e.key(), "parallelism.pipeline_parallel_schedule_csv");
            EXPECT_EQ(e.what(), r.message + std::string(std::string_view(r.id) == "pipeline.csv_cell" ? cell_help : ""));
        }
    }
}

}  // namespace
}  // namespace lockstep::schedules
