// Scripts in the manner of public ones, and the recipes that they become. In scripts/*.sh a line "#? FLAGS" has the flags of
// `lockstep recipe --from`, and each line "#= KEY = VALUE" a key of the recipe.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "interop/read.h"
#include "interop/shell.h"
#include "tests/base/scratch_folder.h"
#include "tests/paths.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;
const fs::path kScripts = fs::path(LOCKSTEP_SOURCE_DIR) / "tests/interop/scripts";

struct Wanted {
    ReadOptions options;
    std::vector<std::pair<std::string, std::string>> keys;
};

std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> out;
    const Script script = read_script("run " + text, "s.sh");
    for (const Word& w : script.commands.at(0).words) out.push_back(w.text);
    out.erase(out.begin());
    return out;
}

Wanted wanted_of(const fs::path& script) {
    Wanted out;
    std::ifstream lines(script);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("#= ")) {
            const size_t equals = line.find(" = ");
            out.keys.emplace_back(line.substr(3, equals - 3), line.substr(equals + 3));
        }
        if (!line.starts_with("#? ")) continue;
        const std::vector<std::string> words = words_of(line.substr(3));
        for (size_t i = 0; i + 1 < words.size(); i += 2) {
            const size_t equals = words[i + 1].find('=');
            if (words[i] == "--script-args")
                out.options.script.arguments = words_of(words[i + 1]), out.options.script.has_arguments = true;
            if (words[i] == "--script-env")
                out.options.script.environment.emplace_back(words[i + 1].substr(0, equals), words[i + 1].substr(equals + 1));
            if (words[i] == "--leave-out") out.options.leave_out.push_back(words[i + 1]);
        }
    }
    return out;
}

std::vector<std::string> scripts_with_keys() {
    std::vector<std::string> out;
    for (const auto& file : fs::directory_iterator(kScripts)) {
        if (!wanted_of(file.path()).keys.empty()) out.push_back(file.path().filename().string());
    }
    std::sort(out.begin(), out.end());
    return out;
}

// As it would stand in TOML. Keys of a model's shape are in its attributes.
std::string value_in(const compile::Recipe& recipe, const std::string& key) {
    if (!key.starts_with("model.") || key == "model.name" || key == "model.flavor") return compile::text_of(recipe.value(key));
    const ir::Attrs shape = recipe.model_shape();
    const auto& value = shape.at(key.substr(6));
    if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
    return compile::text_of(std::get<double>(value));
}

class InteropScripts : public ::testing::TestWithParam<std::string> {};

TEST_P(InteropScripts, BecomesTheRecipeOfItsRun) {
    const fs::path script = kScripts / GetParam();
    const Wanted wanted = wanted_of(script);
    const Reading r = read(script.string(), wanted.options);
    EXPECT_EQ(r.kind, Reading::Kind::Megatron);
    for (const auto& [key, value] : wanted.keys) EXPECT_EQ(value_in(r.recipe, key), value) << key;
}

INSTANTIATE_TEST_SUITE_P(Manner, InteropScripts, ::testing::ValuesIn(scripts_with_keys()), [](const auto& info) {
    std::string name = info.param.substr(0, info.param.find('.'));
    return name;
});

// What bash makes of TP: the run of each has it as the tensor-parallel degree.
struct Line {
    const char *name, *text;
    int degree;
};

class InteropDegree : public ::testing::TestWithParam<Line> {};

const char* const kRun =
    "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 32 "
    "--max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --bf16 "
    "--mock-data "
    "--tensor-model-parallel-size ";

TEST_P(InteropDegree, IsThatOfBash) {
    const testing::ScratchFolder s;
    s.write("sizes.env", "export TP=4\n");
    s.write("s.sh", std::string("#!/bin/bash\n") + GetParam().text + kRun + "$TP\n");
    EXPECT_EQ(read(s.path("s.sh")).recipe.integer("parallelism.tensor_parallel_degree"), GetParam().degree) << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Lines, InteropDegree,
    ::testing::Values(Line{"And", "TP=1\n[ \"$TP\" = \"8\" ] && TP=2", 1}, Line{"Or", "TP=1\n[ \"$TP\" = \"1\" ] || TP=2", 1},
                      Line{"Source", "TP=1\nsource sizes.env", 4}, Line{"Dot", "TP=1\n. ./sizes.env", 4},
                      Line{"Subshell", "TP=2\n( TP=4; echo $TP )", 2}, Line{"Unset", "TP=4\nunset TP\nTP=${TP:-2}", 2},
                      Line{"Let", "TP=1\nlet TP=TP*2", 2}, Line{"BeforeCommand", "TP=2\nTP=4 echo hello", 2},
                      Line{"Cut", "N=tp2_x\nTP=${N#tp}\nTP=${TP%%_*}", 2}, Line{"Element", "S=(1 2 4)\nTP=${S[1]}", 2},
                      Line{"Declare", "declare -i TP=2", 2}, Line{"Default", ": ${TP:=2}", 2},
                      Line{"Case", "S=8b\ncase $S in\n  8b) TP=2 ;;\n  70b) TP=4 ;;\nesac", 2}, Line{"Eval", "eval 'TP=2'", 2},
                      Line{"Pipe", "TP=2\necho 4 | read TP", 2}, Line{"Background", "TP=2\nTP=4 &", 2},
                      Line{"Substitution", "TP=2\nX=$(TP=4; echo $TP)", 2}, Line{"Quoted", "TP=2; : '\nTP=4\n'", 2},
                      Line{"Comment", "TP=2 # TP=4", 2}, Line{"Document", "TP=2\ncat <<E >/dev/null\nTP=4\nE", 2},
                      Line{"Uncalled", "TP=2\nf() { TP=4; }", 2}, Line{"Called", "TP=2\nf() { TP=4; }; f", 4},
                      Line{"Local", "TP=2\nf() { local TP=4; }; f", 2}, Line{"Returned", "TP=2\nf() { return; TP=4; }; f", 2},
                      Line{"Exited", "TP=2\n(exit; TP=4)", 2}, Line{"Break", "for TP in 1 2 4; do [ $TP = 2 ] && break; done", 2},
                      Line{"Arithmetic", "TP=1; ((TP+=1))", 2}, Line{"ForCount", "for ((TP=0; TP<2; TP++)); do :; done", 2},
                      Line{"Length", "S=ab\nTP=${#S}", 2}, Line{"Replace", "S=x2\nTP=${S/x/}", 2},
                      Line{"Table", "declare -A T=([a]=2)\nk=a\nTP=${T[$k]}", 2}, Line{"Words", "TP=$(wc -w <<< 'a b')", 2},
                      Line{"Negated", "TP=2\n! true && TP=4", 2},
                      Line{"Errexit", "set -e\nTP=2\nfalse || TP=2\nif false; then TP=4; fi", 2},
                      Line{"Positional", "set -- 1 2 4\nshift\nTP=$1", 2}, Line{"Indirect", "N=2\nR=N\nTP=${!R}", 2},
                      Line{"Read", "IFS=, read A TP <<< '1,2'", 2}, Line{"Printf", "printf -v TP '%d' 2", 2}),
    [](const auto& info) { return std::string(info.param.name); });

// A reason is true, and says how the value can be given.
TEST(InteropScripts, SaysWhyAValueIsNotKnown) {
    const testing::ScratchFolder s;
    const auto refusal = [&](const std::string& text, const ReadOptions& options = {}) {
        s.write("s.sh", "#!/bin/bash\n" + text + kRun + "$TP\n");
        try {
            read(s.path("s.sh"), options);
            return std::string();
        } catch (const UserError& e) {
            return std::string(e.what());
        }
    };
    const auto has = [&](const std::string& script, const std::string& text) {
        const std::string what = refusal(script);
        EXPECT_NE(what.find(text), std::string::npos) << script << "\n" << what;
    };
    has("", "TP is not set in the script; give it (`lockstep recipe --from " + s.path("s.sh") + " --script-env TP=VALUE`)");
    has("TP=$(nproc)", "the output of `nproc` is known only to a run");
    has("if [ $1 = 8b ]; then TP=2; else TP=4; fi",
        "TP is set on line 2 inside `if` on line 2, and which way a run takes is not known: $1 is what the script is called "
        "with; "
        "give it");
    has("TP=2\nnvidia-smi && TP=4", "TP is set on line 3 inside `&&` on line 3");
    has("TP=2\n[ -f /etc/big ] && TP=4", "only a run knows what is at /etc/big");
    has("TP=2\nsource absent.env", "TP is set on line 2, and `source absent.env` on line 3, which is not known, may change it");
    has("TP=2\nfor f in *.json; do TP=4; done", "only a run knows which files *.json stands for");
    has("TP=2\nwhile nc -z a; do TP=4; done", "inside `while` on line 3");
    has("read TP", "TP is read from the input of a command on line 2");
    has("TP=$RANDOM", "$RANDOM is known only to a run");
    has("exit 1", "ends on line 2, by `exit`, before it starts a run");
    has("TP=${1:?which size}", "needs $1 (\"which size\")");
    has("while true; do X=$((X+1)); done", "whose loop never ends");
    has("i=0; while true; do i=$((i+1)); done", "or never ends");
    has("f() { f; }; f", "too deeply");
    ReadOptions given;
    given.script.has_arguments = true, given.script.arguments = {"8b"};
    EXPECT_EQ(refusal("if [ $1 = 8b ]; then TP=2; else TP=4; fi", given), "");
    given.script.environment = {{"TP", "2"}};
    EXPECT_EQ(refusal("", given), "");
}

TEST(InteropScripts, SecondRunsAreRefusedWithWhatDecides) {
    const testing::ScratchFolder s;
    const auto refusal = [&](const std::string& text) {
        s.write("s.sh", "#!/bin/bash\n" + text);
        try {
            read(s.path("s.sh"));
            return std::string();
        } catch (const UserError& e) {
            return std::string(e.what());
        }
    };
    const std::string run = std::string(kRun) + "1";
    EXPECT_NE(refusal("if [ $MODE = a ]; then" + run + "\nelse" + run + " --swiglu\nfi").find("--script-env MODE=VALUE"),
              std::string::npos);
    EXPECT_NE(refusal("for l in 1 2; do" + run + " --lr $l\ndone")
                  .find("starts several runs, as it is in a loop: one with 1, another with 2"),
              std::string::npos);
    EXPECT_EQ(refusal("while true; do" + run + "\nsleep 1; done"), "");  // the same again
}

}  // namespace
}  // namespace lockstep::interop
