// Every seeded defect must show, as a difference to one rank or an exception. What `lockstep check` refuses besides is noted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/equivalence/defects.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 3, kMostTries = 200;
constexpr double kVisible = 1e-8;  // a hundred times the tolerance of random_test.cpp

struct Case {
    Defect defect;
    int tries = 0;       // layouts that had a place for it
    std::string caught;  // how, at the last try; empty: not yet
    bool is_open() const { return caught.empty() && tries < kMostTries; }
};

// How the equivalence test sees the subject; empty where it does not.
std::string seen(const Draw& d, const Subject& subject, const Outcome& one, double visible) {
    if (const std::string wrong = refusal(subject.compiled); wrong.starts_with("order")) return wrong;  // a run would stand still
    try {
        std::string where;
        const double diff = difference(one, run(d.recipe, subject, kSteps), &where);
        return diff > visible ? fmt::format("{:.1e} at {}", diff, where) : "";
    } catch (const std::exception& e) {
        return std::string("exception: ") + e.what();
    }
}

// Seeds every open defect that has a place in the layout.
void try_all(const Draw& d, Dtype dtype, std::vector<Case>& cases) {
    std::optional<Outcome> one;
    double visible = 0;
    for (Case& c : cases) {
        Subject subject{d.compiled, {}};
        if (!c.is_open() || !c.defect.seed(subject)) continue;
        if (!one) {
            one = run(one_rank(d.recipe), backend_of(dtype), kSteps);
            visible = dtype == Dtype::F64 ? kVisible : tolerance(d.recipe, *one, dtype);
        }
        ++c.tries;
        c.caught = seen(d, subject, *one, visible);
        if (!c.caught.empty() && !refusal(subject.compiled).empty()) c.caught += "; check refuses it";
    }
}

std::vector<Case> seed_all(Dtype dtype, uint64_t most_seeds) {
    std::vector<Case> cases;
    for (const auto& make : {operation_defects, communication_defects, call_defects}) {
        for (Defect& d : make()) cases.push_back({std::move(d), 0, ""});
    }
    const auto is_open = [](const Case& c) { return c.is_open(); };
    for (uint64_t seed = 1; seed <= most_seeds && std::any_of(cases.begin(), cases.end(), is_open); ++seed) {
        std::optional<Draw> d = draw(seed, dtype);
        if (!d) continue;
        d->recipe.set("runtime.comm_thread", "off");  // a defect that is a race shows in an order of calls instead
        try_all(*d, dtype, cases);
    }
    for (const Case& c : cases) {
        fmt::print(
            "{:62} {}\n", c.defect.name,
            c.caught.empty() ? fmt::format("not seen in {} layouts", c.tries) : fmt::format("layout {}: {}", c.tries, c.caught));
    }
    return cases;
}

TEST(Equivalence, EverySeededDefectShowsFloat64) {
    const std::vector<Case> cases = seed_all(Dtype::F64, 2000);
    EXPECT_GE(cases.size(), 40u);
    for (const Case& c : cases)
        EXPECT_FALSE(c.caught.empty()) << c.defect.name << ": not seen in " << c.tries << " layouts that have a place for it";
}

// The looser bound of float32 hides none of those that have a place: some edit an operation that the CPU's kernels fuse away.
TEST(Equivalence, EverySeededDefectShowsFloat32) {
    for (const Case& c : seed_all(Dtype::F32, 60)) {
        EXPECT_FALSE(c.tries > 0 && c.caught.empty())
            << c.defect.name << ": not seen in " << c.tries << " layouts that have a place for it";
    }
}

}  // namespace
}  // namespace lockstep::testing
