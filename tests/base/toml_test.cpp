#include "base/toml.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::testing {
namespace {

std::string times(int n, const std::string& text, const std::string& between = "") {
    std::string out;
    for (int i = 0; i < n; ++i) out += (i == 0 ? "" : between) + text;
    return out;
}

// What parse_toml says of a text; empty: nothing.
std::string refusal(const std::string& text) {
    try {
        parse_toml(text);
    } catch (const TomlExcess& e) {
        return std::to_string(e.source().begin.line) + ": " + std::string(e.description());
    } catch (const toml::parse_error&) {
        return "not TOML";
    }
    return "";
}

TEST(Toml, KeysOfManyPartsAreRefusedInEveryForm) {
    const std::string why = "a key has more than 16 parts, which no file of Lockstep needs";
    for (const char* part : {"a", "\"a\"", "'a'", " a "}) {
        for (const int parts : {17, 60'000}) {
            const std::string key = times(parts, part, ".");
            EXPECT_EQ(refusal("[" + key + "]\nx = 1\n"), "1: " + why);
            EXPECT_EQ(refusal("[[" + key + "]]\nx = 1\n"), "1: " + why);
            EXPECT_EQ(refusal("\n" + key + " = 1\n"), "2: " + why);
            EXPECT_EQ(refusal("\n\nx = {" + key + " = 1}\n"), "3: " + why);
        }
        EXPECT_EQ(refusal("[" + times(16, part, ".") + "]\nx = 1\n"), "");
    }
}

TEST(Toml, BracketsInBracketsAreRefused) {
    const std::string why = "1: lists and tables are nested more than 32 deep, which no file of Lockstep needs";
    for (const int depth : {33, 100'000}) {
        EXPECT_EQ(refusal("a = " + times(depth, "[") + times(depth, "]")), why);
        EXPECT_EQ(refusal("a = " + times(depth, "[")), why);
        EXPECT_EQ(refusal("a = " + times(depth, "{a = ")), why);
        EXPECT_EQ(refusal("a = " + times(depth, "[{a.b = ")), why);
    }
    EXPECT_EQ(refusal("a = " + times(32, "[") + times(32, "]")), "");
    // The deepest that is read: 32 levels with 16 parts each.
    EXPECT_EQ(refusal("a = " + times(32, "{" + times(16, "a", ".") + " = ") + "1" + times(32, "}")), "");
}

TEST(Toml, StringsAndCommentsHaveAnyMarks) {
    const std::string marks = times(100, "[{.");
    const toml::table t =
        parse_toml("# don't " + marks + "\na = \"" + marks + "\\\"" + marks + "\"\nb = '" + marks + "\\'\nc = \"\"\"" + marks +
                   "\\\"\"\"" + marks + "\"\"\"\"\"\nd = '''x" + marks + "''''\ne = [1.5, 2.5]\nf = \"\"\n" + "[g.\"" + marks +
                   "\"]\nh = 1979-05-27T07:32:00.999-07:00\n");
    EXPECT_EQ(t["c"].value<std::string>(), marks + "\"\"\"" + marks + "\"\"");
    EXPECT_EQ(t["d"].value<std::string>(), "x" + marks + "'");
    EXPECT_EQ(t["e"][1].value<double>(), 2.5);
    EXPECT_TRUE(t["g"][marks]["h"].is_date_time());
}

TEST(Toml, LongTextsAreRefused) {
    const std::string line = "# " + std::string(1021, 'x') + "\n";  // 1 KiB
    EXPECT_EQ(refusal(times(2048, line)), "");
    EXPECT_EQ(refusal(times(2048, line) + "#"), "1: the text is longer than 2 MiB, which no file of Lockstep needs");
    EXPECT_EQ(refusal("a = \"" + std::string(1000, 'x')), "not TOML");
}

}  // namespace
}  // namespace lockstep::testing
