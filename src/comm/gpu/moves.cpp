#include "comm/gpu/moves.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/gpu/movement.h"

namespace lockstep::comm::gpu {
namespace {

namespace kernel = kernels::gpu;

class GpuMoves final : public Moves {
public:
    void copy(device::Queue& queue, const Rows& rows, const void* from, void* to) const override {
        kernel::copy_rows(queue.handle(), {rows.count, rows.bytes, rows.from_stride, rows.to_stride}, from, to);
    }
    void reduce(device::Queue& queue, const Reduction& r) const override {
        ensure(r.members <= kernel::Reduction::kMost,
               fmt::format("{} ranks reduce together on one GPU, where at most {} can", r.members, kernel::Reduction::kMost));
        kernel::Reduction own = {};
        own.type = r.type, own.is_max = r.op == ReduceOp::Max, own.ranks = r.members, own.level = r.level;
        own.results = r.results, own.accumulate = r.accumulate;
        for (int k = 0; k < r.members; ++k) own.in[k] = r.in(k);
        for (int k = 0; k < r.results; ++k) own.out[k] = r.out(k);
        kernel::reduce(queue.handle(), r.count, own);
    }
};

}  // namespace

const Moves& moves() {
    static const GpuMoves all;
    return all;
}

}  // namespace lockstep::comm::gpu
