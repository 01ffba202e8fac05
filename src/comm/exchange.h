// Collectives of members that send each other bytes: who sends what to whom, and sums, which kernels make of it in ascending
// position. For transports that give all this to a device's queue (comm/nccl, comm/peer); they differ in how bytes move, the
// Wire:
//   send(rows, from, to, there)   rows of `from` to a member; `there`: where it puts them, were it this member
//   receive(rows, into, from)     rows from a member
//   launch()                      moves together all that was sent and received since the last launch
// What a member sends to another and what that one receives from it match in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/round.h"
#include "comm/block_rows.h"
#include "comm/moves.h"

namespace lockstep::comm {

struct ExchangeOptions {
    // Of a queue's memory for what others send of a sum. Longer sums go in chunks.
    int64_t scratch_bytes = int64_t{32} << 20;
    // The longest sum that every member makes whole, of what all send it: one exchange instead of two.
    int64_t small_bytes = 64 << 10;
};

// Memory of a queue for sums.
struct ExchangeScratch {
    // Of a member's part of a chunk, a piece of its own.
    struct Part {
        const char* from;
        int64_t at, bytes;  // in the chunk
    };
    char* memory = nullptr;
    std::vector<Part> own;  // kept, so that a launch allocates nothing
};

template <class Wire>
class Exchange {
public:
    Exchange(Wire& wire, const Moves& moves, device::Queue& queue, ExchangeScratch& scratch, int members, int position,
             const ExchangeOptions& options)
        : wire_(wire),
          moves_(moves),
          queue_(queue),
          scratch_(scratch),
          members_(members),
          position_(position),
          options_(options) {}

    // Of requests that do not add: what is sent and received.
    void move(const Request& r) const {
        switch (r.kind) {
            case Collective::AllGather: return all_gather(r);
            case Collective::AllToAll: return all_to_all(r);
            case Collective::Broadcast: return broadcast(r);
            case Collective::Permute:
                give((position_ + r.by) % members_, one_row(r.block_bytes()), r.in, r.out);
                if (r.by % members_ != 0)
                    wire_.receive(one_row(r.block_bytes()), r.out, (position_ - r.by + members_) % members_);
                return;
            case Collective::Send: return wire_.send(one_row(r.block_bytes()), r.in, 1, nullptr);
            case Collective::Recv: return wire_.receive(one_row(r.block_bytes()), r.out, 0);
            case Collective::ReduceScatter:
            case Collective::AllReduce: return;  // reduce()
            case Collective::Wait: return;       // what follows in the queue follows the send
        }
    }

    // Launches by itself.
    void reduce(const Request& r) const {
        if (r.kind == Collective::ReduceScatter) reduce_scatter(r);
        if (r.kind == Collective::AllReduce) all_reduce(r);
    }

private:
    static Rows one_row(int64_t bytes) { return {1, bytes, bytes, bytes}; }
    // To a member, which may be this one.
    void give(int to, const Rows& rows, const void* from, void* there) const {
        if (rows.count * rows.bytes == 0) return;
        if (to == position_) moves_.copy(queue_, rows, from, there);
        else wire_.send(rows, from, to, there);
    }
    // f(member): first the one before this, so that at any time each sends to another.
    template <class F>
    void for_others(const F& f) const {
        for (int step = 1; step < members_; ++step) f((position_ - step + members_) % members_);
    }

    void all_gather(const Request& r) const {
        const int64_t run_bytes = r.dim * r.inner * bytes_of(r.type);
        const Rows rows = {r.outer, run_bytes, run_bytes, members_ * run_bytes};
        if (r.block_bytes() == 0) return;
        auto* const out = static_cast<char*>(r.out);
        give(position_, rows, r.in, out + position_ * run_bytes);
        for_others([&](int k) {
            wire_.send(rows, r.in, k, out + position_ * run_bytes);
            wire_.receive(rows, out + k * run_bytes, k);
        });
    }

    // Rows of a block are cut where those of the result are, on both sides.
    void all_to_all(const Request& r) const {
        const int64_t run_bytes = r.dim * r.inner * bytes_of(r.type), run_out_bytes = r.block_bytes() / r.outer_out;
        if (r.block_bytes() == 0) return;
        const auto pieces = [&](int member, const auto& f) {
            for (int64_t o = 0; o < r.outer; ++o) {
                for_rows(run_out_bytes, members_ * run_out_bytes, o * run_bytes, run_bytes,
                         [&](int64_t to, int64_t at, int64_t bytes) {
                             f(one_row(bytes), static_cast<const char*>(r.in) + (o * members_ + member) * run_bytes + at, to);
                         });
            }
        };
        auto* const out = static_cast<char*>(r.out);
        const auto send = [&](int k) {
            pieces(k, [&](const Rows& row, const char* from, int64_t to) {
                give(k, row, from, out + position_ * run_out_bytes + to);
            });
        };
        send(position_);
        for_others([&](int k) {
            send(k);
            pieces(k, [&](const Rows& row, const char*, int64_t to) { wire_.receive(row, out + k * run_out_bytes + to, k); });
        });
    }

    void broadcast(const Request& r) const {
        if (r.block_bytes() == 0) return;
        if (position_ != r.root) return wire_.receive(one_row(r.block_bytes()), r.out, r.root);
        give(position_, one_row(r.block_bytes()), r.in, r.out);
        for_others([&](int k) { wire_.send(one_row(r.block_bytes()), r.in, k, r.out); });
    }

    void reduce_scatter(const Request& r) const {
        const int64_t run = r.dim * r.inner, size = bytes_of(r.type);
        const auto* const in = static_cast<const char*>(r.in);
        in_chunks(r, r.block_elements(), [&](int64_t begin, int64_t count, const auto& give) {
            for (int k = 0; k < members_; ++k) {
                for_rows(run * size, members_ * run * size, begin * size, count * size,
                         [&](int64_t place, int64_t at, int64_t bytes) { give(k, in + k * run * size + place, at, bytes); });
            }
            return static_cast<char*>(r.out) + begin * size;
        });
    }

    // Each member makes a slice, and gives it to all; or, where it is short, the whole.
    void all_reduce(const Request& r) const {
        const int64_t size = bytes_of(r.type), total = r.block_elements();
        const auto* const in = static_cast<const char*>(r.in);
        auto* const out = static_cast<char*>(r.out);
        if (total * size <= options_.small_bytes) {
            in_chunks(r, total, [&](int64_t begin, int64_t count, const auto& give) {
                for (int k = 0; k < members_; ++k) give(k, in + begin * size, 0, count * size);
                return out + begin * size;
            });
            return;
        }
        const int64_t slice = round_up((total + members_ - 1) / members_, kAlignmentBytes / size);
        const auto begin_of = [&](int k) { return std::min(total, k * slice); };
        // Of a member's slice, the part in a chunk: the last slices are shorter.
        const auto part = [&](int k, int64_t begin) { return std::min(begin_of(k) + begin, begin_of(k + 1)); };
        in_chunks(r, slice, [&](int64_t begin, int64_t count, const auto& give) {
            for (int k = 0; k < members_; ++k)
                give(k, in + part(k, begin) * size, 0, (part(k, begin + count) - part(k, begin)) * size);
            return out + part(position_, begin) * size;
        });
        const auto slice_bytes = [&](int k) { return (begin_of(k + 1) - begin_of(k)) * size; };
        for_others([&](int k) {
            char *const own = out + begin_of(position_) * size, *const other = out + begin_of(k) * size;
            if (slice_bytes(position_) > 0) wire_.send(one_row(slice_bytes(position_)), own, k, own);
            if (slice_bytes(k) > 0) wire_.receive(one_row(slice_bytes(k)), other, k);
        });
        wire_.launch();
    }

    // A sum of `elements` at most for each member, a chunk after the other: give_all(begin, count, give) gives each member
    // its part of a chunk by give(member, from, where in the chunk, bytes), and says where this one's result begins. All
    // members cut a part in the same way: what others send here has the sizes of the pieces of this one's own part.
    template <class GiveAll>
    void in_chunks(const Request& r, int64_t elements, const GiveAll& give_all) const {
        const int64_t size = bytes_of(r.type);
        const int64_t most = options_.scratch_bytes / members_ / kAlignmentBytes * kAlignmentBytes / size;
        const auto place = [&](int member) { return scratch_.memory + member * most * size; };
        for (int64_t begin = 0; begin < elements; begin += most) {
            scratch_.own.clear();
            char* const out =
                give_all(begin, std::min(most, elements - begin), [&](int member, const char* from, int64_t at, int64_t bytes) {
                    if (member == position_) scratch_.own.push_back({from, at, bytes});
                    else if (bytes > 0) wire_.send(one_row(bytes), from, member, place(position_) + at);
                });
            int64_t own_bytes = 0;
            for (const ExchangeScratch::Part& part : scratch_.own) {
                own_bytes += part.bytes;
                if (part.bytes == 0) continue;
                for_others([&](int k) { wire_.receive(one_row(part.bytes), place(k) + part.at, k); });
            }
            wire_.launch();
            if (own_bytes == 0) continue;
            for (const ExchangeScratch::Part& part : scratch_.own)
                moves_.copy(queue_, {1, part.bytes, 0, 0}, part.from, place(position_) + part.at);
            const auto in = [&](int member) -> const void* { return place(member); };
            const auto to = [&](int) -> void* { return out; };
            moves_.reduce(queue_, {r.type, r.op, members_, r.level(), in, 1, to, r.accumulate, own_bytes / size});
        }
    }

    Wire& wire_;
    const Moves& moves_;
    device::Queue& queue_;
    ExchangeScratch& scratch_;
    const int members_, position_;
    const ExchangeOptions options_;
};

}  // namespace lockstep::comm
