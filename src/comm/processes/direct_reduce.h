// A reduction by its owners: every member's values of a piece go to the part that owns it, which adds them in ascending
// position, or, of an all-to-all, keeps them side by side.
#pragma once

#include "comm/processes/targets.h"

namespace lockstep::comm::processes {

class DirectReduce {
public:
    // link.scratch.targets says what.
    DirectReduce(const Link& link, const Operands& operands);
    ~DirectReduce() { sends_.clear(), receives_.clear(); }
    DirectReduce(const DirectReduce&) = delete;
    DirectReduce& operator=(const DirectReduce&) = delete;
    Progress advance();

private:
    static constexpr int64_t kRounds = 8;  // under way

    bool send_round();
    bool post_round();
    bool reduce_round();
    int64_t slot(int64_t round, int64_t index, int64_t in_a_round) const { return round % kRounds * in_a_round + index; }
    bool all_done(std::vector<Message>& messages, int64_t round, int64_t in_a_round);
    std::byte* arrived(int64_t round, int64_t index) const {
        return receive_staging_ + slot(round, index, receives_a_round_) * limit_ * element_bytes_;
    }

    const Link link_;
    const Operands operands_;
    const int64_t element_bytes_, limit_;
    const std::vector<int>& own_;  // positions
    const int64_t sends_a_round_, receives_a_round_;
    int64_t rounds_ = 0, own_rounds_ = 0;
    int64_t sent_ = 0, posted_ = 0, reduced_ = 0;  // rounds
    std::byte *send_staging_ = nullptr, *receive_staging_ = nullptr;
    std::vector<Message>&sends_, &receives_;
    std::vector<Rows>& sources_;
};

}  // namespace lockstep::comm::processes
