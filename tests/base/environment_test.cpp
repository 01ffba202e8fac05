// Variables of the environment are read and set in one file of cli; values come down as options. Libraries of vendors that read a
// variable themselves, and have no other switch, get it where they are opened.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>

#include "base/text_file.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

TEST(Environment, IsReadAndSetInOneFileOfCli) {
    const fs::path root = LOCKSTEP_SOURCE_DIR;
    const std::set<std::string> expected = {
        "src/cli/environment.cpp",
        "src/comm/nccl/nccl_transport.cpp",      // NCCL_NVLS_ENABLE, if the recipe has NCCL's sums
        "src/kernels/cuda/attention_plans.cpp",  // CUDNN_FRONTEND_*, for what this folder was built with
    };
    const auto uses = [](const std::string& text) {
        constexpr const char* kFunctions[] = {"getenv", "setenv", "putenv", "clearenv"};
        return std::any_of(std::begin(kFunctions), std::end(kFunctions),
                           [&](const char* f) { return text.find(f) != text.npos; });
    };
    std::set<std::string> found;
    for (const char* folder : {"src", "include", "python", "bench"}) {
        for (const fs::directory_entry& e : fs::recursive_directory_iterator(root / folder)) {
            const std::string kind = e.path().extension();
            if (kind != ".cpp" && kind != ".h" && kind != ".cu") continue;
            if (uses(read_text_file(e.path()).text)) found.insert(fs::relative(e.path(), root).string());
        }
    }
    EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace lockstep::testing
