// How AMX's eight tiles are set up: 16 rows of 64 bytes each.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cpu {

struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfiguration kWholeTiles{};

}  // namespace lockstep::kernels::cpu
