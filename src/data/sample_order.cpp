#include "data/sample_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr int kRounds = 8;
// Two halves of fewer bits have too few round functions to mix a small domain. The walk then passes at most 64 values.
constexpr int kFewestHalfBits = 3;

}  // namespace

Permutation::Permutation(int64_t count, uint64_t key) : count_(static_cast<uint64_t>(count)), key_(key) {
    ensure(count >= 1, "Permutation: an empty domain");
    half_bits_ = std::max(kFewestHalfBits, (static_cast<int>(std::bit_width(count_ - 1)) + 1) / 2);
    half_mask_ = (uint64_t{1} << half_bits_) - 1;
}

// The network permutes [0, 4^half_bits), less than 4 * count for all but small counts. Walking on from a value outside
// [0, count) until one is inside restricts that permutation to [0, count): it follows one cycle, so it stays one to one.
int64_t Permutation::operator()(int64_t index) const {
    ensure(index >= 0 && static_cast<uint64_t>(index) < count_, "Permutation: index outside the domain");
    auto value = static_cast<uint64_t>(index);
    do {
        uint64_t left = value >> half_bits_, right = value & half_mask_;
        for (int round = 0; round < kRounds; ++round) {
            const uint64_t mixed = mix64(key_ ^ mix64(right * kRounds + round));
            left = std::exchange(right, left ^ (mixed & half_mask_));
        }
        value = left << half_bits_ | right;
    } while (value >= count_);
    return static_cast<int64_t>(value);
}

int64_t window_of_sample(int64_t samples_seen, int64_t windows, uint64_t seed) {
    const auto epoch = static_cast<uint64_t>(samples_seen / windows);
    return Permutation(windows, mix64(seed ^ mix64(epoch)))(samples_seen % windows);
}

}  // namespace lockstep::data
