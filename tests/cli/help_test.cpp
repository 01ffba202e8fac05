// What a newcomer types first: no command, `help`, keys without their dashes, a command without its "--".
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

TEST(CliHelp, LockstepAlonePrintsTheHelpAsWrongUsage) {
    const Scratch s;
    const Finished alone = s.lockstep(""), asked = s.lockstep("--help"), word = s.lockstep("help");
    EXPECT_EQ(alone.code, 2);
    EXPECT_TRUE(has(alone.err, "a subcommand is required, as in lockstep train recipe.toml")) << alone.err;
    EXPECT_EQ(asked.code, 0);
    EXPECT_EQ(word.code, 0);
    EXPECT_EQ(alone.out, asked.out);
    EXPECT_EQ(word.out, asked.out);
}

TEST(CliHelp, CommandsStandInGroups) {
    const std::string help = Scratch().lockstep("--help").out;
    size_t before = 0;
    for (const char* part :
         {"Usage: lockstep ", "\nTrain:\n", "\n  new ", "\n  train ", "\nPlan:\n", "\n  check ", "\n  clusters ",
          "\nData and models:\n", "\n  data ", "\nTools:\n", "\n  help ", "`lockstep COMMAND --help`"}) {
        const size_t at = help.find(part);
        ASSERT_NE(at, std::string::npos) << part << " in\n" << help;
        EXPECT_GE(at, before) << part;
        before = at;
    }
}

TEST(CliHelp, HelpOfACommandIsItsHelpFlag) {
    const Scratch s;
    for (const char* command : {"train", "tune", "data", "data prepare", "new"}) {
        const Finished word = s.lockstep(std::string("help ") + command), flag = s.lockstep(std::string(command) + " --help");
        EXPECT_EQ(word.code, 0) << command;
        EXPECT_EQ(word.out, flag.out) << command;
        EXPECT_TRUE(has(word.out, std::string("Usage: lockstep ") + command)) << word.out;
    }
}

}  // namespace
}  // namespace lockstep::testing
