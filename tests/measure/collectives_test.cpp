// The rows that a cost table gets of the in-process transport.
#include "measure/collectives.h"

#include <gtest/gtest.h>

#include <map>

#include "base/processors.h"
#include "mesh/collective.h"

namespace lockstep::testing {
namespace {

// On one processor two members share it; a message has a row of its receiver.
TEST(MeasureCollectives, EveryKindHasRows) {
    std::map<std::string, int> rows;
    for (const ops::CollectiveRow& row : measure::collective_rows({usable_cpus().front()}, 0)) {
        ++rows[row.op];
        EXPECT_EQ(row.members, 2);
        EXPECT_GT(row.time_s, 0) << row.op;
        EXPECT_LE(row.core_s, row.time_s) << row.op;
    }
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        const bool measured = traits.symmetric || traits.kind == mesh::Collective::Recv;
        EXPECT_EQ(rows[std::string(traits.name)], measured ? 5 : 0) << traits.name;
    }
}

}  // namespace
}  // namespace lockstep::testing
