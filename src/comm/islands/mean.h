// The arithmetic of a meeting: sums in the order of islands, in the type of the elements, or in float where these are int8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm::islands {

// Are these bytes whole floats (32 or 64 bits), or whole blocks of int8 (8 bits)?
bool are_elements(size_t bytes, int64_t bits);

// islands / n times the sum of n parts, each of them 1 / islands of what an island has: of all islands their mean, of fewer
// the mean of those. bits: 64, 32 or 8. The parts are equally long.
std::string mean_of(const std::vector<const std::string*>& parts, int64_t islands, int64_t bits);

}  // namespace lockstep::comm::islands
