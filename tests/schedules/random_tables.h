// Random legal tables, in orders that no named schedule has.
#pragma once

#include <array>
#include <random>

#include "schedules/table.h"

namespace lockstep::testing {

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

private:
    std::mt19937_64 engine_;
};

// Must `earlier` have run before `later` can, whatever the order of rows?
bool needs(const schedules::Table& table, const schedules::Action& later, const schedules::Action& earlier);

// Up to 4 ranks, some with several stages anywhere on the way, up to 5 microbatches, some backwards split, some idle cells.
schedules::Table random_legal(Random& random);

// What makes a legal table illegal. `reverse`: something runs before what it needs, on this rank or around through others.
inline constexpr std::array kTableMutations = {"drop",        "double",     "other letter", "other microbatch",
                                               "other stage", "other rank", "reverse"};
// At a random place; false where the table has none for this mutation.
bool mutate(schedules::Table& table, int64_t mutation, Random& random);

}  // namespace lockstep::testing
