// XXH3-64, the checksum of everything that this project writes; as text the 16 digits that `xxhsum -H3` prints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

uint64_t checksum(std::string_view bytes);
std::string hex_checksum(uint64_t checksum);
std::string hex_checksum(std::string_view bytes);

}  // namespace lockstep
