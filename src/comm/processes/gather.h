// Brings blocks of parts to one buffer of every process, along a list of hops (mesh/algorithms.h). A piece goes on as soon
// as it is there.
#pragma once

#include <array>

#include "comm/processes/link.h"

namespace lockstep::comm::processes {

class Gather {
public:
    // link.scratch.blocks says what. Blocks of this part are copied to `out` too.
    Gather(const Link& link, const mesh::Hops& hops, int64_t element_bytes, std::byte* out);
    Progress advance();

private:
    struct Cursor {  // a piece of a block of the part of a hop
        size_t hop = 0, block = 0;
        int64_t piece = 0;
        bool inside = false;  // block and piece are of this hop's part
    };
    struct Slot {
        Message message;
        Cursor at;
    };
    using Slots = std::array<Slot, kWindow>;

    bool settle(Cursor& cursor, const std::vector<mesh::Hop>& hops) const;
    const Block& block(const Cursor& c) const { return link_.scratch.blocks[c.block]; }
    Piece piece(const Cursor& c) const { return piece_of(block(c).to, limit_, c.piece); }
    uint8_t& there(const Cursor& c) { return link_.scratch.there[static_cast<size_t>(block(c).first_piece + c.piece)]; }
    std::byte* place(const Cursor& c) const { return out_ + first_element(block(c).to, piece(c)) * element_bytes_; }
    std::byte* slot(std::byte* staging, int64_t index) const { return staging + index % kWindow * limit_ * element_bytes_; }
    void copy_own();
    bool post_receives();
    bool take_arrived();
    bool send_ready();

    const Link link_;
    const int64_t element_bytes_, limit_;
    std::byte* const out_;
    const mesh::Hops& hops_;
    Cursor next_send_, next_receive_;
    Slots sends_, receives_;
    std::byte *send_staging_ = nullptr, *receive_staging_ = nullptr;
    int64_t sent_ = 0, posted_ = 0, arrived_ = 0;
};

}  // namespace lockstep::comm::processes
