// A program made ready for one rank: its kernels, groups and requests, and where the operands of each call are. What both
// players play (player.h).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/islands/member.h"
#include "kernels/kernel.h"

namespace lockstep::runtime {

inline constexpr size_t kMaxOperands = 64;

// An op that does something, in a call: with addresses.
struct Launch {
    const ir::Call* call;
    const ir::Routine* routine;
    const ir::Op* op;
    int index;                      // of the op in its routine
    const kernels::Kernel* kernel;  // or
    int64_t copied_bytes;           // that the device copies, 0 where it does not; or a collective:
    comm::GroupId group;
    std::span<const comm::Request> requests;  // without addresses
    bool is_collective;
    double delay_s;  // without a kernel
    bool fresh;      // an accumulating result overwrites
    void* workspace;
    void *in[kMaxOperands], *out[kMaxOperands];

    // With addresses, in `room`.
    std::span<const comm::Request> requests_in(comm::Request (&room)[kMaxOperands]) const;
};

class Prepared {
public:
    // Without the arenas: for_each needs them. delay_s: see ExecutorOptions.
    using DelayOf = std::function<double(const ir::Routine&, const ir::Op&)>;
    // `islands`: through which this rank meets other islands; none: the op `meet` is that of the only island.
    Prepared(const ir::Program& program, int64_t rank, comm::Communicator& communicator, int threads, const DelayOf& delay_s,
             comm::islands::Member* islands);

    // nullptr: the program has nothing in that place.
    void set_arenas(const ByPlace<char*>& arenas) { arenas_ = arenas; }
    char* buffer(int index) const {
        const ir::Buffer& b = program_.buffers[static_cast<size_t>(index)];
        return arenas_[b.place] + b.offset_bytes;
    }

    // f(const Launch&) for every op of a call, in order. Allocates nothing.
    template <class F>
    void for_each(const ir::Call& call, F f) const {
        const Code& code = code_[static_cast<size_t>(call.routine)];
        Launch launch;
        launch.call = &call, launch.routine = &program_.routines[static_cast<size_t>(call.routine)];
        for (size_t i = 0; i < code.ops.size(); ++i) {
            if (code.ops[i].is_view) continue;
            fill(code, i, launch);
            f(static_cast<const Launch&>(launch));
        }
    }

private:
    struct Address {  // of a tensor of a routine: a port's base or scratch, plus an offset
        int port = -1;
        int64_t offset = 0;
    };
    struct PreparedOp {
        std::unique_ptr<kernels::Kernel> kernel;
        int64_t copied_bytes = 0;
        comm::GroupId group{};
        std::vector<comm::Request> requests;
        int fresh_port = -1;  // the port whose binding says whether an accumulating result overwrites
        bool is_collective = false, is_view = false;
        double delay_s = 0;
    };
    struct Code {
        std::vector<Address> addresses;  // by tensor
        std::vector<PreparedOp> ops;
    };
    Code code_of(const ir::Routine& routine, QueueName queue, int64_t rank, comm::Communicator& communicator, int threads,
                 const DelayOf& delay_s, comm::islands::Member* islands) const;
    void fill(const Code& code, size_t index, Launch& launch) const;

    const ir::Program& program_;
    std::vector<Code> code_;
    ByPlace<char*> arenas_;
};

}  // namespace lockstep::runtime
