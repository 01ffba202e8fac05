#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace lockstep::mesh {
namespace {

TEST(MeshBuild, AxesOfDegreeOneHaveNoSubAxis) {
    EXPECT_TRUE(Mesh::build({1, 1, 1, 1, 1, 1}, {}).sub_axes.empty());
    EXPECT_EQ(Mesh::build({1, 1, 1, 1, 1, 1}, {}).ranks(), 1);
    const Mesh m = Mesh::build({1, 1, 1, 2, 1, 3}, {});
    EXPECT_EQ(m.sub_axes, (std::vector<SubAxis>{{Axis::dp_shard, 1, 2}, {Axis::tp, 1, 3}}));
    EXPECT_EQ(m.ranks(), 6);
}

TEST(MeshBuild, CutsAreMergedToOneChain) {
    const Mesh m = Mesh::build({1, 1, 1, 1, 1, 24}, {{Axis::tp, {4, 2, 4, 1, 24}}});
    EXPECT_EQ(m.sub_axes, (std::vector<SubAxis>{{Axis::tp, 1, 2}, {Axis::tp, 2, 2}, {Axis::tp, 4, 6}}));
    EXPECT_EQ(m.ranks(), 24);
}

TEST(MeshBuild, CutsMustDivideEachOther) {
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{5}, std::vector<int64_t>{2, 3}}) {
        EXPECT_THROW(Mesh::build({1, 1, 1, 1, 1, 12}, {{Axis::tp, cuts}}), InternalError);
    }
}

class MeshOfFour : public ::testing::Test {
protected:
    const Mesh m = Mesh::build({1, 1, 2, 4, 1, 4}, {{Axis::dp_shard, {2}}, {Axis::tp, {2}}});
    // dp_replicate 0, dp_shard 1 2, tp 3 4
};

TEST_F(MeshOfFour, RanksAreRowMajor) {
    ASSERT_EQ(m.sub_axes.size(), 5u);
    EXPECT_EQ(m.whole(Axis::dp_shard), (AxisList{1, 2}));
    EXPECT_EQ(m.all(), (AxisList{0, 1, 2, 3, 4}));
    for (int64_t rank = 0; rank < m.ranks(); ++rank) {
        EXPECT_EQ(m.index(rank, m.all()), rank);
        EXPECT_EQ(m.index(rank, m.whole(Axis::tp)), rank % 4);
        EXPECT_EQ(m.index(rank, m.whole(Axis::dp_shard)), rank / 4 % 4);
        EXPECT_EQ(m.coordinate(rank, 0), rank / 16);
    }
}

TEST_F(MeshOfFour, IndexFollowsTheOrderOfTheList) {
    EXPECT_EQ(m.index(1, {3, 4}), 1);
    EXPECT_EQ(m.index(1, {4, 3}), 2);
    EXPECT_EQ(m.index(31, {}), 0);
    EXPECT_EQ(m.size({4, 0, 1}), 8);
}

TEST_F(MeshOfFour, GroupsPartitionTheRanks) {
    for (const AxisList& list : {AxisList{}, AxisList{4}, AxisList{3, 1}, AxisList{2, 1}, AxisList{0, 1, 2, 3, 4}}) {
        std::set<int64_t> seen;
        for (int64_t rank = 0; rank < m.ranks(); ++rank) {
            const std::vector<int64_t> group = m.group(rank, list);
            ASSERT_EQ(static_cast<int64_t>(group.size()), m.size(list));
            EXPECT_EQ(group[static_cast<size_t>(m.index(rank, list))], rank);
            for (size_t i = 0; i < group.size(); ++i) EXPECT_EQ(m.index(group[i], list), static_cast<int64_t>(i));
            if (m.index(rank, list) == 0) seen.insert(group.begin(), group.end());
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()), m.ranks());
    }
}

TEST_F(MeshOfFour, TextNamesWholeAxes) {
    EXPECT_EQ(m.text({}), "");
    EXPECT_EQ(m.text({0}), "dp_replicate");
    EXPECT_EQ(m.text({1, 2}), "dp_shard");
    EXPECT_EQ(m.text({2, 1}), "dp_shard:(2)2,dp_shard:(1)2");
    EXPECT_EQ(m.text({4}), "tp:(2)2");
    EXPECT_EQ(m.text({2, 3, 4}), "dp_shard:(2)2,tp");
}

TEST_F(MeshOfFour, TextParsesBack) {
    for (const AxisList& list : {AxisList{}, AxisList{0}, AxisList{2, 1}, AxisList{4, 3}, AxisList{1, 2, 3, 4}, AxisList{0, 2}}) {
        EXPECT_EQ(m.parse(m.text(list)), list) << m.text(list);
    }
}

TEST_F(MeshOfFour, UnknownTextIsNothing) {
    for (const char* text : {"pp", "tp:(1)4", "cp", "tp:(1)2 ", "tp dp_shard", ",tp", "tp,", "tp,,dp_shard", ","})
        EXPECT_FALSE(m.parse(text)) << text;
}

TEST(MeshLists, SetOperations) {
    EXPECT_EQ(join({2, 1}, {0}), (AxisList{2, 1, 0}));
    EXPECT_EQ(unite({3, 1}, {1, 0}), (AxisList{0, 1, 3}));
    EXPECT_EQ(subtract({3, 1, 2}, {1}), (AxisList{3, 2}));
    EXPECT_EQ(intersect({3, 1, 2}, {2, 3}), (AxisList{3, 2}));
    EXPECT_TRUE(starts_with({2, 1}, {2}));
    EXPECT_TRUE(starts_with({2, 1}, {}));
    EXPECT_FALSE(starts_with({2, 1}, {1}));
    EXPECT_FALSE(starts_with({2}, {2, 1}));
    EXPECT_TRUE(contains({2, 1}, 1));
    EXPECT_FALSE(contains({}, 0));
}

}  // namespace
}  // namespace lockstep::mesh
