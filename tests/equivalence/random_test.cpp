// Random layouts against one rank. LOCKSTEP_DRAWS: how many layouts count (a seed whose recipe is refused, or makes one rank,
// does not); LOCKSTEP_SEED: the first seed; LOCKSTEP_FLOAT8=1: all in float8. One layout again: LOCKSTEP_DRAWS=1
// LOCKSTEP_SEED=<seed>.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>

#include "tests/base/from_environment.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/edit.h"
#include "tests/equivalence/techniques.h"

namespace lockstep::testing {
namespace {

constexpr std::array kFloat8Recipes = {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "MX floor", "MX rceil"};

// Is every layout to have products in float8?
bool all_in_float8() { return from_environment("LOCKSTEP_FLOAT8", 0) != 0; }

struct Summary {
    int64_t seeds = 0;
    // A line for each layout that does not train as one rank, and whose one rank jumps.
    std::string jumps;
    // Layouts that train as one rank, and for which one_rank_jumps was called; those of them whose one rank jumps.
    int64_t controls = 0, jumping_controls = 0;
    double farthest = 0;  // difference to one rank, as a share of what is allowed
    PairCounts pairs;
    std::map<compile::Float8::Recipe, std::map<Technique, int>> of_float8;  // what each recipe of it met

    // Of the recipes of float8, has this one the fewest layouts so far?
    bool is_rarest(compile::Float8::Recipe recipe) {
        const auto layouts = [&](size_t i) { return of_float8[static_cast<compile::Float8::Recipe>(i)][Technique::Float8]; };
        for (size_t i = 0; i < kFloat8Recipes.size(); ++i)
            if (layouts(i) < layouts(static_cast<size_t>(recipe))) return false;
        return true;
    }
    // Has this one met one of these techniques in at most 20 of 333 layouts, a sixth of 2,000?
    bool has_a_rare_one(compile::Float8::Recipe recipe, const std::vector<Technique>& used) {
        std::map<Technique, int>& met = of_float8[recipe];
        return std::any_of(used.begin(), used.end(), [&](Technique t) { return 333 * met[t] <= 20 * met[Technique::Float8]; });
    }
};

// With constants of norms, rotary positions and moments that are a little larger or smaller: what is rounded behind them is rounded
// otherwise.
compile::Recipe with_other_rounding(compile::Recipe recipe, double change) {
    const ir::Attrs shape = recipe.model_shape();
    for (const char* key : {"norm_eps", "rope_theta"}) {
        if (const auto at = shape.find(key); at != shape.end())
            recipe.set(fmt::format("model.{}", key), fmt::format("{:.17g}", std::get<double>(at->second) * (1 + change)));
    }
    recipe.set("optimizer.beta1", fmt::format("{:.17g}", recipe.number("optimizer.beta1") * (1 + change)));
    return recipe;
}

// Does one rank itself train otherwise when rounding changes? Sums of few codes lie exactly between two codes, or two numbers of
// bfloat16, more often than other values do, and the order of a sum decides. Of a gradient that is nothing but rounding AdamW makes
// a step up to lr / eps times as large. What comes of a change grows with it; where it is more than allowed, and ten times what
// the smaller changes let expect, it is a jump.
bool one_rank_jumps(const compile::Recipe& recipe, const Outcome& before, Dtype dtype, int steps) {
    const double allowed = tolerance(recipe, before, dtype);
    double expected = 1;  // of a change of 1
    for (double change = 1e-12; std::abs(change) < 2e-10; change *= -2) {
        const double diff = difference(before, run(with_other_rounding(recipe, change), backend_of(dtype), steps));
        if (diff > allowed) return diff > 10 * expected * std::abs(change);
        expected = std::min(expected, std::max(diff, 1e-15) / std::abs(change));
    }
    return false;
}

// Holds `wanted` layouts to one rank each.
Summary hold_to_one_rank(Dtype dtype, int64_t wanted, bool mixed = false) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const int64_t first = from_environment("LOCKSTEP_SEED", 1);
    Summary s;
    const int steps = all_in_float8() ? 3 : 5;
    std::function<bool(const compile::Recipe&)> wanted_now = nullptr;
    if (all_in_float8())
        wanted_now = [&](const compile::Recipe& r) { return s.is_rarest(compile::config_of(r).float8()->recipe); };
    constexpr int kMostPassedBy = 20;
    int passed_by = 0;
    for (int64_t counted = 0; counted < wanted; ++s.seeds) {
        const std::optional<Draw> d = draw(static_cast<uint64_t>(first + s.seeds), dtype, mixed, wanted_now);
        if (!d) continue;
        if (all_in_float8() && passed_by < kMostPassedBy &&
            !s.has_a_rare_one(compile::config_of(d->recipe).float8()->recipe, techniques(*d, {}))) {
            ++passed_by;
            continue;
        }
        passed_by = 0;
        if (++counted % 100 == 0) {
            fmt::print("{} of {} layouts\n", counted, wanted);
            std::fflush(stdout);
        }
        const std::string again =
            fmt::format("again: LOCKSTEP_DRAWS=1 LOCKSTEP_SEED={} lockstep_tests --gtest_filter=Equivalence.{}\n{}", d->seed,
                        test->name(), d->recipe.toml());
        try {
            EXPECT_EQ(refusal(d->recipe, d->compiled), "") << again;
            const Outcome one = run(one_rank(d->recipe), backend_of(dtype), steps), layout = run(d->recipe, d->compiled, steps);
            std::string where;
            const double diff = difference(one, layout, &where), allowed = tolerance(d->recipe, one, dtype);
            if (diff > allowed && compile::config_of(d->recipe).float8() &&
                one_rank_jumps(one_rank(d->recipe), one, dtype, steps)) {
                s.jumps += fmt::format("seed {}: {:.2g} at {}\n", d->seed, diff, where);
                continue;
            }
            EXPECT_LE(diff, allowed) << "at " << where << "\n" << again;
            s.farthest = std::max(s.farthest, diff / allowed);
            if (all_in_float8() && counted % 50 == 0)
                ++s.controls, s.jumping_controls += one_rank_jumps(one_rank(d->recipe), one, dtype, steps) ? 1 : 0;
            const std::vector<Technique> used = techniques(*d, layout);
            s.pairs.add(used);
            if (const std::optional<compile::Float8> float8 = compile::config_of(d->recipe).float8()) {
                for (const Technique t : used) ++s.of_float8[float8->recipe][t];
            }
            EXPECT_EQ(layout.heldout_losses.size(), d->recipe.flag("validation.enable") ? 2U : 0U) << again;
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << again;
        }
    }
    fmt::print("{} layouts of {} seeds; the farthest from one rank reaches {:.2g} of what is allowed\n{}", wanted, s.seeds,
               s.farthest, s.jumps.empty() ? "" : "One rank itself jumps after a change of rounding:\n" + s.jumps);
    if (s.controls > 0) fmt::print("So does that of {} of {} layouts that train as one rank\n", s.jumping_controls, s.controls);
    EXPECT_LE(std::count(s.jumps.begin(), s.jumps.end(), '\n'), 1 + wanted / 50);
    EXPECT_LE(s.jumping_controls, 1 + s.controls / 2);
    return s;
}

TEST(Equivalence, EveryLayoutTrainsAsOneRankFloat64) {
    const int64_t wanted = from_environment("LOCKSTEP_DRAWS", 80);
    const Summary s = hold_to_one_rank(Dtype::F64, wanted);
    fmt::print("How often techniques met:\n{}", s.pairs.table());
    for (const auto& [recipe, met] : s.of_float8) {
        std::string text;
        for (const auto& [technique, times] : met)
            if (technique != Technique::Float8) text += fmt::format(" {} {},", name_of(technique), times);
        const std::string_view name = kFloat8Recipes.at(static_cast<size_t>(recipe));
        fmt::print("float8 {}: {} layouts;{}\n", name, met.at(Technique::Float8), text);
        if (wanted < 2000 || !all_in_float8()) continue;
        for (int i = 0; i < kTechniques; ++i) {
            const auto technique = static_cast<Technique>(i);
            EXPECT_GE(met.contains(technique) ? met.at(technique) : 0, 20) << name << " with " << name_of(technique);
        }
    }
    if (wanted >= 2000 && !all_in_float8()) {
        EXPECT_EQ(s.pairs.rarer_than(20), "");
    }
}

TEST(Equivalence, EveryLayoutTrainsAsOneRankFloat32) {
    hold_to_one_rank(Dtype::F32, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 80) * 2 / 15));
}

TEST(Equivalence, EveryLayoutTrainsAsOneRankFloat32UnderFloat64) {
    hold_to_one_rank(Dtype::F64, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 80) * 2 / 15), true);
}

TEST(Equivalence, EveryLayoutTrainsAsOneRankBfloat16) {
    hold_to_one_rank(Dtype::F32, std::max<int64_t>(1, from_environment("LOCKSTEP_DRAWS", 80) * 2 / 15), true);
}

// The extreme orders that queues and waits permit, run by one thread, give bit for bit the order of the list.
TEST(Equivalence, WaitsAreEnough) {
    int counted = 0;
    for (uint64_t seed = 1; counted < 20; ++seed) {
        const std::optional<Draw> d = draw(seed, Dtype::F64);
        if (!d || d->compiled.layout.data_ranks == 1) continue;
        ++counted;
        const Outcome listed = run(d->recipe, d->compiled, 2);
        for (const QueueName first : kQueuesOfSteps) {
            compile::Compiled early = d->compiled;
            for (ir::Program& p : early.programs) run_early(p, first);
            std::string where;
            EXPECT_EQ(difference(listed, run(d->recipe, early, 2), &where), 0) << "seed " << seed << " at " << where << "\n"
                                                                               << d->recipe.toml();
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
