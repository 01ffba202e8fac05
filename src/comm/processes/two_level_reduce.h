// A reduction in two levels: the members of a host are reduced by those of its processes that have the slots of the owners, one
// value a host goes on to the owner, who reduces these. In windows of pieces: while one goes between the hosts, the next is
// reduced within them.
#pragma once

#include <optional>

#include "comm/processes/direct_reduce.h"

namespace lockstep::comm::processes {

class TwoLevelReduce {
public:
    // link.scratch.targets says what; `within` and `between` are for the two levels.
    TwoLevelReduce(const Link& link, const Operands& operands, const mesh::Levels& levels, Scratch& within, Scratch& between);
    Progress advance();

private:
    static constexpr int64_t kMostRounds = 32;  // of a window: a round has a piece of each owner
    static constexpr int64_t kWindows = 2;      // one at each level

    template <class F>
    void each_piece(int slot, int64_t window, F f) const;
    void begin_within();
    void begin_between();
    std::byte* staging(int64_t window) const { return staging_ + window % kWindows * window_elements_ * element_bytes_; }

    const Link link_;
    const int64_t element_bytes_, limit_;
    const int64_t all_rounds_, rounds_;  // of a window at most
    const Link within_link_, between_link_;
    const int hosts_, slots_, slot_;
    const int64_t window_elements_;  // of the sums of one host for the owners of one slot
    const int64_t windows_;
    int64_t reduced_ = 0, sent_ = 0;  // windows
    std::byte* staging_ = nullptr;
    const Operands operands_;
    std::optional<DirectReduce> within_, between_;
};

}  // namespace lockstep::comm::processes
