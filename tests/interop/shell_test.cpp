// The command lines of a script: what bash would make of them, and what only a run could tell.
#include "interop/shell.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "interop/arithmetic.h"

namespace lockstep::interop {
namespace {

// The last command, its words in brackets.
std::string last_command(const std::string& script) {
    std::string out;
    const Script read = read_script(script, "s.sh");
    if (read.commands.empty()) return out;
    for (const Word& w : read.commands.back()) out += fmt::format("[{}]", w.text);
    return out;
}

struct Case {
    const char *script, *words;
};

class InteropShell : public ::testing::TestWithParam<Case> {};

TEST_P(InteropShell, WordsAreThoseOfBash) { EXPECT_EQ(last_command(GetParam().script), GetParam().words) << GetParam().script; }

INSTANTIATE_TEST_SUITE_P(
    Words, InteropShell,
    ::testing::Values(Case{"run a  b\tc", "[run][a][b][c]"}, Case{"run a \\\n  b", "[run][a][b]"},
                      Case{"run a\\\nb", "[run][ab]"}, Case{"run a # b", "[run][a]"}, Case{"run a#b", "[run][a#b]"},
                      Case{"run 'a b' \"c d\"e", "[run][a b][c de]"}, Case{"run '' \"\"", "[run][][]"},
                      Case{"run a\\ b '$X' \\$X", "[run][a b][$X][$X]"}, Case{"X=1\nrun $X ${X}2 \"$X 2\"", "[run][1][12][1 2]"},
                      Case{"X='1 2'\nrun $X \"$X\"", "[run][1][2][1 2]"}, Case{"X=1; Y=$X$X\nrun $Y", "[run][11]"},
                      Case{"X=1\nX+=2\nrun $X", "[run][12]"}, Case{"export X=1 Y=2\nrun $X $Y", "[run][1][2]"},
                      Case{"X=1 run a", "[run][a]"}, Case{"A=(a 'b c' # d\n e)\nrun ${A[@]}", "[run][a][b][c][e]"},
                      Case{"A=(a 'b c')\nrun \"${A[@]}\"", "[run][a][b c]"},
                      Case{"A=(a)\nA+=(b c)\nrun ${A[@]}", "[run][a][b][c]"}, Case{"A=()\nrun ${A[@]} x", "[run][x]"},
                      Case{"run ${X:-8} ${Y-9}", "[run][8][9]"}, Case{"X=1\nrun ${X:-8}", "[run][1]"},
                      Case{"X=3\nrun $((X * (2 + $X) - 1))", "[run][14]"},
                      Case{"run $X ${X[@]} $1 $@ $(a b) `c d`", "[run][$X][${X[@]}][$1][$@][$(...)][$(...)]"},
                      Case{"run a > f 2>&1", "[run][a]"}, Case{"a; run b", "[run][b]"}, Case{"a && run b", "[run][b]"},
                      Case{"if a; then X=1; fi\nrun $X", "[run][$X]"}, Case{"f() {\n  X=1\n}\nrun $X", "[run][$X]"},
                      Case{"for i in 1 2; do X=$i; done\nX=3\nrun $X", "[run][3]"}, Case{"run a \r\n", "[run][a]"},
                      Case{"A=2\nif [ $A -gt 1 ]; then X=1; else X=2; fi\nrun $X", "[run][1]"},
                      Case{"A=1\nif [[ $A -gt 1 ]]\nthen\n  X=1\nelse\n  X=2\nfi\nrun $X", "[run][2]"},
                      Case{"A=b\nif [ $A = a ]; then X=1; elif [ \"$A\" == \"b\" ]; then X=2; else X=3; fi\nrun $X", "[run][2]"},
                      Case{"A=1\nif [ $A = 1 ] && [ $B = 1 ]; then X=1; fi\nrun $X", "[run][$X]"},
                      Case{"A=1\nX=0\nif [ ! -z \"$A\" ]; then if [ $B ]; then X=1; fi; fi\nrun $X", "[run][$X]"},
                      Case{"A=1\nX=0\nif [ $A -ne 1 ]; then if [ $B ]; then X=1; fi; fi\nrun $X", "[run][0]"},
                      Case{"X=2\nbash -c \"python p.py --n $X\"", "[bash][-c]"}, Case{"", ""}, Case{"# a", ""}));

TEST(InteropShell, ACommandLineInAWordIsACommand) {
    const Script s = read_script("X=2\nbash -c \"python p.py \\\n --n $X\"", "s.sh");
    ASSERT_EQ(s.commands.size(), 2u);
    ASSERT_EQ(s.commands[0].size(), 4u);
    EXPECT_EQ(s.commands[0][2].text, "--n");
    EXPECT_EQ(s.commands[0][2].line, 3);
    EXPECT_EQ(s.commands[0][3].text, "2");
}

TEST(InteropShell, HereDocumentsAreKept) {
    const Script s = read_script("N=3\ncat <<EOF > f.json\n{\"a\": $N}\nEOF\ncat > g <<'X'\n$N\nX\nrun a", "s.sh");
    EXPECT_EQ(s.files.at("f.json"), "{\"a\": 3}\n");
    EXPECT_EQ(s.files.at("g"), "$N\n");
    EXPECT_EQ(s.commands.back().front().text, "run");
}

TEST(InteropShell, SaysWhyAValueIsNotKnown) {
    const Script s = read_script("if a; then X=1; fi\n", "s.sh");
    EXPECT_EQ(s.why("$X"), "X is set on line 1 inside `if` on line 1, and which way a run takes is not known");
    EXPECT_EQ(s.why("a${Y}b"), "Y is not set in the script");
    EXPECT_EQ(s.why("$1"), "$1 is what the script is called with");
    EXPECT_EQ(s.why("$((2*N))"), "N is not set in the script");
    EXPECT_EQ(s.why("$(nproc)"), "the output of a command is known to a run alone");
}

TEST(InteropShell, RefusesWhatIsNeverClosed) {
    for (const char* script : {"run 'a", "run \"a", "run `a", "run $(a", "run ${a", "A=(a", "cat <<E\na"})
        EXPECT_THROW(read_script(script, "s.sh"), UserError) << script;
}

TEST(InteropArithmetic, IsThatOfAShell) {
    const auto value_of = [](const std::string& name) { return name == "x" ? std::optional<std::string>("5") : std::nullopt; };
    const auto number = [&](const char* text) { return evaluate(text, value_of); };
    EXPECT_EQ(number("1 + 2 * 3"), 7);
    EXPECT_EQ(number("(1 + 2) * -3"), -9);
    EXPECT_EQ(number("$x / 2 + ${x} % 3"), 4);
    for (const char* text : {"", "y", "1 +", "(1", "1 / 0", "1 2", "9223372036854775807 + 1", "1 << 2"})
        EXPECT_EQ(number(text), std::nullopt) << text;
}

}  // namespace
}  // namespace lockstep::interop
