// Locks on folders, and files that have their name only when they are on the disk.
#include "base/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/system_calls.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

TEST(OutputFile, GetsItsNameWhenItIsOnTheDisk) {
    const ScratchFolder s;
    const SystemCalls calls;
    {
        AtomicFile file(s.path("f"));
        file.append("hello");
        file.write_at(0, "j");
        file.finish();
        EXPECT_FALSE(fs::exists(s.path("f")));
        file.publish();
    }
    EXPECT_EQ(s.read("f"), "jello");
    const std::string folder = fs::path(s.path("f")).parent_path().filename().string();
    EXPECT_EQ(calls.log(),
              (std::vector<std::string>{"write f.partial", "write f.partial", "fsync f.partial", "rename f", "fsync " + folder}));
}

TEST(OutputFile, TakesNoFoldersAndNoDevicesPlace) {
    ScratchFolder s;
    fs::create_directories(s.path("folder"));
    s.write("folder/precious", "text");
    ASSERT_EQ(::mkfifo(s.path("pipe").c_str(), 0600), 0);
    for (const auto& [name, what] : {std::pair{"folder", "it is a folder"}, {"pipe", "it is a device or a pipe"}}) {
        try {
            AtomicFile file(s.path(name));
            FAIL() << name;
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "file.cannot_write");
            EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
        }
    }
    EXPECT_EQ(s.read("folder/precious"), "text");
}

TEST(OutputFile, LeftoversGoAndOnlyThey) {
    const ScratchFolder s;
    s.write("kept", "");
    s.write("f.partial", "");
    fs::create_directories(s.path("step.partial/inside"));
    fs::create_directories(s.path("deep/x.partial"));
    remove_partial(fs::path(s.path("kept")).parent_path());
    EXPECT_TRUE(fs::exists(s.path("kept")));
    EXPECT_FALSE(fs::exists(s.path("f.partial")));
    EXPECT_FALSE(fs::exists(s.path("step.partial")));
    EXPECT_TRUE(fs::exists(s.path("deep/x.partial")));
    remove_partial(s.path("absent"));
}

TEST(FolderLock, NamesTheProcessThatHasIt) {
    const ScratchFolder s;
    {
        const FolderLock lock(s.path("a/b"));
        try {
            const FolderLock second(s.path("a/b"));
            ADD_FAILURE();
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "folder.in_use");
            char host[256] = "";
            gethostname(host, sizeof host);
            EXPECT_EQ(e.what(), s.path("a/b") + " is in use by process " + std::to_string(getpid()) + " on " + host +
                                    ": wait for it to end, or choose another folder");
        }
        const FolderLock other(s.path("a/c"));
    }
    const FolderLock again(s.path("a/b"));
}

TEST(FolderLock, EndsWithItsProcess) {
    const ScratchFolder s;
    EXPECT_FALSE(survives([&] {
        const FolderLock lock(s.path("a"));
        raise(SIGKILL);
    }));
    const FolderLock lock(s.path("a"));
}

TEST(Checksum, IsXxh3AsItsProgramPrintsIt) {
    EXPECT_EQ(hex_checksum(""), "2d06800538d394c2");  // of the specification of XXH3-64
    EXPECT_EQ(checksum("a") == checksum("b"), false);
}

}  // namespace
}  // namespace lockstep::testing
