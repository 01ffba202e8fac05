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
              "only to a run");
    EXPECT_EQ(why("run a${Y}b"), "Y is not set in the script");
    EXPECT_EQ(why("run $1"), "$1 is what the script is called with");
    EXPECT_EQ(why("run $((2*N))"), "N is not set in the script");
    EXPECT_EQ(why("X=a$Y\nrun ${X/a/b}"), "a part of X is not known: Y is not set in the script");
    EXPECT_EQ(why("X=$Y-48\nrun ${X##*-}"), "");
    EXPECT_EQ(why("X=48-$Y\nrun ${X%%-*}"), "");
    EXPECT_EQ(why("X=48-$Y\nrun ${X##*-}"), "a part of X is not known: Y is not set in the script");
    EXPECT_EQ(why("X=$(if [ -d /a ]; then :; else echo 1; fi)\nrun $X"),
              "$(...) depends on `if` on line 1, and which way a run takes is not known: only a run knows what is at /a");
    EXPECT_EQ(why("run $(nproc)"), "the output of `nproc` is known only to a run");
}

TEST(InteropShell, RefusesWhatIsNeverClosed) {
    for (const char* script : {"if a; then\nfi", "while a; do done", "run 'a", "run \"a", "run `a", "run $(a", "run ${a", "A=(a",
                               "cat <<E\na", "if a; then b", "f() {", "case a in"})
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

// What bash 5.2 prints for each, where a value that is not exact would be a silent error.
INSTANTIATE_TEST_SUITE_P(
    Exact, InteropShell,
    ::testing::Values(
        Case{"read -r -d '' A <<E\n--a 1\n--b 2\nE\nrun $? $A", "[run][1][--a][1][--b][2]"},
        Case{"n=0\nwhile read x; do n=$((n+1)); done < <(printf 'a\\nb')\nrun $n", "[run][1]"},
        Case{"IFS=', ' read -ra A <<< '1 , 48, 3'\nrun ${A[@]}", "[run][1][48][3]"},
        Case{"read A B <<< '1 2 3 '\nrun \"$A\" \"$B\"", "[run][1][2 3]"},
        Case{"TP=1\nexport TP=2 S=4$TP\nrun $TP $S", "[run][2][41]"},
        Case{"n=5\nf() { local n=$1 m=$((n*2)); run $n $m; }\nf 40", "[run][40][10]"},
        Case{"export S={48,64}\nrun $S", "[run][64]"}, Case{"readonly S=48\nS=64\nrun $S", "[run][48]"},
        Case{"declare -u M=abc\nrun $M", "[run][ABC]"}, Case{"TP=2\nrun $[TP*2] $[ TP + 1 ]", "[run][4][3]"},
        Case{"A=(1 2)\nA[${#A[@]}]=48\nrun ${A[2]}", "[run][48]"},
        Case{"I=(1 2)\nA=(7 8 9)\nA[${I[0]}]=48\nrun ${A[@]} $((A[I[1]]))", "[run][7][48][9][9]"},
        Case{"f() { local -n o=$1; o=48; }\nf S\nrun $S", "[run][48]"},
        Case{"declare -n R=S\nS=1\nR=2\nrun $S $R", "[run][2][2]"}, Case{"A=(1 48 3)\nunset 'A[-1]'\nrun ${A[-1]}", "[run][48]"},
        Case{"run {a..c} {08..10} {-1..1} {3..1}", "[run][a][b][c][08][09][10][-1][0][1][3][2][1]"},
        Case{"[[ ctx48k =~ (4|48) ]] && run ${BASH_REMATCH[1]}", "[run][48]"},
        Case{"X=$'a\\n48'\n[[ $X =~ a.([0-9]+) ]] && run ${BASH_REMATCH[1]}", "[run][48]"},
        Case{"A=([2]=a [5]=b [7]=c)\nrun \"${A[@]:3:2}\"", "[run][b][c]"}, Case{"X=4\nrun ${X/%/8} ${X/#/p}", "[run][48][p4]"},
        Case{"A=(a b)\nrun \"${A[@]/#/--}\"", "[run][--a][--b]"}, Case{"X=12\nrun \"${X: -3}\" ${X: -1}", "[run][][2]"},
        Case{"set -- 1 2 48\nrun ${@: -1} ${@:2}", "[run][48][2][48]"}, Case{"run $(printf %d 010)", "[run][8]"},
        Case{"run $(printf '4\\n9\\n8\\n' | grep -c -e 4 -e 8)", "[run][2]"},
        Case{"run $(echo ctx48k | grep -oP '\\d+')", "[run][48]"},
        Case{"run $(printf '4\\n48\\n' | grep -w 4) $(printf '48\\n4\\n' | grep -m1 4)", "[run][4][48]"},
        Case{"run $(echo 'a ${SEQ} $B' | sed \"s/\\${SEQ}/48/\")", "[run][a][48][$B]"},
        Case{"run $(echo 4x 4 | sed 's/\\<4\\>/8/') $(echo llama | sed 's/l\\(.*\\)/L\\U\\1/')", "[run][4x][8][LLAMA]"},
        Case{"A=(1 2)\nIFS=+\nrun $(( ${A[*]} )) \"${A[*]}\" \"${A[@]}\"", "[run][3][1+2][1][2]"},
        Case{"OLD=$IFS; IFS=,; X=a,b; set -- $X; IFS=$OLD\nY='c d'\nrun $1 $Y", "[run][a][c][d]"},
        Case{"A=(1 '2 3')\nrun \"${A[@]+\"${A[@]}\"}\" ${B[@]+\"${B[@]}\"}", "[run][1][2 3]"},
        Case{"set -- ${Q:-\"a b\" c}\nrun \"$1\" $2", "[run][a b][c]"}, Case{"M_A=1 M_B=2\nrun ${!M_*}", "[run][M_A][M_B]"},
        Case{"set -e\nexport N=$(echo abc | grep -c zz)\nrun $N", "[run][0]"},
        Case{"X=\nif [ $X -gt 1 ]; then Y=1; else Y=2; fi\nif [ a -gt 1 ]; then Z=1; else Z=2; fi\nrun $Y $Z", "[run][2][2]"},
        Case{"declare -A M=([a]=1)\nA=(1 2)\n[[ -v M[b] ]] || X=1\n[[ -v A[1] ]] && Y=1\nrun $X $Y", "[run][1][1]"},
        Case{"for i in 1 2; do for j in 1 2; do continue 2; done; done\nfor i in 1 2; do X=$i; continue 3; X=0; done\nrun $X",
             "[run][2]"},
        Case{"set -- -x\nwhile getopts ':s:' o; do run $o $OPTARG; done", "[run][?][x]"},
        Case{"set -- -s\nwhile getopts ':s:' o; do run $o $OPTARG; done", "[run][:][s]"},
        Case{"export S=32\nenv S=48 true\nrun $S", "[run][32]"},

        Case{"S=48\ncat <<E | bash -s 1\nrun $S \\$1\nE", "[run][48][1]"}, Case{"source <(echo S=48)\nrun $S", "[run][48]"},
        Case{". /dev/stdin <<< S=48\nrun $S", "[run][48]"}, Case{"mapfile -t A < <(seq 3 5)\nrun ${A[2]}", "[run][5]"},
        Case{"run $((16#30))", "[run][48]"}, Case{"set -eo pipefail\nrun 1\nfalse | true\nrun 2", "[run][1]"},
        Case{"set -u\nunset X\nrun 1\nY=$X\nrun 2", "[run][1]"}, Case{"X=$((N+1))\nrun ${X:-32}", "[run][${X:-32}]"},
        Case{"X=4\nrun ${X/4/&8}", "[run][${X/4/&8}]"}));

// What another shell is started with: its arguments, and the variables that are exported.
TEST(InteropShell, AnotherShellHasItsArguments) {
    for (const auto& [script, words] :
         {Case{"env S=48 bash -c 'run $S'", "[run][48]"}, Case{"srun --export=ALL,S=48 bash -c 'run $S'", "[run][48]"},
          Case{"set -- 16\nbash -ec 'run $1 \"$@\"' _ 48", "[run][48][48]"},
          Case{"set -a\nS=48\nset +a\nbash -c 'run $S'", "[run][48]"},
          Case{"export S=1\nexport -n S\nbash -c 'run ${S:-2}'", "[run][2]"},
          Case{"f() { run $1; }\nexport -f f\nbash -c 'f 48'", "[run][48]"}}) {
        const Script s = read_script(script, "s.sh");
        ASSERT_EQ(s.commands.size(), 2u) << script;
        EXPECT_EQ(text_of(s.commands[0]), words) << script;
    }
}

// Files that a script changes, in forms that are computed and in others.
TEST(InteropShell, ChangedFilesAreRead) {
    const testing::ScratchFolder s;
    s.write("x.env", "S=32\n");
    s.write("sub/env.sh", "D=$(dirname ${BASH_SOURCE[0]})\n. $D/y.env\n");
    s.write("sub/child", ". $(dirname $0)/y.env\nrun $S $1\n");
    s.write("sub/y.env", "S=48\n");
    s.write("y.env", "S=64\n");
    const auto last = [&](const std::string& text) {
        const Script read = read_script(text, s.path("s.sh"));
        return read.commands.empty() ? "" : text_of(read.commands.back());
    };
    for (const char* change : {"sed -i 's/32/48/' x.env", "sed -i.bak 's/32/48/' x.env y.env", "sed -i '/^S=/c\\S=48' x.env",
                               "sed -i '$ a S=48' x.env", "sed -i 'y/32/48/' x.env", "cp -f sub/y.env x.env",
                               "mv -f sub/y.env ./x.env", "ln -sf sub/y.env x.env", "rm x.env; echo S=48 >> x.env"})
        EXPECT_EQ(last(std::string(change) + "\nsource x.env\nrun $S"), "[run][48]") << change;
    EXPECT_EQ(last("source sub/env.sh\nrun $S"), "[run][48]");
    EXPECT_EQ(last("bash -x sub/child 2"), "[run][48][2]");
    EXPECT_EQ(last("bash < sub/y.env\npushd sub\npopd\n. y.env\nrun $S"), "[run][64]");
    EXPECT_EQ(last("rm -f x.env\nif [ -f x.env ]; then S=1; else S=2; fi\nrun $S"), "[run][2]");
    EXPECT_EQ(last("cd sub\nwhile [ ! -f x.env ]; do cd ..; done\n. x.env\nrun $S"), "[run][32]");
    for (const char* change : {"perl -pi -e 's/32/48/' x.env", "sed -i 'N;s/32/48/' x.env", "cp $UNKNOWN x.env"}) {
        const Script read = read_script("S=1\n" + std::string(change) + "\nsource x.env\nrun $S ${T:-2}", s.path("s.sh"));
        EXPECT_EQ(read.unread.size(), 1u) << change;
        EXPECT_NE(read.commands.back().words.at(1).why, "") << change;
        EXPECT_NE(read.commands.back().words.at(2).why, "") << change;
    }
}

// What would take long is refused at once.
TEST(InteropShell, IsRefusedBySize) {
    std::string doubled = "set -- a a\n", recursive = "f() { f \"$@\" \"$@\"; }\nf a";
    for (int i = 0; i < 40; ++i) doubled += "set -- \"$@\" \"$@\"\n";
    std::string text(4000, 'a');
    std::string patterns = "X=" + text + "\n";
    for (int i = 0; i < 400; ++i) patterns += "Y=${X//*a*a*a*b/c}\n";
    for (const std::string& script : {doubled, recursive, patterns}) EXPECT_THROW(read_script(script, "s.sh"), UserError);
    const auto refusal = [](const std::string& script) {
        try {
            read_script(script, "s.sh");
            return std::string();
        } catch (const UserError& e) {
            return std::string(e.what());
        }
    };
    EXPECT_NE(refusal(std::string(2 << 20, '\n')).find("has 2097152 bytes, and scripts of up to 1048576 are read"),
              std::string::npos);
    EXPECT_NE(refusal(std::string("run\na\0b", 7)).find("s.sh:2: has a byte 0"), std::string::npos);
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
