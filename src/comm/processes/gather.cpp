#include "comm/processes/gather.h"

#include <algorithm>

#include "comm/processes/rows.h"

namespace lockstep::comm::processes {

Gather::Gather(const Link& link, const mesh::Hops& hops, int64_t element_bytes, std::byte* out)
    : link_(link),
      element_bytes_(element_bytes),
      limit_(std::max<int64_t>(link.piece_bytes / element_bytes, 1)),
      out_(out),
      hops_(hops) {
    int64_t pieces = 0;
    bool staged = false;
    for (Block& block : link_.scratch.blocks) {
        block.first_piece = pieces;
        pieces += count_pieces(block.to, limit_);
        staged = staged || (block.to.run < limit_ && block.to.stride != block.to.run);
    }
    if (staged) {
        send_staging_ = link_.scratch.stage(2 * kWindow * limit_ * element_bytes_);
        receive_staging_ = send_staging_ + kWindow * limit_ * element_bytes_;
    }
    link_.scratch.there.assign(static_cast<size_t>(pieces), 0);
    copy_own();
}

void Gather::copy_own() {
    for (const Block& block : link_.scratch.blocks) {
        if (block.part != link_.me) continue;
        copy_rows({out_ + block.to.base * element_bytes_, block.to.stride}, {block.from, block.to.run}, block.to.rows,
                  block.to.run, element_bytes_);
        const auto first = link_.scratch.there.begin() + block.first_piece;
        std::fill(first, first + count_pieces(block.to, limit_), uint8_t{1});
    }
}

// Moves the cursor on to a piece, past hops and blocks that have none. False at the end.
bool Gather::settle(Cursor& c, const std::vector<mesh::Hop>& hops) const {
    const std::vector<Block>& blocks = link_.scratch.blocks;
    for (; c.hop < hops.size(); ++c.hop, c.inside = false) {
        const int part = hops[c.hop].part;
        if (!c.inside) {
            const auto first = std::partition_point(blocks.begin(), blocks.end(), [&](const Block& b) { return b.part < part; });
            c.block = static_cast<size_t>(first - blocks.begin()), c.piece = 0, c.inside = true;
        }
        for (; c.block < blocks.size() && blocks[c.block].part == part; ++c.block, c.piece = 0) {
            if (c.piece < count_pieces(blocks[c.block].to, limit_)) return true;
        }
    }
    return false;
}

bool Gather::post_receives() {
    const int64_t before = posted_;
    for (; posted_ - arrived_ < kWindow && settle(next_receive_, hops_.receives); ++posted_, ++next_receive_.piece) {
        const Cursor& at = next_receive_;
        std::byte* to = is_one_run(block(at).to, piece(at)) ? place(at) : slot(receive_staging_, posted_);
        Slot& own = receives_[posted_ % kWindow];
        own.message = link_.receive(hops_.receives[at.hop].peer, to, piece(at).elements() * element_bytes_);
        own.at = at;
    }
    return posted_ != before;
}

bool Gather::take_arrived() {
    const int64_t before = arrived_;
    for (; arrived_ < posted_ && receives_[arrived_ % kWindow].message.done(); ++arrived_) {
        const Cursor& at = receives_[arrived_ % kWindow].at;
        const Piece p = piece(at);
        if (!is_one_run(block(at).to, p)) {
            copy_rows({place(at), block(at).to.stride}, {slot(receive_staging_, arrived_), p.columns}, p.rows, p.columns,
                      element_bytes_);
        }
        there(at) = 1;
    }
    return arrived_ != before;
}

bool Gather::send_ready() {
    const int64_t before = sent_;
    for (; settle(next_send_, hops_.sends) && there(next_send_); ++sent_, ++next_send_.piece) {
        Slot& own = sends_[sent_ % kWindow];
        if (!own.message.done()) break;
        const Cursor& at = next_send_;
        const Piece p = piece(at);
        const std::byte* from = place(at);
        if (!is_one_run(block(at).to, p)) {
            copy_rows({slot(send_staging_, sent_), p.columns}, {from, block(at).to.stride}, p.rows, p.columns, element_bytes_);
            from = slot(send_staging_, sent_);
        }
        own.message = link_.send(hops_.sends[at.hop].peer, from, p.elements() * element_bytes_);
    }
    return sent_ != before;
}

Progress Gather::advance() {
    bool some = post_receives();
    some |= take_arrived();
    some |= send_ready();
    const bool all_posted = !settle(next_receive_, hops_.receives), all_sent = !settle(next_send_, hops_.sends);
    if (all_posted && all_sent && arrived_ == posted_ &&
        std::all_of(sends_.begin(), sends_.end(), [](Slot& s) { return s.message.done(); })) {
        return Progress::Done;
    }
    return some ? Progress::Some : Progress::None;
}

}  // namespace lockstep::comm::processes
