// Dropout's bits (base/random.h) for a vector of elements. Include only from sources compiled once per instruction set.
#pragma once

#include "base/random.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

// `value` where its element is kept, else 0. index, low, high: of dropout_bits; one of them may be a scalar for all lanes.
LOCKSTEP_INLINE Vec keep_where(BitVec bits, uint32_t threshold, Vec value) { return bits >= threshold ? value : Vec{}; }

// The bits of one row.
class RowBits {
public:
    LOCKSTEP_INLINE RowBits(uint64_t row, uint32_t first_index)
        : low_(static_cast<uint32_t>(row)), high_(static_cast<uint32_t>(row >> 32)) {
        for (int i = 0; i < kLanes; ++i) lanes_[i] = first_index + static_cast<uint32_t>(i);
    }
    // Of the elements from `first` on.
    LOCKSTEP_INLINE BitVec at(int64_t first) const {
        return dropout_bits<BitVec>(lanes_ + static_cast<uint32_t>(first), low_, high_);
    }
    // `value` holds the elements from `first` on; what is dropped becomes 0.
    LOCKSTEP_INLINE Vec keep(int64_t first, uint32_t threshold, Vec value) const {
        return keep_where(at(first), threshold, value);
    }

private:
    uint32_t low_, high_;
    BitVec lanes_{};
};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
