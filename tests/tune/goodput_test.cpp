// Goodput: Young's and Daly's interval, and what failures leave of the time, beside a simulation of failures.
#include "tune/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tune/devices.h"

namespace lockstep::testing {
namespace {

using tune::Failures, tune::Goodput;

TEST(TuneGoodput, WithoutFailuresAllTimeIsUseful) {
    const Goodput g = tune::goodput_of(1024, {});
    EXPECT_EQ(g.useful, 1);
    EXPECT_EQ(g.interval_s, 0);
}

TEST(TuneGoodput, TheIntervalIsYoungsWhereSavesAreShort) {
    const Goodput g = tune::goodput_of(1000, {.mtbf_hours = 50000, .save_s = 1, .restart_s = 0});
    EXPECT_DOUBLE_EQ(g.job_mtbf_s, 180000);
    EXPECT_NEAR(g.interval_s, std::sqrt(2 * 180000.0), 2);
    EXPECT_NEAR(g.useful + g.saving + g.lost, 1, 1e-12);
    EXPECT_NEAR(1 - g.useful, std::sqrt(2 / 180000.0), 1e-4);  // half of it saves, half repeats
}

// Useful share of a long run: segments of an interval and a save, repeated until no failure falls into them.
double simulated(const Failures& f, double mtbf_s, double interval_s) {
    std::mt19937_64 random(1);
    std::exponential_distribution<double> failure(1 / mtbf_s);
    double time_s = 0, next_s = failure(random);
    constexpr int kSegments = 200000;
    for (int done = 0; done < kSegments;) {
        const double end_s = time_s + interval_s + f.save_s;
        if (end_s <= next_s) {
            time_s = end_s, ++done;
            continue;
        }
        do time_s = next_s, next_s = time_s + failure(random);
        while (next_s < time_s + f.restart_s);  // the restart fails, too
        time_s += f.restart_s;
    }
    return kSegments * interval_s / time_s;
}

TEST(TuneGoodput, IsWhatASimulationOfFailuresFinds) {
    for (const Failures& f : {Failures{50000, 30, 600}, Failures{2000, 60, 900}}) {
        const Goodput g = tune::goodput_of(16384, f);
        const double best = simulated(f, g.job_mtbf_s, g.interval_s);
        EXPECT_NEAR(g.useful, best, 0.01);
        EXPECT_GT(best, simulated(f, g.job_mtbf_s, g.interval_s / 4));
        EXPECT_GT(best, simulated(f, g.job_mtbf_s, g.interval_s * 4));
    }
}

TEST(TuneGoodput, DaysAndPriceCountWhatFailuresCost) {
    tune::OfDevices row;
    row.devices = 16384, row.tokens_per_s = 1e6;
    tune::Training training{.tokens = 3.6e12, .price_per_device_hour = 2, .failures = {.mtbf_hours = 50000}};
    add_cost(row, training);
    EXPECT_NEAR(row.hours * row.goodput.useful, 1000, 1e-9);
    EXPECT_NEAR(row.price, 2 * 16384 * row.hours, 1e-6);
}

TEST(TuneDevices, UsualCountsArePartsOfAHostAndWholeHosts) {
    const std::vector<int64_t> counts = tune::usual_counts(8);
    EXPECT_EQ(std::vector<int64_t>(counts.begin(), counts.begin() + 9), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64}));
    EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
}

}  // namespace
}  // namespace lockstep::testing
