#include "comm/processes/two_level_reduce.h"

#include <algorithm>

namespace lockstep::comm::processes {

int64_t TwoLevelReduce::limit(const Link& link, int hosts, int64_t element_bytes) {
    const int64_t share = std::max<int64_t>(kStagingBytes / (kWindows * kMostRounds * hosts), 4096);
    return std::max<int64_t>(std::min(link.piece_bytes, share) / element_bytes, 1);
}

int64_t TwoLevelReduce::rounds(const Link& link, int64_t limit) {
    int64_t rounds = 0;
    for (int part = 0; part < link.layout.parts(); ++part)
        rounds = std::max(rounds, rounds_of(link.scratch.targets, part, limit));
    return rounds;
}

TwoLevelReduce::TwoLevelReduce(const Link& link, const Operands& operands, const mesh::Levels& levels, Scratch& within,
                               Scratch& between)
    : link_(link),
      element_bytes_(bytes_of(operands.type)),
      limit_(limit(link, levels.between.parts(), element_bytes_)),
      all_rounds_(rounds(link, limit_)),
      rounds_(std::min(kMostRounds, all_rounds_)),
      levels_(levels),
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

// The pieces of a window for every slot, those of this one into the staging: [host][round][piece].
void TwoLevelReduce::begin_within() {
    std::vector<Target>& targets = within_link_.scratch.targets;
    targets.clear();
    for (int slot = 0; slot < slots_; ++slot) {
        for (int host = 0; host < hosts_; ++host) {
            for (int64_t round = 0; round < rounds_; ++round) {
                const Job job = job_of(link_.scratch.targets, host * slots_ + slot, reduced_ * rounds_ + round, limit_);
                if (!job.target) break;
                const Piece& p = job.piece;
                targets.push_back({slot,
                                   {first_element(job.target->from, p), p.rows, p.columns, job.target->from.stride},
                                   {(host * rounds_ + round) * limit_, p.rows, p.columns, p.columns},
                                   staging(reduced_)});
            }
        }
    }
    within_.emplace(within_link_, Operands{operands_.type, operands_.op, within_link_.scratch.ins});
}

void TwoLevelReduce::begin_between() {
    std::vector<Target>& targets = between_link_.scratch.targets;
    targets.clear();
    for (int host = 0; host < hosts_; ++host) {
        for (int64_t round = 0; round < rounds_; ++round) {
            const Job job = job_of(link_.scratch.targets, host * slots_ + slot_, sent_ * rounds_ + round, limit_);
            if (!job.target) break;
            const Piece& p = job.piece;
            targets.push_back({host,
                               {(host * rounds_ + round) * limit_, p.rows, p.columns, p.columns},
                               {first_element(job.target->to, p), p.rows, p.columns, job.target->to.stride},
                               job.target->out,
                               job.target->accumulate});
        }
    }
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
