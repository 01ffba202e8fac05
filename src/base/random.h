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
[[gnu::always_inline]] constexpr uint64_t splitmix64(uint64_t x) {
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

// Dropout. An element is dropped where its bits are below the threshold. Its bits depend on the place in the model (site and
// layer), the token (its noise, which knows seed, sample and place in the sample), the head if there is one, and the element's
// index in its row: never on where it is or when it is computed.
constexpr uint32_t token_noise(uint64_t seed, uint64_t sample, uint64_t token) {
    return static_cast<uint32_t>(splitmix64(splitmix64(splitmix64(seed) + sample) + token) >> 32);
}
[[gnu::always_inline]] constexpr uint64_t dropout_stream(uint64_t site, uint64_t layer) {
    return splitmix64(site + splitmix64(layer));
}
[[gnu::always_inline]] constexpr uint64_t dropout_row(uint64_t stream, uint32_t noise, uint64_t head = 0) {
    return splitmix64(splitmix64(stream ^ noise) + head);
}
// A bijection of 32 bits ("lowbias32", Wellons 2018). U: uint32_t, or a vector of it in kernels.
template <class U>
[[gnu::always_inline]] constexpr U mix32(U x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}
// U: uint32_t, or vectors of it; `low` and `high` are the halves of the row's key.
template <class U, class K>
[[gnu::always_inline]] constexpr U dropout_bits(U index, K low, K high) {
    return mix32<U>(mix32<U>(index ^ low) ^ high);
}
constexpr uint32_t dropout_bits(uint64_t row, uint32_t index) {
    return dropout_bits(index, static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32));
}
constexpr uint32_t dropout_threshold(double probability) { return static_cast<uint32_t>(probability * 4294967296.0); }

}  // namespace lockstep
