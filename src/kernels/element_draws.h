// For which elements of which parameters an op on a rank's shard of a flat segment draws, as its kernels read it
// (ops/element_places.h, base/random_rounding.h). All of it is inlined always, so that sources compiled for one instruction set
// may use it.
#pragma once

#include <cstdint>

#include "base/random_rounding.h"

namespace lockstep::kernels {

// Element `begin + j` of the shard is element j of the rank's part of a parameter. `begin` may lie before the shard.
struct DrawnParameter {
    int64_t begin, first, run, rows, stride, far;
    uint64_t stream;

    // Where element i of the shard is in the whole parameter, and how many from it on are side by side there as here.
    struct Place {
        int64_t index, together;
    };
    [[gnu::always_inline]] constexpr Place at(int64_t i) const {
        const int64_t j = i - begin;
        if (j < run) return {first + j, run - j};
        const int64_t k = j / run, in_run = j - k * run;
        return {first + k / rows * far + k % rows * stride + in_run, run - in_run};
    }
};

struct ElementDraws {
    static constexpr int kMost = 48;  // parameters: a kernel of a GPU gets them as an argument
    int count;
    uint64_t seed;
    DrawnParameter of[kMost];  // in ascending order of `begin`

    // Elements [i, end) of the shard have the bits dropout_bits(row, index + k) for k from 0 on.
    struct Row {
        int64_t end;
        uint64_t row;
        uint32_t index;
    };
    // noise: rounding_noise of the seed.
    [[gnu::always_inline]] constexpr Row row_at(int64_t i, uint32_t noise, uint64_t layer) const {
        int k = 0;
        while (k + 1 < count && of[k + 1].begin <= i) ++k;
        const DrawnParameter::Place place = of[k].at(i);
        const int64_t until_carry = (int64_t{1} << 32) - (place.index & 0xffffffff);
        int64_t end = i + (place.together < until_carry ? place.together : until_carry);
        if (k + 1 < count && of[k + 1].begin < end) end = of[k + 1].begin;
        return {end, rounding_row(noise, of[k].stream, layer, place.index), static_cast<uint32_t>(place.index)};
    }
};

// How an update rounds its second moment.
struct MomentRounding {
    const ElementDraws* draws;
    const double* steps;
    uint64_t layer;
};

}  // namespace lockstep::kernels
