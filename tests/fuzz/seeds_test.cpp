// The fuzz targets over their seeds, in the usual build: what fuzzing has found stays mended where no clang is.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/fuzz/fuzz.h"
#include "tests/paths.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kSeeds = LOCKSTEP_SOURCE_DIR "/tests/fuzz/seeds";

std::vector<fs::path> files_of(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& e : fs::directory_iterator(folder)) files.push_back(e.path());
    std::sort(files.begin(), files.end());
    return files;
}

class FuzzSeeds : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzSeeds, AreAcceptedOrRefused) {
    const std::vector<fs::path> seeds = files_of(kSeeds / GetParam().name);
    EXPECT_FALSE(seeds.empty());
    for (const fs::path& seed : seeds) {
        std::ifstream in(seed, std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(in), {}};
        ::testing::internal::CaptureStdout();
        try {
            GetParam().parse(bytes);
        } catch (const UserError&) {
        } catch (const std::exception& e) {
            ADD_FAILURE() << seed << ": " << e.what();
        }
        ::testing::internal::GetCapturedStdout();
    }
}
INSTANTIATE_TEST_SUITE_P(Each, FuzzSeeds, ::testing::ValuesIn(targets()), [](const auto& info) { return info.param.name; });

TEST(FuzzSeedFolders, HaveATargetEach) {
    std::set<std::string> names;
    for (const Target& t : targets()) EXPECT_TRUE(names.insert(t.name).second) << t.name;
    for (const fs::path& folder : files_of(kSeeds)) EXPECT_TRUE(names.contains(folder.filename())) << folder;
}

}  // namespace
}  // namespace lockstep::fuzz
