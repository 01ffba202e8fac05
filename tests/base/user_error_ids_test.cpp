// Every UserError has an id. Each id of src/ must occur in a test. That the test looks at the message is for its author to see
// to.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/paths.h"

namespace lockstep::testing {
namespace {

std::string text_under(const std::string& folder) {
    std::stringstream all;
    for (const auto& e : std::filesystem::recursive_directory_iterator(std::string(LOCKSTEP_SOURCE_DIR) + "/" + folder)) {
        const std::string extension = e.path().extension().string();
        if (extension == ".cpp" || extension == ".h" || extension == ".txt") all << std::ifstream(e.path()).rdbuf() << "\n";
    }
    return all.str();
}

TEST(UserErrorIds, EachHasATest) {
    const std::string source = text_under("src"), tests = text_under("tests");
    const std::regex thrown("(?:(?:UserError|refuse|damaged|fail|choice)\\(|ErrorId k\\w+\\{)\\s*\"([a-z_]+\\.[a-z_0-9]+)\"");
    std::set<std::string> ids;
    for (std::sregex_iterator it(source.begin(), source.end(), thrown), end; it != end; ++it) ids.insert((*it)[1]);
    EXPECT_GT(ids.size(), 60u);
    const auto is_part_of_a_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
    for (const std::string& id : ids) {
        bool found = false;
        for (size_t at = tests.find(id); at != std::string::npos && !found; at = tests.find(id, at + 1)) {
            found = !is_part_of_a_name(tests[at - 1]) && !is_part_of_a_name(tests[at + id.size()]);
        }
        EXPECT_TRUE(found) << id << " is tested nowhere";
    }
}

}  // namespace
}  // namespace lockstep::testing
