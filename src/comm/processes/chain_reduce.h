// A reduction along a chain: the first part sends each piece's sum over its members to the second, which adds its own, and so
// on; the last sends the result to the part that owns it. Sums are taken in ascending position.
#pragma once

#include <array>

#include "comm/processes/targets.h"

namespace lockstep::comm::processes {

class ChainReduce {
public:
    // link.scratch.targets says what; link.layout.chain is not empty.
    ChainReduce(const Link& link, const Operands& operands);
    Progress advance();

private:
    struct Turn {
        int64_t round = 0;
        int part = 0;
    };
    struct Window {
        std::array<Message, kWindow> messages;
        std::byte* staging = nullptr;
        int64_t begun = 0, ended = 0;
    };

    bool settle(Turn& turn) const;
    bool post_sums();
    bool post_results();
    bool pass_on();
    bool take_results();
    Job job(const Turn& turn) const { return job_of(link_.scratch.targets, turn.part, turn.round, limit_); }
    std::byte* slot(const Window& w, int64_t index) const { return w.staging + index % kWindow * limit_ * element_bytes_; }

    const Link link_;
    const Operands operands_;
    const int64_t element_bytes_, limit_;
    const std::vector<int>& own_;               // positions
    int before_ = -1, after_ = -1, last_ = -1;  // parts; -1: none
    int64_t rounds_ = 0, own_rounds_ = 0;
    Turn next_, next_sum_;  // the piece to pass on; the piece whose sum to expect
    Window sums_, results_, sends_;
    std::vector<Rows>& sources_;
};

}  // namespace lockstep::comm::processes
