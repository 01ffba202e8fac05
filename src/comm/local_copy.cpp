#include "comm/local_copy.h"

#include <algorithm>
#include <cstring>

#include "comm/block_rows.h"
#include "comm/reduce.h"

namespace lockstep::comm::local {
namespace {

constexpr int64_t kLineBytes = 64;

// One request of a launch, seen from one member.
class Share {
public:
    Share(std::span<const Requests> launch, size_t index, int position)
        : launch_(launch),
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
            for (int64_t o = 0; o < mine_.outer; ++o) {
                copy(out(position_) + (o * members_ + from) * run_bytes, in(from) + o * run_bytes, run_bytes);
            }
        }
    }

    void reduce_scatter() const {
        const int64_t run = mine_.dim * mine_.inner;
        for (int64_t o = 0; o < mine_.outer; ++o) {
            reduce_run((o * members_ + position_) * run, run, [&](const std::byte* sum, int64_t at_bytes, int64_t count) {
                std::byte* to = out(position_) + o * run * element_bytes_ + at_bytes;
                if (mine_.accumulate) {
                    combine(mine_.type, mine_.op, to, sum, to, count);
                } else {
                    copy(to, sum, count * element_bytes_);
                }
            });
        }
    }

    // Each member reduces one slice and writes it to all: one pass over memory less than reduce-scatter, then all-gather.
    void all_reduce() const {
        const int64_t total = mine_.block_elements();
        const int64_t line = kLineBytes / element_bytes_;
        const int64_t share = (total + members_ - 1) / members_;
        const int64_t slice = (share + line - 1) / line * line;  // whole lines, so that slices share none
        const int64_t begin = std::min(total, position_ * slice), end = std::min(total, begin + slice);
        reduce_run(begin, end - begin, [&](const std::byte* sum, int64_t at_bytes, int64_t count) {
            for (int k = 0; k < members_; ++k) copy(out(k) + begin * element_bytes_ + at_bytes, sum, count * element_bytes_);
        });
    }

    void all_to_all() const {
        const int64_t run_bytes = mine_.dim * mine_.inner * element_bytes_, run_out_bytes = mine_.block_bytes() / mine_.outer_out;
        for (int step = 0; step < members_; ++step) {
            const int from = (position_ + step) % members_;
            for (int64_t o = 0; o < mine_.outer; ++o) {
                write_rows(out(position_) + from * run_out_bytes, run_out_bytes, members_ * run_out_bytes, o * run_bytes,
                           in(from) + (o * members_ + position_) * run_bytes, run_bytes);
            }
        }
    }

    void broadcast() const { copy(out(position_), in(mine_.root), mine_.block_bytes()); }

    void permute() const { copy(out(position_), in((position_ - mine_.by + members_) % members_), mine_.block_bytes()); }

private:
    const Request& of(int member) const { return launch_[static_cast<size_t>(member)][index_]; }
    const std::byte* in(int member) const { return static_cast<const std::byte*>(of(member).in); }
    std::byte* out(int member) const { return static_cast<std::byte*>(of(member).out); }

    static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
        if (to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
    }

    // store() as in reduce_in_chunks, of elements begin .. begin + count of all ins.
    template <class Store>
    void reduce_run(int64_t begin, int64_t count, Store store) const {
        const auto run = [&](int member) { return in(member) + begin * element_bytes_; };
        reduce_in_chunks(mine_.type, mine_.op, members_, mine_.level(), run, count, store);
    }

    std::span<const Requests> launch_;
    size_t index_;
    int position_, members_;
    const Request& mine_;
    int64_t element_bytes_;
};

}  // namespace

void execute(std::span<const Requests> launch, size_t index, int position) {
    const Share share(launch, index, position);
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

void receive(Requests sent, Requests received) {
    for (size_t i = 0; i < received.size(); ++i) {
        const int64_t bytes = received[i].block_bytes();
        if (bytes > 0) std::memcpy(received[i].out, sent[i].in, static_cast<size_t>(bytes));
    }
}

}  // namespace lockstep::comm::local
