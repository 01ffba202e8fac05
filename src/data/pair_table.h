// A read-mostly hash table from a pair of token ids to its merge: open addressing, linear probing, at most half full.
// The encoder's inner loop; std::unordered_map costs it a cache miss per node.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace lockstep::data {

struct PairMerge {
    int32_t rank;    // smaller merges first
    int32_t result;  // the id of the merged token
};

class PairTable {
public:
    static constexpr int32_t kNoRank = INT32_MAX;

    explicit PairTable(size_t pairs) : slots_(std::bit_ceil(pairs * 2 + 2)), mask_(slots_.size() - 1) {}

    bool empty() const { return used_ == 0; }

    // Of several merges of one pair the last holds, as in Hugging Face's tokenizers.
    void insert(int32_t left, int32_t right, PairMerge merge) {
        Slot& slot = slots_[slot_of(key(left, right))];
        if (slot.key == kEmpty) ++used_;
        slot = {key(left, right), merge};
    }

    // rank is kNoRank where the pair does not merge.
    PairMerge find(int32_t left, int32_t right) const {
        const Slot& slot = slots_[slot_of(key(left, right))];
        return slot.key == kEmpty ? PairMerge{kNoRank, -1} : slot.merge;
    }

private:
    static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are not negative, so no pair has this key
    struct Slot {
        uint64_t key = kEmpty;
        PairMerge merge{kNoRank, -1};
    };

    static uint64_t key(int32_t left, int32_t right) {
        return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    }

    size_t slot_of(uint64_t key) const {
        uint64_t hash = key * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
        size_t at = hash & mask_;
        while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask_;
        return at;
    }

    std::vector<Slot> slots_;
    size_t mask_;
    size_t used_ = 0;
};

}  // namespace lockstep::data
