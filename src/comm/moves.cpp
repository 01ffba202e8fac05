#include "comm/moves.h"

#include <cstring>

#include "comm/reduce.h"

namespace lockstep::comm {
namespace {

class HostMoves final : public Moves {
public:
    void copy(device::Queue&, const Rows& rows, const void* from, void* to) const override {
        if (from == to) return;
        for (int64_t i = 0; i < rows.count; ++i)
            std::memcpy(static_cast<std::byte*>(to) + i * rows.to_stride,
                        static_cast<const std::byte*>(from) + i * rows.from_stride, static_cast<size_t>(rows.bytes));
    }
    void reduce(device::Queue&, const Reduction& r) const override {
        const auto in = [&](int member) { return static_cast<const std::byte*>(r.in(member)); };
        reduce_in_chunks(r.type, r.op, r.members, r.level, in, r.count,
                         [&](const std::byte* sum, int64_t at_bytes, int64_t count) {
                             for (int k = 0; k < r.results; ++k) {
                                 std::byte* to = static_cast<std::byte*>(r.out(k)) + at_bytes;
                                 if (r.accumulate) combine(r.type, r.op, to, sum, to, count);
                                 else if (to != sum) std::memcpy(to, sum, static_cast<size_t>(count * bytes_of(r.type)));
                             }
                         });
    }
};

}  // namespace

const Moves& host_moves() {
    static const HostMoves moves;
    return moves;
}

}  // namespace lockstep::comm
