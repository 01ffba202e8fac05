// The commands of a script: what bash would start, and what only a run could tell.
#include "interop/shell.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "interop/arithmetic.h"
#include "interop/hjson.h"
#include "interop/shell_programs.h"
#include "tests/base/scratch_folder.h"
#include "tests/paths.h"

#include <nlohmann/json.hpp>

namespace lockstep::interop {
namespace {

std::string text_of(const Script::Command& command) {
    std::string out;
    for (const Word& w : command.words) out += fmt::format("[{}]", w.text);
    return out;
}

// The last command, its words in brackets.
std::string last_command(const std::string& script) {
    const Script read = read_script(script, "s.sh");
    return read.commands.empty() ? "" : text_of(read.commands.back());
}

// Each script of bash.txt, and what `run` prints in bash: its words in brackets.
TEST(InteropShell, CommandsAreThoseOfBash) {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/interop/bash.txt");
    std::stringstream all;
    all << file.rdbuf();
    std::string text = all.str();
    int scripts = 0;
    for (size_t at = 0; at < text.size(); ++scripts) {
        const size_t arrow = text.find("\n--->\n", at), end = std::min(text.find("\n====\n", arrow), text.size());
        const std::string script = text.substr(at, arrow - at) + "\n";
        std::string wanted = text.substr(arrow + 6, end - arrow - 6), made;
        while (!wanted.empty() && wanted.back() == '\n') wanted.pop_back();
        const testing::ScratchFolder s;
        for (const Script::Command& c : read_script(script, s.path("s.sh")).commands) made += text_of(c) + "\n";
        if (!made.empty()) made.pop_back();
        EXPECT_EQ(made, wanted) << script;
        at = end + 6;
    }
    EXPECT_GT(scripts, 60);
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
                      Case{"run a\\ b '$X' \\$X", "[run][a b][$X][$X]"}, Case{"X=1 run a", "[run][a]"},
                      Case{"run ${X:-8} ${Y-9}", "[run][8][9]"},
                      Case{"run $X ${X[@]} $1 $@ $(a b) `c d`", "[run][$X][${X[@]}][$1][$@][$(...)][$(...)]"},
                      Case{"run a > f 2>&1", "[run][a]"}, Case{"a; run b", "[run][b]"}, Case{"a && run b", "[run][b]"},
                      Case{"if a; then X=1; fi\nrun $X", "[run][$X]"}, Case{"f() {\n  X=1\n}\nrun $X", "[run][$X]"},
                      Case{"run a \r\n", "[run][a]"}, Case{"A=1\nif [ $A = 1 ] && [ $B = 1 ]; then X=1; fi\nrun $X", "[run][$X]"},
                      Case{"A=1\nX=0\nif [ ! -z \"$A\" ]; then if [ $B ]; then X=1; fi; fi\nrun $X", "[run][$X]"},
                      Case{"A=1\nX=0\nif [ $A -ne 1 ]; then if [ $B ]; then X=1; fi; fi\nrun $X", "[run][0]"},
                      Case{"if [ -z \"$X\" ]; then X=1; fi\nrun $X", "[run][1]"}, Case{"run $((2*N))", "[run][$((2*N))]"},
                      Case{"if a; then X=1; else X=1; fi\nrun $X", "[run][1]"},
                      Case{"if a; then X=1; exit; fi\nX=2; run $X", "[run][2]"},
                      Case{"f() { if a; then return; fi; X=2; }; X=1; f\nrun $X", "[run][$X]"},
                      Case{"for i in 1 2; do if a; then X=1; break; fi; done\nrun ${X:-none}", "[run][${X:-none}]"},
                      Case{"X=2\nbash -c \"python p.py --n $X\"", "[bash][-c]"}, Case{"", ""}, Case{"# a", ""}));

TEST(InteropShell, ACommandLineInAWordIsACommand) {
    const Script s = read_script("X=2\nbash -c \"python p.py \\\n --n $X\"", "s.sh");
    ASSERT_EQ(s.commands.size(), 2u);
    ASSERT_EQ(s.commands[0].words.size(), 4u);
    EXPECT_EQ(s.commands[0].words[2].text, "--n");
    EXPECT_EQ(s.commands[0].words[2].where, "s.sh:3");
    EXPECT_EQ(s.commands[0].words[3].text, "2");
}

// A variable that is not exported is not there in another process.
TEST(InteropShell, AnotherProcessHasWhatIsExported) {
    const Script s = read_script("export X=2; Y=3\nbash -c 'python p.py --n $X --m $Y'", "s.sh");
    EXPECT_EQ(text_of(s.commands[0]), "[python][p.py][--n][2][--m][$Y]");
}

TEST(InteropShell, HereDocumentsAreKept) {
    const testing::ScratchFolder folder;
    const Script s = read_script("N=3\ncat <<EOF > f.json\n{\"a\": $N}\nEOF\ncat > g <<'X'\n$N\nX\nrun a", folder.path("s.sh"));
    EXPECT_EQ(s.files.at(folder.path("f.json")).text, "{\"a\": 3}\n");
    EXPECT_EQ(s.files.at(folder.path("g")).text, "$N\n");
    EXPECT_EQ(s.commands.back().words.front().text, "run");
}

TEST(InteropShell, SaysWhyAValueIsNotKnown) {
    const auto why = [](const std::string& script) {
        const Script s = read_script(script, "s.sh");
        return s.commands.back().words.back().why;
    };
    EXPECT_EQ(why("if a; then X=1; fi\nrun $X"),
              "X is set on line 1 inside `if` on line 1, and which way a run takes is not known: whether `a` succeeds is known "
              "to a run "
              "alone");
    EXPECT_EQ(why("run a${Y}b"), "Y is not set in the script");
    EXPECT_EQ(why("run $1"), "$1 is what the script is called with");
    EXPECT_EQ(why("run $((2*N))"), "N is not set in the script");
    EXPECT_EQ(why("run $(nproc)"), "the output of `nproc` is known to a run alone");
}

TEST(InteropShell, RefusesWhatIsNeverClosed) {
    for (const char* script :
         {"run 'a", "run \"a", "run `a", "run $(a", "run ${a", "A=(a", "cat <<E\na", "if a; then b", "f() {", "case a in"})
        EXPECT_THROW(read_script(script, "s.sh"), UserError) << script;
}

// What would not end, or would fill the memory, is refused.
TEST(InteropShell, Ends) {
    std::string doubled = "A=aaaaaaaaaa\n", nested = "run ";
    for (int i = 0; i < 40; ++i) doubled += "A=$A$A\n";
    for (int i = 0; i < 400; ++i) nested += "$(echo ";
    for (int i = 0; i < 400; ++i) nested += ")";
    std::string ifs;
    for (int i = 0; i < 300; ++i) ifs += fmt::format("if a; then X{}=1; fi\n", i);
    for (const std::string& script :
         {doubled, nested, std::string("f() { f; }; f"), std::string("i=0; while true; do i=$((i+1)); done"),
          std::string("for ((;;)); do i=$((i+1)); done"), std::string("source s.sh"), std::string("x='eval $x'; eval $x"),
          std::string("a=b; b=a; run $((a))"), std::string("run {1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}"),
          "while :; do " + ifs + " done"}) {
        try {
            read_script(script, "s.sh");
        } catch (const UserError&) {
        }
    }
}

TEST(InteropArithmetic, IsThatOfAShell) {
    const Names names{[](const std::string& name) { return name == "x" ? std::optional<std::string>("5") : std::nullopt; }, {}};
    const auto number = [&](const char* text) { return evaluate(text, names); };
    EXPECT_EQ(number("1 + 2 * 3"), 7);
    EXPECT_EQ(number("(1 + 2) * -3"), -9);
    EXPECT_EQ(number("x / 2 + x % 3"), 4);
    EXPECT_EQ(number("1 << 2 | 1"), 5);
    EXPECT_EQ(number("2 ** 3 ** 2"), 512);
    EXPECT_EQ(number("x > 4 ? 1 : y"), 1);
    EXPECT_EQ(number("0 && y || 010 == 8"), 1);
    for (const char* text : {"y", "1 +", "(1", "1 / 0", "1 2", "9223372036854775807 + 1", "1 << 70", "08", "x = 3"})
        EXPECT_EQ(number(text), std::nullopt) << text;
}

TEST(InteropHjson, IsWhatPeopleWrite) {
    const auto json = parse_hjson("{\n # a\n // b\n /* c */ a: 1, \"b\": [1, 2,]\n c: two words\n d: {e: true},\n 'f': null }");
    EXPECT_EQ(json, nlohmann::json::parse(R"({"a": 1, "b": [1, 2], "c": "two words", "d": {"e": true}, "f": null})"));
    for (const char* text : {"{", "{a}", "{a: ", "[1", "{\"a: 1}", "{a: 1} b", "/* a"})
        EXPECT_THROW(parse_hjson(text), std::runtime_error) << text;
}

}  // namespace
}  // namespace lockstep::interop
