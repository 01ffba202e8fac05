// The order in which training sees its windows: a keyed permutation per epoch, computed index by index. No shuffle file, no
// scan. Pure integer arithmetic: the same on every machine, whatever the batch size, the layout or the point of resumption.
// Source: a Feistel network with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
#pragma once

#include <cstdint>

namespace lockstep::data {

// A well mixed function of its argument (the finalizer of splitmix64).
constexpr uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// A permutation of [0, count), count >= 1, chosen by `key`.
class Permutation {
public:
    Permutation(int64_t count, uint64_t key);
    int64_t operator()(int64_t index) const;

private:
    uint64_t count_, key_, half_mask_;
    int half_bits_;
};

// The window shown as sample number `samples_seen` (from 0, across all epochs) of a run with this seed.
// Each epoch shows every window once, in an order of its own.
int64_t window_of_sample(int64_t samples_seen, int64_t windows, uint64_t seed);

}  // namespace lockstep::data
