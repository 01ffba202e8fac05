// Files that come with the program, by name.
#include "base/shipped.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/base/scratch_folder.h"

namespace lockstep::testing {
namespace {

TEST(BaseShipped, NamesAreThoseOfTheSourceTree) {
    const std::vector<std::string> clusters = shipped_names(Shipped::Clusters), recipes = shipped_names(Shipped::Recipes),
                                   stacks = shipped_names(Shipped::Stacks);
    EXPECT_TRUE(std::is_sorted(clusters.begin(), clusters.end()));
    EXPECT_NE(std::find(clusters.begin(), clusters.end(), "h100"), clusters.end());
    EXPECT_NE(std::find(recipes.begin(), recipes.end(), "demo"), recipes.end());
    EXPECT_NE(std::find(stacks.begin(), stacks.end(), "torchtitan_eager"), stacks.end());
}

TEST(BaseShipped, APathComesBeforeAName) {
    const ScratchFolder s;
    const std::string shipped = (shipped_folder(Shipped::Clusters) / "h100.toml").string();
    EXPECT_EQ(file_or_shipped(Shipped::Clusters, "h100"), shipped);
    EXPECT_EQ(file_or_shipped(Shipped::Clusters, "h100.toml"), shipped);
    for (const char* other : {"", "no_such_cluster", "./h100", "chips/h100"})
        EXPECT_EQ(file_or_shipped(Shipped::Clusters, other), other);
    EXPECT_EQ(file_or_shipped(Shipped::Clusters, s.write("h100", "")), s.path("h100"));
}

TEST(BaseShipped, TheNearestNameIsOneThatIsClose) {
    EXPECT_EQ(nearest_shipped(Shipped::Clusters, "h10"), "h100");
    EXPECT_EQ(nearest_shipped(Shipped::Clusters, "supermarket"), "");
    EXPECT_EQ(nearest_shipped(Shipped::Clusters, "h10.toml"), "");
}

}  // namespace
}  // namespace lockstep::testing
