#include "base/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace lockstep {

uint64_t checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::string hex_checksum(uint64_t checksum) { return fmt::format("{:016x}", checksum); }
std::string hex_checksum(std::string_view bytes) { return hex_checksum(checksum(bytes)); }

}  // namespace lockstep
