// A folder of src/ includes only from folders before it in the list of CONTRIBUTING.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "base/text_file.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = LOCKSTEP_SOURCE_DIR;

std::vector<std::string> folders_in_order() {
    const std::string text = read_text_file(kRoot / "CONTRIBUTING.md").text;
    std::smatch list;
    std::vector<std::string> out;
    if (!std::regex_search(text, list, std::regex("includes only from folders before it: ([a-z, \n]+)\\."))) return out;
    const std::string names = list[1];
    const std::regex name("[a-z]+");
    for (std::sregex_iterator it(names.begin(), names.end(), name), end; it != end; ++it) out.push_back(it->str());
    return out;
}

TEST(IncludeOrder, FoldersIncludeOnlyFromFoldersBeforeThem) {
    const std::vector<std::string> order = folders_in_order();
    ASSERT_GT(order.size(), 10u);
    const auto place = [&](const std::string& folder) { return std::find(order.begin(), order.end(), folder) - order.begin(); };
    const std::regex include("^#include \"([a-z_]+)/");
    int seen = 0;
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(kRoot / "src")) {
        if (e.path().extension() != ".cpp" && e.path().extension() != ".h") continue;
        const std::string folder = fs::relative(e.path(), kRoot / "src").begin()->string();
        EXPECT_LT(place(folder), std::ssize(order)) << folder << " is not in the list";
        std::ifstream in(e.path());
        for (std::string line; std::getline(in, line);) {
            std::smatch m;
            if (!std::regex_search(line, m, include)) continue;
            EXPECT_LE(place(m[1]), place(folder)) << e.path() << ": " << line;
            ++seen;
        }
    }
    EXPECT_GT(seen, 500);
}

}  // namespace
}  // namespace lockstep::testing
