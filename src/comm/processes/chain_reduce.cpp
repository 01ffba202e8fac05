#include "comm/processes/chain_reduce.h"

#include <algorithm>

namespace lockstep::comm::processes {

ChainReduce::ChainReduce(const Link& link, const Operands& operands)
    : link_(link),
      operands_(operands),
      element_bytes_(bytes_of(operands.type)),
      limit_(std::max<int64_t>(link.piece_bytes / element_bytes_, 1)),
      own_(link.layout.positions[link.me]),
      sources_(link.scratch.sources) {
    const std::vector<int>& chain = link_.layout.chain;
    const auto self = std::find(chain.begin(), chain.end(), link_.me);
    if (self != chain.begin()) before_ = *(self - 1);
    if (self + 1 != chain.end()) after_ = *(self + 1);
    last_ = chain.back();
    rounds_ = most_rounds(link_, limit_);
    own_rounds_ = rounds_of(link_.scratch.targets, link_.me, limit_);
    const int64_t window_bytes = kWindow * limit_ * element_bytes_;
    sends_.staging = link_.scratch.stage(3 * window_bytes);
    sums_.staging = sends_.staging + window_bytes;
    results_.staging = sums_.staging + window_bytes;
}

// Moves on to a turn that has a piece. False at the end.
bool ChainReduce::settle(Turn& turn) const {
    for (; turn.round < rounds_; ++turn.round, turn.part = 0) {
        for (; turn.part < link_.layout.parts(); ++turn.part) {
            if (job(turn).target) return true;
        }
    }
    return false;
}

bool ChainReduce::post_sums() {
    if (before_ < 0 || sums_.begun - sums_.ended == kWindow || !settle(next_sum_)) return false;
    sums_.messages[sums_.begun % kWindow] =
        link_.receive(before_, slot(sums_, sums_.begun), job(next_sum_).piece.elements() * element_bytes_);
    ++sums_.begun, ++next_sum_.part;
    return true;
}

bool ChainReduce::post_results() {
    if (link_.me == last_ || results_.begun - results_.ended == kWindow || results_.begun == own_rounds_) return false;
    results_.messages[results_.begun % kWindow] =
        link_.receive(last_, slot(results_, results_.begun), job({results_.begun, link_.me}).piece.elements() * element_bytes_);
    ++results_.begun;
    return true;
}

bool ChainReduce::pass_on() {
    if (!settle(next_)) return false;
    if (before_ >= 0 && (sums_.ended == sums_.begun || !sums_.messages[sums_.ended % kWindow].done())) return false;
    const Job job = this->job(next_);
    const bool stays = link_.me == last_ && job.target->part == link_.me;
    Message& send = sends_.messages[sends_.begun % kWindow];
    if (!stays && !send.done()) return false;

    sources_.clear();
    if (before_ >= 0) sources_.push_back({slot(sums_, sums_.ended), job.piece.columns});
    for (int position : own_) sources_.push_back(rows_of(operands_.in[position], job, element_bytes_));
    if (stays) {
        store(operands_, sources_, job);
    } else {
        std::byte* sum = slot(sends_, sends_.begun++);
        reduce_rows(operands_.type, operands_.op, sources_, {sum, job.piece.columns}, job.piece.rows, job.piece.columns, false);
        send = link_.send(after_ >= 0 ? after_ : job.target->part, sum, job.piece.elements() * element_bytes_);
    }
    if (before_ >= 0) ++sums_.ended;
    ++next_.part;
    return true;
}

bool ChainReduce::take_results() {
    if (results_.ended == results_.begun || !results_.messages[results_.ended % kWindow].done()) return false;
    const Job job = this->job({results_.ended, link_.me});
    const Rows result = {slot(results_, results_.ended), job.piece.columns};
    store(operands_, std::span(&result, 1), job);
    ++results_.ended;
    return true;
}

Progress ChainReduce::advance() {
    bool some = false;
    while (post_sums() || post_results() || pass_on() || take_results()) some = true;
    const bool results_done = link_.me == last_ || results_.ended == own_rounds_;
    if (!settle(next_) && results_done &&
        std::all_of(sends_.messages.begin(), sends_.messages.end(), [](Message& m) { return m.done(); })) {
        return Progress::Done;
    }
    return some ? Progress::Some : Progress::None;
}

}  // namespace lockstep::comm::processes
