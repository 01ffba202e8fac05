#include "telemetry/step_table.h"

#include <gtest/gtest.h>

namespace lockstep::testing {
namespace {

using telemetry::StepLine, telemetry::StepTable;

TEST(TelemetryStepTable, SaysEveryNumberUnderItsHeading) {
    StepTable table(260);
    const StepLine line{10, 8.434567, 0.51253, 1.5e-3, 2977, 6.2e9, 0.0712, 0.25 * (1 << 30), 750};
    EXPECT_EQ(table.lines(line, 80),
              (std::vector<std::string>{"     step    loss   norm       lr  tok/s GFLOP/s   MFU   memory time left",
                                        "   10/260 8.43457 0.5125 1.50e-03  2,977    6.20  7.1% 0.250GiB    12m30s"}));
    EXPECT_EQ(table.lines(line, 80).size(), 1u) << "headings stand above the first line of a screenful";
}

TEST(TelemetryStepTable, FitsTheTerminalWhateverTheNumbersAre) {
    const StepLine lines[] = {
        {1, 11.5, 123.456, 8e-4, 812, 3e6, 0.99, 1e6, 3e6},
        {9999999, 1e9, 1e-9, 1e-12, 123456789, 9.9e14, 0.5, 3e12, 1e5},
        {3, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 0, 0, 0, -1, 0, 0}};
    for (int columns : {40, 60, 80, 120}) {
        for (const StepLine& line : lines) {
            StepTable table(9999999);
            for (const std::string& text : table.lines(line, columns)) EXPECT_LE(static_cast<int>(text.size()), columns) << text;
        }
    }
    StepTable narrow(100);
    EXPECT_EQ(narrow.lines({5, 2.5, 1, 1e-3, 100, 1e9, 0.5, 1e9, 10}, 44)[0], "     step    loss   norm  tok/s time left")
        << "what matters least is left out first";
}

TEST(TelemetryStepTable, ChoosesTheUnitOfFlops) {
    for (const auto& [flops, unit] : {std::pair{3e6, "MFLOP/s"}, {6e9, "GFLOP/s"}, {2e12, "TFLOP/s"}, {4e15, "PFLOP/s"}}) {
        StepTable table(10);
        EXPECT_NE(table.lines({1, 1, 1, 1, 1, flops, -1, 1, 1}, 80)[0].find(unit), std::string::npos) << unit;
    }
    StepTable unknown(10);
    EXPECT_EQ(unknown.lines({1, 1, 1, 1, 1, 1e9, -1, 1, 1}, 80)[0].find("MFU"), std::string::npos) << "left out where not known";
}

}  // namespace
}  // namespace lockstep::testing
