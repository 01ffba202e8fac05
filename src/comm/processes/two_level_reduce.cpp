#include "comm/processes/two_level_reduce.h"

#include <algorithm>

namespace lockstep::comm::processes {

TwoLevelReduce::TwoLevelReduce(const Link& link, const Operands& operands, const mesh::Levels& levels, Scratch& within,
                               Scratch& between)
    : link_(link),
      element_bytes_(bytes_of(operands.type)),
      limit_(staged_limit(link, kWindows * kMostRounds * levels.between.parts(), element_bytes_)),
      all_rounds_(most_rounds(link, limit_)),
      rounds_(std::min(kMostRounds, all_rounds_)),
      within_link_{link.wire,        link.tag, levels.within, levels.within.part_of_process(link.layout.process_of[link.me]),
                   link.piece_bytes, within},
      between_link_{link.wire, link.tag, levels.between, link.layout.host_of[link.me], link.piece_bytes, between},
      hosts_(levels.between.parts()),
      slots_(levels.within.parts()),
      slot_(within_link_.me),
      window_elements_(hosts_ * rounds_ * limit_),
      windows_(all_rounds_ == 0 ? 0 : (all_rounds_ + rounds_ - 1) / rounds_),
      operands_(operands) {
    staging_ = link.scratch.stage(kWindows * window_elements_ * element_bytes_);
    // Positions of a host follow each other, and are numbered from 0 within it.
    const int each = levels.within.members();
    const auto first = operands.in.begin() + between_link_.me * each;
    within.ins.assign(first, first + each);
}

// The pieces of a window that the owners of a slot get:
// f(host, target, its area of the operand, of the staging, of the result).
template <class F>
void TwoLevelReduce::each_piece(int slot, int64_t window, F f) const {
    for (int host = 0; host < hosts_; ++host) {
        for (int64_t round = 0; round < rounds_; ++round) {
            const Job job = job_of(link_.scratch.targets, host * slots_ + slot, window * rounds_ + round, limit_);
            if (!job.target) break;
            const Piece& p = job.piece;
            const Area &from = job.target->from, &to = job.target->to;
            f(host, *job.target, Area{first_element(from, p), p.rows, p.columns, from.stride},
              Area{(host * rounds_ + round) * limit_, p.rows, p.columns, p.columns},
              Area{first_element(to, p), p.rows, p.columns, to.stride});
        }
    }
}

void TwoLevelReduce::begin_within() {
    std::vector<Target>& targets = within_link_.scratch.targets;
    targets.clear();
    for (int slot = 0; slot < slots_; ++slot) {
        each_piece(slot, reduced_, [&](int, const Target&, const Area& from, const Area& staged, const Area&) {
            targets.push_back({slot, from, staged, staging(reduced_)});
        });
    }
    within_.emplace(within_link_, Operands{operands_.type, operands_.op, within_link_.scratch.ins});
}

void TwoLevelReduce::begin_between() {
    std::vector<Target>& targets = between_link_.scratch.targets;
    targets.clear();
    each_piece(slot_, sent_, [&](int host, const Target& target, const Area&, const Area& staged, const Area& to) {
        targets.push_back({host, staged, to, target.out, target.accumulate});
    });
    std::vector<const std::byte*>& staged = between_link_.scratch.ins;
    staged.assign(static_cast<size_t>(hosts_), nullptr);
    staged[static_cast<size_t>(between_link_.me)] = staging(sent_);
    between_.emplace(between_link_, Operands{operands_.type, operands_.op, staged});
}

Progress TwoLevelReduce::advance() {
    bool some = false;
    if (!within_ && reduced_ < windows_ && reduced_ < sent_ + kWindows) begin_within(), some = true;
    if (within_) {
        const Progress p = within_->advance();
        some = some || p != Progress::None;
        if (p == Progress::Done) within_.reset(), ++reduced_;
    }
    if (!between_ && sent_ < reduced_) begin_between(), some = true;
    if (between_) {
        const Progress p = between_->advance();
        some = some || p != Progress::None;
        if (p == Progress::Done) between_.reset(), ++sent_;
    }
    if (sent_ == windows_) return Progress::Done;
    return some ? Progress::Some : Progress::None;
}

}  // namespace lockstep::comm::processes
