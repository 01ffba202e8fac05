#include "telemetry/wrap.h"

#include <gtest/gtest.h>

namespace lockstep::testing {
namespace {

using telemetry::short_count, telemetry::short_duration, telemetry::wrap;
using Lines = std::vector<std::string>;

TEST(TelemetryWrap, LinesEndBetweenWords) {
    EXPECT_EQ(wrap("one two three", 7), (Lines{"one two", "three"}));
    EXPECT_EQ(wrap("one two three", 80), Lines{"one two three"});
    EXPECT_EQ(wrap("a/path/longer/than/that is there", 10), (Lines{"a/path/longer/than/that", "is there"}));
    EXPECT_EQ(wrap("  indented words go on so", 14), (Lines{"  indented", "  words go on", "  so"}));
    EXPECT_EQ(wrap("two\nlines", 80), (Lines{"two", "lines"}));
    EXPECT_EQ(wrap("", 10), Lines{""});
    EXPECT_EQ(wrap("größe über", 10), Lines{"größe über"}) << "characters are counted, not bytes";
}

TEST(TelemetryWrap, NumbersKeepAColumnNarrow) {
    EXPECT_EQ(short_duration(0.42), "0.4s");
    EXPECT_EQ(short_duration(45), "45s");
    EXPECT_EQ(short_duration(59.7), "1m00s");
    EXPECT_EQ(short_duration(750), "12m30s");
    EXPECT_EQ(short_duration(3720), "1h02m");
    EXPECT_EQ(short_duration(3 * 86400 + 4 * 3600), "3d04h");
    EXPECT_EQ(short_count(0.1234), "0.12");
    EXPECT_EQ(short_count(812), "812");
    EXPECT_EQ(short_count(2977), "2,977");
    EXPECT_EQ(short_count(29770), "29.8k");
    EXPECT_EQ(short_count(999'999), "1.00M");
    EXPECT_EQ(short_count(1.234e9), "1.23G");
    EXPECT_EQ(telemetry::grouped(1866624), "1,866,624");
    EXPECT_EQ(telemetry::plural(1, "rank"), "1 rank");
    EXPECT_EQ(telemetry::plural(2, "process"), "2 processes");
}

}  // namespace
}  // namespace lockstep::testing
