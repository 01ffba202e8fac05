// What dropout leaves out, for the kernels of any backend.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// What is dropped (base/random.h): element i of row r where dropout_bits(dropout_row(stream, noise[r]), first_index + i) is
// below the threshold; the rest is multiplied by scale. Without noise nothing is.
struct DropoutMask {
    const int32_t* noise = nullptr;  // [rows]
    uint64_t stream = 0;
    uint32_t threshold = 0, first_index = 0;
    float scale = 1;
};

}  // namespace lockstep::kernels
