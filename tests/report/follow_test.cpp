// What the followers of python/lockstep/follow.py read; `make test-followers` tries them with the packages that they send to.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/paths.h"

namespace lockstep::testing {
namespace {

TEST(ReportFollow, ReadsEachStepOnce) {
    EXPECT_EQ(std::system(fmt::format("python3 -B {}/tests/report/follow_reader.py 2>&1", LOCKSTEP_SOURCE_DIR).c_str()), 0);
}

}  // namespace
}  // namespace lockstep::testing
