// How large a recipe may be: bounds of the keys' ranges and of what they multiply to. Within them no product of sizes leaves 64
// bits, and compiling ends in minutes. docs/recipes.md states them.
#pragma once

#include <cstdint>

namespace lockstep::compile {

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostMicrobatches = 1 << 16;
constexpr int64_t kMostRuns = 1 << 19;         // of layers and chunks of the loss, in a step of a rank
constexpr int64_t kSize = 1 << 30;             // sequences, tokens, layers: of any one number
constexpr int64_t kSteps = 1'000'000'000'000;  // and all that counts steps
constexpr int64_t kBytes = int64_t{1} << 50;   // of a rank's memory

constexpr double kMostElements = 0x1p54;  // of a tensor over all ranks
constexpr double kMostBytes = 0x1p62;     // of all tensors of a step over all ranks

}  // namespace lockstep::compile
