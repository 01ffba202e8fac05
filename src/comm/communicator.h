// Collectives between ranks, as the executor sees them: one Communicator per rank, whatever the transport.
// Groups are fixed before the first launch. A launch is a list of requests that all members of a group make together,
// in the same order; requests of one launch do not depend on each other.
// Sums and maxima are taken in ascending position in the group, or in the two levels that a request says (mesh/ways.h), so every
// member gets the same bits from an all-reduce and every transport gives the same bits as every other. run() does not allocate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/queue.h"
#include "mesh/ways.h"

namespace lockstep::comm {

enum class Type { Float32, Float64, Int32, BFloat16, Float16 };
enum class Kind { AllGather, ReduceScatter, AllReduce, Permute, Transfer };
enum class ReduceOp {
    Sum,
    Max
};  // Max returns the first NaN in ascending position, if there is one; Int32 sums wrap,
    // BFloat16 sums are rounded after each member

int64_t bytes_of(Type type);

// One collective. A member's own block is [outer, dim, inner], row-major and contiguous; with n members
//   AllGather:      in [outer, dim, inner], out [outer, dim * n, inner]; member k's block lies at k*dim .. (k+1)*dim
//   ReduceScatter:  in [outer, dim * n, inner], out [outer, dim, inner]; out = or += the reduced block k
//   AllReduce:      in and out [outer, dim, inner]
//   Permute:        in and out [outer, dim, inner]; out is what the member `by` positions before this one gives, around the group
//   Transfer:       of two members the first gives in [outer, dim, inner], the second takes it as out; the others' in, out
//                   unused. Not beside others in a launch, and no meeting: see Communicator::await_transfer
// in and out do not overlap, except: AllReduce with out == in; AllGather and ReduceScatter with outer == 1 where the
// smaller tensor is exactly this member's block of the larger one.
struct Request {
    Kind kind = Kind::AllReduce;
    Type type = Type::Float32;
    const void* in = nullptr;
    void* out = nullptr;
    int64_t outer = 1, dim = 0, inner = 1;
    ReduceOp op = ReduceOp::Sum;
    bool accumulate = false;  // ReduceScatter only: out += reduced (by op), computed after the reduction over members
    // Not of a transfer. Between processes it must fit the group; none: chosen there, of one level. In one process the level of
    // its sums is all that counts.
    std::optional<mesh::Way> way = {};
    int32_t by = 0;  // Permute only: at least 0

    int64_t block_elements() const { return outer * dim * inner; }
    int level() const { return way ? way->level : 1; }
};

Request all_gather(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner);
Request reduce_scatter(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner,
                       ReduceOp op = ReduceOp::Sum);
// The same, added to (or, under Max, compared with) what out holds.
Request reduce_scatter_into(Type type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner,
                            ReduceOp op = ReduceOp::Sum);
Request all_reduce(Type type, const void* in, void* out, int64_t count, ReduceOp op = ReduceOp::Sum);
Request permute(Type type, const void* in, void* out, int64_t count, int by);
Request transfer(Type type, const void* in, void* out, int64_t count);

// "reduce_scatter sum float32 [2, 8, 4]", for messages.
std::string describe(const Request& request);
// Why a member at `position` of `members` may not make this request, or "" if it may.
std::string refusal(const Request& request, int position, int members);

// Some rank failed and stopped all of them; what() is the first reason given.
class Aborted : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A group that this rank belongs to; valid on the Communicator that returned it.
enum class GroupId : int {};

// Launches go to a queue: compute or comm, each with a channel of its own. Two threads of a rank may launch at the same time if
// each keeps to its own queue; on one channel of one group all members launch in the same order.
inline constexpr int kChannels = 2;
// So many launches of transfers from one rank to another may be under way on a channel: given and not awaited. One more is
// refused.
inline constexpr int kTransfersInFlight = 64;

class Communicator {
public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int ranks() const = 0;  // of the whole job

    // Before the first launch. Every member passes the same distinct ranks in the same order; a rank's position in the
    // list is its position in the group. The same list again gives the same group.
    virtual GroupId add_group(std::vector<int> ranks) = 0;
    virtual int position(GroupId group) const = 0;
    virtual int members(GroupId group) const = 0;

    // What the queue is given from now on finds this rank's outputs written and its buffers no longer touched by other ranks.
    // On the host both hold when this returns, the second also when it throws. Throws Aborted if a rank called abort or if
    // members launched different requests, InternalError for a request that refusal() refuses (and aborts the other ranks).
    virtual void run(device::Queue& queue, GroupId group, std::span<const Request> requests) = 0;

    // On the host, on the caller's thread.
    void run(int channel, GroupId group, std::span<const Request> requests) {
        device::Queue here(static_cast<device::QueueName>(channel));
        run(here, group, requests);
    }
    void run(int channel, GroupId group, const Request& request) { run(channel, group, std::span(&request, 1)); }
    void barrier(int channel, GroupId group) { run(channel, group, std::span<const Request>()); }

    // To give (Kind::Transfer, by the first of two members) is to leave a note: run() returns at once, and what is given stays
    // untouched until it has been taken. This returns when that holds for the earliest launch of this rank's for which it has not
    // returned yet. Who takes waits, and takes in the order of giving.
    virtual void await_transfer(device::Queue& queue, GroupId group) = 0;
    void await_transfer(int channel, GroupId group) {
        device::Queue here(static_cast<device::QueueName>(channel));
        await_transfer(here, group);
    }

    // Between ops: moves on what this rank has given, where only whoever calls moves it. Never waits; throws Aborted.
    virtual void attend(int /*channel*/) {}
    void attend(const device::Queue& queue) { attend(queue.index()); }

    // Every launch that waits for a member now or later, on any rank, throws Aborted(reason). The first reason stays.
    virtual void abort(const std::string& reason) = 0;
};

}  // namespace lockstep::comm
