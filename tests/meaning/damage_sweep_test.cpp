// What `check` accepts trains as the sound program does. LOCKSTEP_DAMAGES: how many damages of each kind are tried.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>
#include <map>

#include "check/check.h"
#include "tests/base/from_environment.h"
#include "tests/equivalence/draw.h"
#include "tests/meaning/damages.h"

namespace lockstep::meaning_test {
namespace {

using testing::Draw;
using testing::Outcome;

struct Tally {
    int64_t tried = 0, refused_rightly = 0, refused_harmless = 0, accepted_harmless = 0, accepted_wrong = 0,
            refused_otherwise = 0;
};

// Does the program give other numbers? Only what has sound order and memory is run.
bool changes(const Draw& d, const compile::Compiled& damaged, const Outcome& sound) {
    try {
        return testing::difference(sound, testing::run(d.recipe, damaged, 2)) > 1e-9;
    } catch (const std::exception&) {
        return true;
    }
}

constexpr int64_t kMany = 20;  // damages of a kind, from which on those that accounting refuses are run, too

TEST(Meaning, WhatIsAcceptedTrainsAsTheSoundProgram) {
    const int64_t wanted = testing::from_environment("LOCKSTEP_DAMAGES", 3);
    std::map<std::string, Tally> tallies;
    const auto is_open = [&](const Damage& damage) { return tallies[damage.name].tried < wanted; };
    for (uint64_t seed = 1; seed < 40 * static_cast<uint64_t>(wanted); ++seed) {
        if (std::none_of(all_damages().begin(), all_damages().end(), is_open)) break;
        std::optional<Draw> d = testing::draw(seed, Dtype::F64);
        if (!d) continue;
        d->recipe.set("runtime.comm_thread", "off");
        d->recipe.set("debug.synthetic_masked", "0.1");  // few tokens count otherwise, and a mistake may not show
        const Outcome sound = testing::run(d->recipe, d->compiled, 2);
        EXPECT_EQ(testing::refusal(d->recipe, d->compiled), "") << d->recipe.toml();
        std::mt19937_64 random(seed);
        for (const Damage& damage : all_damages()) {
            if (!is_open(damage)) continue;
            compile::Compiled damaged = d->compiled;
            std::string what;
            for (ir::Program& p : damaged.programs) {
                std::mt19937_64 same = random;  // all pipeline ranks of one kind are damaged alike
                if (const std::string done = damage.apply(p, same); !done.empty()) what = done;
            }
            random.discard(16);
            if (what.empty()) continue;
            Tally& t = tallies[damage.name];
            ++t.tried;
            const std::string refusal = testing::refusal(d->recipe, damaged);
            const bool may_run =
                refusal.empty() || refusal.starts_with("meaning") || (wanted >= kMany && refusal.starts_with("accounting"));
            if (!may_run || check::prove_order(damaged.of_ranks())) {
                ++t.refused_otherwise;
                continue;
            }
            const bool wrong = changes(*d, damaged, sound);
            ++(refusal.empty() ? wrong ? t.accepted_wrong : t.accepted_harmless : wrong ? t.refused_rightly : t.refused_harmless);
            if (refusal.empty() == wrong)
                fmt::print("{}, seed {}: {}: {}\n", refusal.empty() ? "ACCEPTED" : "REFUSED", seed, what, refusal);
        }
    }
    fmt::print("{:32} {:>6} {:>9} {:>8} {:>9} {:>9} {:>10}\n", "damage", "tried", "otherwise", "refused", "harmless", "harmless?",
               "accepted!");
    for (const auto& [name, t] : tallies) {
        fmt::print("{:32} {:6} {:9} {:8} {:9} {:9} {:10}\n", name, t.tried, t.refused_otherwise, t.refused_rightly,
                   t.accepted_harmless, t.refused_harmless, t.accepted_wrong);
        EXPECT_EQ(t.accepted_wrong, 0) << name;
    }
}

}  // namespace
}  // namespace lockstep::meaning_test
