// Random numbers as pure functions of (seed, name, index), in integer arithmetic, so that every layout and machine draws the
// same.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// FNV-1a, 64 bits.
constexpr uint64_t hash_name(std::string_view name) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return h;
}

// Output function of splitmix64 (Steele, Lea, Flood 2014) applied to x + its increment.
constexpr uint64_t splitmix64(uint64_t x) {
    uint64_t z = x + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// A draw of mean 0, variance 1, close to normal and never beyond 6: the sum of twelve uniform 16-bit integers.
// Exact in double, so the same bits everywhere.
constexpr double normal_draw(uint64_t stream, uint64_t index) {
    int64_t sum = 0;
    for (uint64_t k = 0; k < 3; ++k) {
        uint64_t bits = splitmix64(stream + splitmix64(3 * index + k));
        for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<int64_t>(bits & 0xffff);
    }
    return static_cast<double>(2 * sum - 12 * 65535) / 131072.0;
}

}  // namespace lockstep
