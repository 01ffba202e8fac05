// Random layouts against one rank. LOCKSTEP_DRAWS: how many layouts count (a seed whose recipe is refused, or makes one rank,
// does not); LOCKSTEP_SEED: the first seed. One layout again: LOCKSTEP_DRAWS=1 LOCKSTEP_SEED=<seed>.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/equivalence/draw.h"
#include "tests/equivalence/techniques.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 5;

int64_t from_environment(const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoll(text) : otherwise;
}

std::string report(const Draw& d, const char* test, const std::string& what) {
    return fmt::format("{}\nagain: LOCKSTEP_DRAWS=1 LOCKSTEP_SEED={} lockstep_tests --gtest_filter=Equivalence.{}\n{}", what, d.seed, test, d.recipe.toml());
}

// In float64 a layout changes the order of sums only: 1e-10 is a million times their rounding, and a ten-millionth of the
// smallest seeded defect (defects_test.cpp).
TEST(Equivalence, EveryLayoutTrainsAsOneRankFloat64) {
    const int64_t wanted = from_environment("LOCKSTEP_DRAWS", 150), first = from_environment("LOCKSTEP_SEED", 1);
    PairCounts pairs;
    double worst = 0;
    int64_t seed = first, counted = 0;
    for (; counted < wanted; ++seed) {
        const std::optional<Draw> d = draw(static_cast<uint64_t>(seed), Dtype::F64);
        if (!d) continue;
        ++counted;
        try {
            const Outcome one = run(one_rank(d->recipe), Backend::Reference, kSteps), layout = run(d->recipe, d->compiled, kSteps);
            std::string where;
            const double diff = difference(one, layout, &where);
            EXPECT_LE(diff, 1e-10) << report(*d, "EveryLayoutTrainsAsOneRankFloat64", where);
            worst = std::max(worst, diff);
            pairs.add(techniques(*d, layout));
        } catch (const std::exception& e) {
            ADD_FAILURE() << report(*d, "EveryLayoutTrainsAsOneRankFloat64", e.what());
        }
    }
    fmt::print("{} layouts of {} seeds, largest difference {:.1e}; how often techniques met:\n{}", counted, seed - first, worst, pairs.table());
    if (wanted >= 2000) {
        EXPECT_EQ(pairs.rarer_than(20), "");
    }
}

}  // namespace
}  // namespace lockstep::testing
