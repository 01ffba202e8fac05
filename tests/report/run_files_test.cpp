#include "report/run_files.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/base/scratch_folder.h"

namespace lockstep::testing {
namespace {

TEST(ReportMetricsColumns, HaveAValueAStepAsItWasDoneLast) {
    const ScratchFolder s;
    s.write("metrics.jsonl",
            "{\"step\": 1, \"loss\": 4.5}\n"
            "{\"step\": 2, \"loss\": 9}\n"
            "damaged\n"
            "{\"step\": 2, \"loss\": null, \"heldout\": 3}\n"
            "{\"step\": 3, \"loss\": 4}\n");
    for (const std::string& path : {s.path(""), s.path("metrics.jsonl")}) {
        auto columns = report::metrics_columns(path);
        EXPECT_EQ(columns.size(), 3u);
        EXPECT_EQ(columns["step"], (std::vector<double>{1, 2, 3}));
        EXPECT_EQ(columns["loss"][0], 4.5);
        EXPECT_TRUE(std::isnan(columns["loss"][1]));  // not the 9 of the step that was repeated
        EXPECT_EQ(columns["loss"][2], 4);
        EXPECT_TRUE(std::isnan(columns["heldout"][0]));
        EXPECT_EQ(columns["heldout"][1], 3);
    }
}

TEST(ReportMetricsColumns, RefusesWhatIsNoFile) {
    const ScratchFolder s;
    try {
        report::metrics_columns(s.path("nothing"));
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "metrics.cannot_read");
        EXPECT_NE(std::string(e.what()).find("nothing: cannot be read: give the metrics.jsonl of a run"), std::string::npos);
    }
}

}  // namespace
}  // namespace lockstep::testing
