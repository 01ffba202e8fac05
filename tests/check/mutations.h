// Small damages to a compiled program, as a wrong pass would do them: every kind of them at a random place of the entry train,
// or, where it says so, of any entry. Many are harmless. The same seed gives the same damage.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace lockstep::check_test {

enum class Mutation {
    SwapNeighbours,
    SwapNear,  // within ten calls
    Drop,
    DoubleNext,  // the copy stands right behind
    DoubleLater,
    FreeEarlier,
    DropWait,
    RedirectWait,  // to an earlier call of the other stream
    Rebind,        // to another buffer of equal size and kind
    FlipFresh,
    OverlapBuffers,
    OverlapEntries,    // a buffer of any entry over one of any entry
    ChangeMicrobatch,  // of a call, its bindings unchanged
    AddWait,           // for an earlier call
    AddWindow          // an extra gather of a unit into bytes of its own, and its free
};
constexpr int kMutations = 15;
std::string_view name_of(Mutation mutation);

struct Mutant {
    ir::Program program;
    int64_t rank = -1;  // the one that runs it; -1: all do
    std::string text;   // what was done

    // One program a rank, where `base` is what the others run.
    std::vector<const ir::Program*> ranks(const ir::Program& base) const;
};

// Nothing where the random choice found no place for this kind of damage.
std::optional<Mutant> mutate(const ir::Program& base, Mutation mutation, std::mt19937_64& random);

}  // namespace lockstep::check_test
