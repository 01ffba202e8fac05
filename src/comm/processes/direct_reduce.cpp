#include "comm/processes/direct_reduce.h"

#include <algorithm>

namespace lockstep::comm::processes {

DirectReduce::DirectReduce(const Link& link, const Operands& operands)
    : link_(link),
      operands_(operands),
      element_bytes_(bytes_of(operands.type)),
      limit_(staged_limit(link, kRounds * link.layout.members(), element_bytes_)),
      own_(link.layout.positions[link.me]),
      sends_a_round_(static_cast<int64_t>(own_.size()) * (link.layout.parts() - 1)),
      receives_a_round_(link.layout.members() - static_cast<int64_t>(own_.size())),
      sends_(link.scratch.sends),
      receives_(link.scratch.receives),
      sources_(link.scratch.sources) {
    const std::vector<Target>& targets = link_.scratch.targets;
    rounds_ = most_rounds(link_, limit_);
    own_rounds_ = rounds_of(targets, link_.me, limit_);
    sends_.resize(static_cast<size_t>(kRounds * sends_a_round_));
    receives_.resize(static_cast<size_t>(kRounds * receives_a_round_));
    sources_.resize(static_cast<size_t>(link_.layout.members()));
    const bool staged = std::any_of(targets.begin(), targets.end(),
                                    [&](const Target& t) { return t.from.run < limit_ && t.from.stride != t.from.run; });
    const int64_t send_slots = staged ? kRounds * sends_a_round_ : 0;
    receive_staging_ = link_.scratch.stage((kRounds * receives_a_round_ + send_slots) * limit_ * element_bytes_);
    send_staging_ = receive_staging_ + kRounds * receives_a_round_ * limit_ * element_bytes_;
}

bool DirectReduce::all_done(std::vector<Message>& messages, int64_t round, int64_t in_a_round) {
    const auto first = messages.begin() + slot(round, 0, in_a_round);
    return std::all_of(first, first + in_a_round, [](Message& m) { return m.done(); });
}

bool DirectReduce::send_round() {
    if (sent_ == rounds_ || !all_done(sends_, sent_, sends_a_round_)) return false;  // of the round that used the slots
    int64_t index = 0;
    for (int step = 1; step < link_.layout.parts(); ++step) {
        const int to = (link_.me + step) % link_.layout.parts();
        const Job job = job_of(link_.scratch.targets, to, sent_, limit_);
        if (!job.target) continue;
        for (int position : own_) {
            const int64_t own_slot = slot(sent_, index++, sends_a_round_);
            const Rows rows = rows_of(operands_.in[position], job, element_bytes_);
            const std::byte* data = rows.data;
            if (!is_one_run(job.target->from, job.piece)) {
                std::byte* packed = send_staging_ + own_slot * limit_ * element_bytes_;
                copy_rows({packed, job.piece.columns}, rows, job.piece.rows, job.piece.columns, element_bytes_);
                data = packed;
            }
            sends_[own_slot] = link_.send(to, data, job.piece.elements() * element_bytes_);
        }
    }
    ++sent_;
    return true;
}

bool DirectReduce::post_round() {
    if (posted_ == own_rounds_ || posted_ == reduced_ + kRounds) return false;
    const Job job = job_of(link_.scratch.targets, link_.me, posted_, limit_);
    int64_t index = 0;
    for (int position = 0; position < link_.layout.members(); ++position) {
        const int part = link_.layout.part_of[position];
        if (part == link_.me) continue;
        receives_[slot(posted_, index, receives_a_round_)] =
            link_.receive(part, arrived(posted_, index), job.piece.elements() * element_bytes_);
        ++index;
    }
    ++posted_;
    return true;
}

bool DirectReduce::reduce_round() {
    if (reduced_ == posted_ || !all_done(receives_, reduced_, receives_a_round_)) return false;
    const Job job = job_of(link_.scratch.targets, link_.me, reduced_, limit_);
    int64_t index = 0;
    for (int position = 0; position < link_.layout.members(); ++position) {
        const bool here = link_.layout.part_of[position] == link_.me;
        sources_[position] =
            here ? rows_of(operands_.in[position], job, element_bytes_) : Rows{arrived(reduced_, index++), job.piece.columns};
    }
    store(operands_, sources_, job);
    ++reduced_;
    return true;
}

Progress DirectReduce::advance() {
    bool some = false;
    while (post_round()) some = true;
    while (send_round()) some = true;
    while (reduce_round()) some = true;
    if (sent_ == rounds_ && reduced_ == own_rounds_ &&
        std::all_of(sends_.begin(), sends_.end(), [](Message& m) { return m.done(); }))
        return Progress::Done;
    return some ? Progress::Some : Progress::None;
}

}  // namespace lockstep::comm::processes
