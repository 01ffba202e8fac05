// Every seeded defect must show, as a difference to one rank or an exception. What `lockstep check` refuses besides is noted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "tests/equivalence/defects.h"

namespace lockstep::testing {
namespace {

constexpr int kStepsOfADefect = 3, kMostTries = 200;
// Layouts after which a defect must have shown in float32, where few are tried: some are harmless in this or that one, as where
// the bytes of a window that has ended still stand.
constexpr int kFew = 4;
constexpr double kVisible = 1e-8;  // a hundred times the tolerance of random_test.cpp

struct Case {
    Defect defect;
    int tries = 0;       // layouts that had a place for it
    std::string caught;  // how, at the last try; empty: not yet
    bool is_open() const { return caught.empty() && tries < kMostTries; }
};

// How the equivalence test sees the subject; empty where it does not. What `check` refuses for its order is not run: it may stand
// still.
std::string seen(const Draw& d, const Subject& subject, const Outcome& one, double visible) {
    if (const auto wrong = check::prove_order(subject.compiled.of_ranks())) return wrong->reason + ": " + wrong->message;
    try {
        std::string where;
        const double diff = difference(one, run(d.recipe, subject, kStepsOfADefect), &where);
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
            one = run(one_rank(d.recipe), backend_of(dtype), kStepsOfADefect);
            visible = dtype == Dtype::F64 ? kVisible : tolerance(d.recipe, *one, dtype);
        }
        ++c.tries;
        c.caught = seen(d, subject, *one, visible);
        // A race may go well on a busy machine; float64's runs, which are many, see each all the same.
        const bool may_be_refused = !c.caught.empty() || dtype == Dtype::F32;
        if (may_be_refused && !refusal(d.recipe, subject.compiled).empty()) c.caught += "; check refuses it";
    }
}

struct Defects {
    std::vector<std::vector<Defect> (*)()> makers;
    std::function<bool(const compile::Recipe&)> wanted;  // layouts that may have a place for them
};
const Defects kAnywhere = {{operation_defects, communication_defects, call_defects}, nullptr};
const Defects kOfPipelines = {{pipeline_defects}, [](const compile::Recipe& r) {
                                  return r.integer("parallelism.pipeline_parallel_degree") > 1 &&
                                         r.text("activation_checkpoint.mode") != "memory_budget";  // slow to compile
                              }};

const Defects kOfFloat8 = {{float8_defects}, [](const compile::Recipe& r) { return compile::config_of(r).float8().has_value(); }};

const Defects kOfContexts = {{context_defects},
                             [](const compile::Recipe& r) { return r.integer("parallelism.context_parallel_degree") > 1; }};

std::vector<Case> seed_all(const Defects& defects, Dtype dtype, uint64_t most_seeds) {
    std::vector<Case> cases;
    for (const auto& make : defects.makers) {
        for (Defect& d : make()) cases.push_back({std::move(d), 0, ""});
    }
    const auto is_open = [](const Case& c) { return c.is_open(); };
    for (uint64_t seed = 1; seed <= most_seeds && std::any_of(cases.begin(), cases.end(), is_open); ++seed) {
        std::optional<Draw> d = draw(seed, dtype, false, defects.wanted);
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

// The thread sanitizer ends the process at the first race.
#if defined(__SANITIZE_THREAD__)
constexpr bool kRacesEnd = true;
#else
constexpr bool kRacesEnd = false;
#endif

void expect_all_seen(const std::vector<Case>& cases, size_t least) {
    EXPECT_GE(cases.size(), least);
    for (const Case& c : cases)
        EXPECT_FALSE(c.caught.empty()) << c.defect.name << ": not seen in " << c.tries << " layouts that have a place for it";
}

TEST(Equivalence, EverySeededDefectShowsFloat64) { expect_all_seen(seed_all(kAnywhere, Dtype::F64, 2000), 40); }

TEST(Equivalence, EverySeededPipelineDefectShowsFloat64) {
    if (kRacesEnd) GTEST_SKIP() << "a send that nobody waits for is a race";
    expect_all_seen(seed_all(kOfPipelines, Dtype::F64, 300), 50);
}

TEST(Equivalence, EverySeededContextDefectShowsFloat64) { expect_all_seen(seed_all(kOfContexts, Dtype::F64, 600), 14); }

TEST(Equivalence, EverySeededFloat8DefectShowsFloat64) { expect_all_seen(seed_all(kOfFloat8, Dtype::F64, 600), 10); }

// The looser bound of float32 hides none of those that have a place: some edit an operation that the CPU's kernels fuse away.
TEST(Equivalence, EverySeededDefectShowsFloat32) {
    if (kRacesEnd) GTEST_SKIP() << "a send that nobody waits for is a race";
    for (const Defects* defects : {&kAnywhere, &kOfPipelines, &kOfContexts}) {
        for (const Case& c : seed_all(*defects, Dtype::F32, 60)) {
            EXPECT_FALSE(c.tries >= kFew && c.caught.empty())
                << c.defect.name << ": not seen in " << c.tries << " layouts that have a place for it";
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
