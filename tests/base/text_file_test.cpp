#include "base/text_file.h"

#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace lockstep::testing
