// A search that is stopped: it has the best so far, and says how much it left.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tune/small_problem.h"
#include "tune/devices.h"
#include "tune/report.h"
#include "tune/search.h"

namespace lockstep::testing {
namespace {

using tune::Found, tune::Options, tune::Problem;

// Stops once `planned` layouts are planned, and one of them fits.
Found stopped_after(const Problem& p, int64_t planned) {
    tune::Progress last;
    Options options;
    options.progress = [&](const tune::Progress& now) { last = now; };
    options.stop = [&] { return planned == 0 || (last.compiled >= planned && last.best_s > 0); };
    return tune::search(p, options);
}

TEST(TuneStop, HasTheBestSoFarAndCountsTheRest) {
    const Problem p = small_problem(8);
    const Found whole = tune::search(p, {});
    EXPECT_FALSE(whole.was_stopped);
    EXPECT_EQ(whole.not_reached, 0);
    for (const int64_t planned : {1, 3, 8}) {
        const Found found = stopped_after(p, planned);
        EXPECT_TRUE(found.was_stopped);
        EXPECT_EQ(found.layouts, whole.layouts);
        EXPECT_GT(found.not_reached, 0);
        ASSERT_FALSE(found.best.empty());
        EXPECT_GE(found.best.front().step_s, whole.best.front().step_s);
        for (const tune::Planned& b : found.best) EXPECT_TRUE(b.is_placed && b.fits);
        int64_t cut = 0;
        for (const tune::Cut& c : found.cuts) cut += c.layouts;
        EXPECT_EQ(cut + found.not_reached + found.refused + std::ssize(found.all), found.layouts);
    }
}

TEST(TuneStop, ForgetsWhatThereIsNoTimeToPlace) {
    const Problem p = small_problem(8);
    const auto found_within = [&](double placing_s) {
        tune::Progress last;
        Options options;
        options.progress = [&](const tune::Progress& now) { last = now; };
        options.stop = [&] { return last.compiled >= 8 && last.best_s > 0; };
        options.placing_s = placing_s;
        return tune::search(p, options);
    };
    const Found all = found_within(1e9), one = found_within(0);
    EXPECT_GT(all.best.size(), 1u);
    ASSERT_EQ(one.best.size(), 1u);
    EXPECT_TRUE(one.best[0].is_placed);
    EXPECT_EQ(one.best[0].choice, all.best[0].choice);
    EXPECT_GT(one.not_reached, all.not_reached);
}

TEST(TuneStop, StoppedAtOnceItHasNothing) {
    const Problem p = small_problem(8);
    const Found found = stopped_after(p, 0);
    EXPECT_TRUE(found.was_stopped);
    EXPECT_TRUE(found.best.empty());
    EXPECT_EQ(found.not_reached, found.layouts);
}

TEST(TuneStop, ProgressRisesFromNothingToAll) {
    const Problem p = small_problem(8);
    std::vector<double> shares;
    Options options;
    options.progress = [&](const tune::Progress& now) { shares.push_back(now.share); };
    tune::search(p, options);
    ASSERT_GT(shares.size(), 20u);
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    EXPECT_LT(shares.front(), 0.1);
    EXPECT_EQ(shares.back(), 1);
    std::sort(shares.begin(), shares.end());
    EXPECT_GT(std::unique(shares.begin(), shares.end()) - shares.begin(), 10) << "it moves";
}

TEST(TuneDays, FindsTheSmallestNumberOfDevicesThatIsEnough) {
    const auto problem = [](int64_t devices) { return small_problem(devices); };
    const std::vector<int64_t> counts = tune::usual_counts(4);
    const tune::Training training{.tokens = 1e9};
    const std::vector<tune::OfDevices> all = tune::over_devices({1, 2, 4, 8}, problem, training, {.top = 1});
    for (const tune::OfDevices& enough : all) {
        ASSERT_TRUE(enough.best) << enough.devices;
        const double days = 1.001 * enough.hours / 24;
        const auto rows = tune::within_days(days, all[0].tokens_per_s, counts, problem, training, {.top = 1});
        const tune::OfDevices* smallest = tune::smallest_within(rows, days);
        ASSERT_TRUE(smallest) << enough.devices;
        const auto first = std::find_if(all.begin(), all.end(), [&](const tune::OfDevices& d) { return d.hours <= 24 * days; });
        EXPECT_EQ(smallest->devices, first->devices);
    }
    const auto none = tune::within_days(1e-9, all[0].tokens_per_s, counts, problem, training, {.top = 1});
    EXPECT_EQ(tune::smallest_within(none, 1e-9), nullptr);
}

// A long search says a line a minute, with the best layout so far.
TEST(TuneStop, SaysTheBestSoFarOnceAMinute) {
    const Problem p = small_problem(8);
    tune::LinesSoFar lines;
    tune::Progress last;
    Options options;
    options.progress = [&](const tune::Progress& now) {
        last = now;
        if (now.best) {
            EXPECT_GT(now.best_s, 0);
        }
    };
    std::string best;
    options.stop = [&] {
        if (last.best) best = text_of(*last.best);
        return !best.empty();
    };
    tune::search(p, options);
    ASSERT_FALSE(best.empty());
    EXPECT_EQ(lines.line_at(59.9, {0.1, 5, 0, nullptr}), "");
    EXPECT_EQ(lines.line_at(60.2, {0.1, 5, 0, nullptr}), "after 1 min 10 % is searched, 5 layouts are planned; none fits so far");
    const tune::Choice choice = p.space.families.front();
    EXPECT_EQ(lines.line_at(119, {0.2, 6, 1.25, &choice}), "");
    EXPECT_EQ(lines.line_at(121, {0.2, 6, 1.25, &choice}),
              "after 2 min 20 % is searched, 6 layouts are planned; the best so far: 1.25 s  " + text_of(choice));
    EXPECT_EQ(lines.line_at(180, {0.2, 6, 1.25, &choice}), "");
    EXPECT_NE(lines.line_at(182, {0.2, 6, 1.25, &choice}), "");
}

}  // namespace
}  // namespace lockstep::testing
