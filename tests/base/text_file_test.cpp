#include "base/text_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/base/scratch_folder.h"

namespace lockstep::testing {
namespace {

TEST(TextFile, IsReadWhole) {
    ScratchFolder s;
    std::string long_text;
    for (int i = 0; i < 20000; ++i) long_text += std::to_string(i) + '\0' + "\r\n";  // several reads, every byte as it is
    for (const std::string& text : {std::string(), std::string("one line"), long_text}) {
        s.write("file", text);
        const TextFile file = read_text_file(s.path("file"));
        EXPECT_TRUE(file.is_readable());
        EXPECT_EQ(file.text, text);
    }
}

TEST(TextFile, SaysWhyItCannotBeRead) {
    ScratchFolder s;
    EXPECT_EQ(read_text_file(s.path("none")).reason, "No such file or directory");
    EXPECT_EQ(read_text_file(s.path(".")).reason, "Is a directory");
    s.write("file", "text");
    const TextFile below = read_text_file(s.path("file/none"));
    EXPECT_EQ(below.reason, "Not a directory");
    EXPECT_FALSE(below.is_readable());
    EXPECT_EQ(below.text, "");
    EXPECT_EQ(read_text_file("/dev/zero").reason, "it is a device, not a file");
    s.write("long", "");
    std::filesystem::resize_file(s.path("long"), (int64_t{1} << 30) + 1);
    EXPECT_EQ(read_text_file(s.path("long")).reason, "it is longer than 1 GiB, so it is no text file of Lockstep");
}

TEST(TextFile, APipeIsReadIfSomebodyWritesAndNeverWaitedFor) {
    ScratchFolder s;
    ASSERT_EQ(::mkfifo(s.path("pipe").c_str(), 0600), 0);
    EXPECT_EQ(read_text_file(s.path("pipe")).reason, "it is a pipe that nobody writes to");
    std::string long_text(200000, 'x');  // more than a pipe holds
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::thread writer([&] {
        for (size_t done = 0; done < long_text.size();) {
            const ssize_t got = ::write(ends[1], long_text.data() + done, long_text.size() - done);
            if (got <= 0) break;
            done += static_cast<size_t>(got);
        }
        ::close(ends[1]);
    });
    EXPECT_EQ(read_text_file("/proc/self/fd/" + std::to_string(ends[0])).text, long_text);
    writer.join();
    ::close(ends[0]);
}

TEST(TextFile, WhatACommandFindsItselfIsNeverWaitedFor) {
    ScratchFolder s;
    ASSERT_EQ(::mkfifo(s.path("pipe").c_str(), 0600), 0);
    const int writer = ::open(s.path("pipe").c_str(), O_RDWR);  // it writes nothing
    EXPECT_EQ(read_text_file(s.path("pipe"), Pipes::Refused).reason, "it is a pipe, not a file");
    ::close(writer);
    std::filesystem::create_symlink("/dev/zero", s.path("zero"));
    EXPECT_EQ(read_text_file(s.path("zero"), Pipes::Refused).reason, "it is a device, not a file");
    EXPECT_FALSE(read_text_file("/proc/self/status", Pipes::Refused).text.empty()) << "a file without a size";
}

}  // namespace
}  // namespace lockstep::testing
