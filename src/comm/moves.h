// How bytes are moved and combined where a rank's memory lies: by the processor, or by kernels that a device's queue is given.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "comm/communicator.h"

namespace lockstep::comm {

// `count` rows of `bytes`. Strides: from where a row begins to where the next one does, in bytes.
struct Rows {
    int64_t count, bytes, from_stride, to_stride;
};

// What members have is combined in ascending order, of level s > 1 each s members that follow each other first, then their
// results (reduce.h).
struct Reduction {
    Dtype type;
    ReduceOp op;
    int members, level;
    FunctionRef<const void*(int member)> in;
    int results;
    FunctionRef<void*(int result)> out;  // each gets the same
    bool accumulate;                     // what a result holds comes first
    int64_t count;                       // of elements
};

class Moves {
public:
    virtual ~Moves() = default;
    // Nothing, where `to` is `from`.
    virtual void copy(device::Queue& queue, const Rows& rows, const void* from, void* to) const = 0;
    // Results may be ins, element for element.
    virtual void reduce(device::Queue& queue, const Reduction& reduction) const = 0;
};

// On the thread that asks for it.
const Moves& host_moves();

}  // namespace lockstep::comm
