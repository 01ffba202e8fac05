// What `lockstep completion`, `lockstep man` and `lockstep --version` print, used as shells and readers use it.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

// What bash offers for the last of `words`.
std::string completed_by_bash(const Scratch& scratch, const std::string& words) {
    scratch.write("complete.sh", R"(source completion.bash
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_lockstep
echo "${COMPREPLY[@]}"
)");
    const Finished f =
        scratch.shell("$LOCKSTEP completion bash > completion.bash && bash complete.sh " + words + " >out.txt 2>err.txt");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.err, "");
    return f.out;
}

TEST(CliCompletion, BashOffersCommandsFlagsKeysAndFiles) {
    const Scratch scratch;
    EXPECT_EQ(completed_by_bash(scratch, "lockstep tra"), "train\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep data ''"), "prepare --help\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep data prepare --overw"), "--overwrite\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep train r.toml --training.ste"), "--training.steps\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep schedule --ste"), "\n");
    scratch.write("my_recipe.toml", "");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep check my_r"), "my_recipe.toml\n");
}

TEST(CliCompletion, BashOffersNamesAndValues) {
    const Scratch scratch;
    EXPECT_EQ(completed_by_bash(scratch, "lockstep plan r.toml --cluster h10"), "h100 h100_500w h100_expected\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep plan r.toml --cluster.file selen"), "selene\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep plan r.toml --cluster.stack torchtitan_e"), "torchtitan_eager\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep plan llama3_8b_torchtitan_"), "llama3_8b_torchtitan_pp\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep train r.toml --training.mixed_precision_param bfl"), "bfloat16\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep train r.toml --checkpoint.enable t"), "true\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep train r.toml --checkpoint.enable = f"), "false\n");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep train r.toml --log-format j"), "json\n");
    scratch.write("h1_mine.toml", "");
    EXPECT_EQ(completed_by_bash(scratch, "lockstep plan r.toml --cluster h1"), "h100 h100_500w h100_expected h1_mine.toml\n");
}

TEST(CliCompletion, OtherShellsReadTheirs) {
    const Scratch scratch;
    int shells = 0;
    for (const std::string shell : {"zsh", "fish"}) {
        if (scratch.shell("command -v " + shell + " >out.txt 2>err.txt").code != 0) continue;
        ++shells;
        const Finished f = scratch.shell("$LOCKSTEP completion " + shell + " > c && " + shell + " -n c >out.txt 2>err.txt");
        EXPECT_EQ(f.code, 0) << shell << ": " << f.err;
    }
    if (shells == 0) GTEST_SKIP() << "neither zsh nor fish is installed";
}

TEST(CliCompletion, AnUnknownShellIsRefused) {
    const Finished f = Scratch().lockstep("completion tcsh");
    EXPECT_EQ(f.code, 2);
    EXPECT_NE(f.err.find("tcsh"), std::string::npos) << f.err;
}

TEST(CliMan, ThePageHasEveryCommandAndFlag) {
    const Finished f = Scratch().lockstep("man");
    EXPECT_EQ(f.code, 0);
    for (const char* part : {".TH LOCKSTEP 1", ".SS lockstep train recipe", ".SS lockstep data prepare inputs",
                             "\\-\\-trace\\-step", ".SH EXIT STATUS"})
        EXPECT_NE(f.out.find(part), std::string::npos) << part;
}

TEST(CliVersion, NamesCommitCompilerInstructionSetAndMpi) {
    const Finished f = Scratch().lockstep("--version");
    EXPECT_EQ(f.code, 0);
    EXPECT_EQ(f.out.rfind("lockstep 0.1.0 (", 0), 0u) << f.out;
    for (const char* part : {"kernels: CPU, ", "ranks: threads, "}) EXPECT_NE(f.out.find(part), std::string::npos) << f.out;
    for (const char* part : {"GCC ", "clang "}) {
        if (f.out.find(part) != std::string::npos) return;
    }
    ADD_FAILURE() << f.out;
}

}  // namespace
}  // namespace lockstep::testing
