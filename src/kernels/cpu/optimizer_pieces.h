// The pieces over which sum_of_squares adds up, fixed so that the order of the sum depends on nothing else.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cpu {

inline constexpr int64_t kSquareSumPiece = 16384;  // elements: 64 KiB, so that two threads share out even a small segment

int64_t sum_of_squares_pieces(int64_t n);

}  // namespace lockstep::kernels::cpu
