#include "comm/local_copy.h"

#include <algorithm>

#include "comm/block_rows.h"

namespace lockstep::comm::local {
namespace {

constexpr int64_t kLineBytes = 64;

// One request of a launch, seen from one member.
class Share {
public:
    Share(const Moves& moves, device::Queue& queue, std::span<const Requests> launch, size_t index, int position)
        : moves_(moves),
          queue_(queue),
          launch_(launch),
          index_(index),
          position_(position),
          members_(static_cast<int>(launch.size())),
          mine_(of(position)),
          element_bytes_(bytes_of(mine_.type)) {}

    void all_gather() const {
        const int64_t run_bytes = mine_.dim * mine_.inner * element_bytes_;
        // Starting with the own block keeps members from reading the same buffer at the same time.
        for (int step = 0; step < members_; ++step) {
            const int from = (position_ + step) % members_;
            moves_.copy(queue_, {mine_.outer, run_bytes, run_bytes, members_ * run_bytes}, in(from),
                        out(position_) + from * run_bytes);
        }
    }

    void reduce_scatter() const {
        const int64_t run = mine_.dim * mine_.inner;
        for (int64_t o = 0; o < mine_.outer; ++o) {
            reduce((o * members_ + position_) * run, run, 1, [&](int) { return out(position_) + o * run * element_bytes_; });
        }
    }

    // Each member reduces one slice and writes it to all: one pass over memory less than reduce-scatter, then all-gather.
    void all_reduce() const {
        const int64_t total = mine_.block_elements();
        const int64_t line = kLineBytes / element_bytes_;
        const int64_t share = (total + members_ - 1) / members_;
        const int64_t slice = (share + line - 1) / line * line;  // whole lines, so that slices share none
        const int64_t begin = std::min(total, position_ * slice), end = std::min(total, begin + slice);
        reduce(begin, end - begin, members_, [&](int k) { return out(k) + begin * element_bytes_; });
    }

    // Rows of a block are cut where those of the result are.
    void all_to_all() const {
        const int64_t run_bytes = mine_.dim * mine_.inner * element_bytes_, run_out_bytes = mine_.block_bytes() / mine_.outer_out;
        for (int step = 0; step < members_; ++step) {
            const int from = (position_ + step) % members_;
            for (int64_t o = 0; o < mine_.outer; ++o) {
                const std::byte* block = in(from) + (o * members_ + position_) * run_bytes;
                for_rows(run_out_bytes, members_ * run_out_bytes, o * run_bytes, run_bytes,
                         [&](int64_t to, int64_t at, int64_t bytes) {
                             copy(out(position_) + from * run_out_bytes + to, block + at, bytes);
                         });
            }
        }
    }

    void broadcast() const { copy(out(position_), in(mine_.root), mine_.block_bytes()); }

    void permute() const { copy(out(position_), in((position_ - mine_.by + members_) % members_), mine_.block_bytes()); }

private:
    const Request& of(int member) const { return launch_[static_cast<size_t>(member)][index_]; }
    const std::byte* in(int member) const { return static_cast<const std::byte*>(of(member).in); }
    std::byte* out(int member) const { return static_cast<std::byte*>(of(member).out); }

    void copy(std::byte* to, const std::byte* from, int64_t bytes) const { moves_.copy(queue_, {1, bytes, 0, 0}, from, to); }

    // Elements begin .. begin + count of all ins, to where out(result) says.
    template <class Out>
    void reduce(int64_t begin, int64_t count, int results, Out result) const {
        if (count == 0) return;
        const auto from = [&](int member) -> const void* { return in(member) + begin * element_bytes_; };
        const auto to = [&](int k) -> void* { return result(k); };
        moves_.reduce(queue_, {mine_.type, mine_.op, members_, mine_.level(), from, results, to, mine_.accumulate, count});
    }

    const Moves& moves_;
    device::Queue& queue_;
    std::span<const Requests> launch_;
    size_t index_;
    int position_, members_;
    const Request& mine_;
    int64_t element_bytes_;
};

}  // namespace

void execute(const Moves& moves, device::Queue& queue, std::span<const Requests> launch, size_t index, int position) {
    const Share share(moves, queue, launch, index, position);
    const Request& mine = launch[static_cast<size_t>(position)][index];
    if (mine.block_elements() == 0) return;
    switch (mine.kind) {
        case Collective::AllGather: return share.all_gather();
        case Collective::ReduceScatter: return share.reduce_scatter();
        case Collective::AllReduce: return share.all_reduce();
        case Collective::AllToAll: return share.all_to_all();
        case Collective::Broadcast: return share.broadcast();
        case Collective::Permute: return share.permute();
        case Collective::Send:
        case Collective::Recv:
        case Collective::Wait: return;  // of one member: receive()
    }
}

std::chrono::duration<double> link_time(const mesh::Link& link, Requests requests, int members) {
    mesh::RingTraffic ring;
    for (const Request& request : requests) {
        ring.add(request.kind, members, static_cast<double>(request.block_bytes()));
    }
    return std::chrono::duration<double>(ring.time_s(link));
}

void receive(const Moves& moves, device::Queue& queue, Requests sent, Requests received) {
    for (size_t i = 0; i < received.size(); ++i) {
        const int64_t bytes = received[i].block_bytes();
        if (bytes > 0) moves.copy(queue, {1, bytes, 0, 0}, sent[i].in, received[i].out);
    }
}

}  // namespace lockstep::comm::local
