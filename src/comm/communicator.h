// Collectives between ranks, as the executor sees them: one Communicator per rank, whatever the transport.
// Groups are fixed before the first launch. A launch is a list of requests; requests of one launch do not depend on each other.
// A symmetric launch (mesh/collective.h) is made by all members of a group, in the same order. Sends and receives are launches
// of the two members of a group; the first of them sends.
// Sums and maxima are taken in ascending position in the group, or in the two levels that a request says (mesh/algorithms.h),
// so every member gets the same bits from an all-reduce and every transport gives the same bits as every other. run() does not
// allocate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/queue.h"
#include "mesh/algorithms.h"

namespace lockstep::comm {

using mesh::Collective;

// Max returns the first NaN in ascending position, if there is one. Sums of I32 wrap; those of BF16 and F16 are rounded after
// each member.
enum class ReduceOp { Sum, Max };

// One collective. A block is [outer, dim, inner], row-major and contiguous; with n members
//   AllGather:      in is a block, out [outer, dim * n, inner]; member k's block lies at k*dim .. (k+1)*dim
//   ReduceScatter:  in [outer, dim * n, inner], out is a block: out = or += the reduced block k
//   AllReduce:      in and out are blocks
//   AllToAll:       in [outer, dim * n, inner]; its block k goes to member k; out has the block of member k at place k, and
//                   is [outer_out, n, the rest of a block]. outer_out = outer: as MPI and NCCL have it
//   Broadcast:      in and out are blocks; out is the in of the member at position `root`. Other ins are not read
//                   and may be null
//   Permute:        in and out are blocks; out is the in of the member `by` positions before this one, around the group
//   Send, Recv:     in, or out, is a block; the other is unused. Not with other kinds in a launch
//   Wait:           for the earliest launch of sends that was not waited for yet; alone in its launch, and no field counts
// in and out do not overlap, except: AllReduce and Broadcast with out == in; AllGather and ReduceScatter with outer == 1 where
// the smaller tensor is exactly this member's block of the larger one.
struct Request {
    Collective kind = Collective::AllReduce;
    Dtype type = Dtype::F32;
    const void* in = nullptr;
    void* out = nullptr;
    int64_t outer = 1, dim = 0, inner = 1;
    ReduceOp op = ReduceOp::Sum;
    bool accumulate = false;  // ReduceScatter only: out += reduced (by op), computed after the reduction over members
    // Of those that gather or reduce. Between processes it must fit the group; none: chosen there, of one level. In one process
    // the level of its sums is all that counts.
    std::optional<mesh::CollectiveAlgorithm> algorithm = {};
    int32_t by = 0;         // Permute: at least 0, less than n
    int32_t root = 0;       // Broadcast
    int64_t outer_out = 1;  // AllToAll; divides a block
    bool by_peers = false;  // the members' GPUs write to each other's memory (comm/peer). All requests of a launch say the same

    const mesh::CollectiveTraits& traits() const { return mesh::traits_of(kind); }
    int64_t block_elements() const { return outer * dim * inner; }
    int64_t block_bytes() const { return block_elements() * bytes_of(type); }
    int64_t in_bytes(int members) const { return bytes_of_blocks(traits().gives, members); }
    int64_t out_bytes(int members) const { return bytes_of_blocks(traits().takes, members); }
    int level() const { return algorithm ? algorithm->level : 1; }

private:
    int64_t bytes_of_blocks(mesh::Blocks blocks, int members) const {
        return blocks == mesh::Blocks::None ? 0 : block_bytes() * (blocks == mesh::Blocks::Members ? members : 1);
    }
};

Request all_gather(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner);
Request reduce_scatter(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner,
                       ReduceOp op = ReduceOp::Sum);
// The same, added to (or, under Max, compared with) what out holds.
Request reduce_scatter_into(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner,
                            ReduceOp op = ReduceOp::Sum);
Request all_reduce(Dtype type, const void* in, void* out, int64_t count, ReduceOp op = ReduceOp::Sum);
Request all_to_all(Dtype type, const void* in, void* out, int64_t outer, int64_t dim, int64_t inner, int64_t outer_out);
Request broadcast(Dtype type, const void* in, void* out, int64_t count, int root);
Request permute(Dtype type, const void* in, void* out, int64_t count, int by);
Request send(Dtype type, const void* in, int64_t count);
Request recv(Dtype type, void* out, int64_t count);

// "reduce_scatter sum f32 [2, 8, 4]", for messages.
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

// Launches go to a queue of steps, each with a channel of its own. Threads of a rank may launch at the same time if each keeps
// to its own queue; on one channel of one group all members launch in the same order.
inline constexpr int kChannels = static_cast<int>(kStepQueues);
// The most launches of sends from one rank to another that may be in flight on a channel: sent, and not waited for. One more is
// refused.
inline constexpr int kSendsInFlight = 64;

class Communicator {
public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int ranks() const = 0;  // of the whole job

    // Before the first launch. Every member passes the same distinct ranks in the same order; a rank's position in the
    // list is its position in the group. The same list again gives the same group.
    virtual GroupId add_group(std::vector<int> ranks) = 0;
    // Before connect(): launches of the group will be given to the queue, some of them by peers or some not. Every member says so.
    virtual void use(GroupId /*group*/, QueueName /*queue*/, bool /*by_peers*/) {}
    // Before connect(): what requests by peers read and write is in this memory. Ranks of an equal plan have the same requests at
    // the same offsets.
    virtual void expose(char* /*arena*/, int64_t /*bytes*/, const std::string& /*plan*/) {}
    // May its launches be recorded, to be given again (device/device.h, capture)? Then they wait for nobody on the host.
    virtual bool may_be_captured() const { return false; }
    // After the last group, before the first launch: every rank of the job calls it.
    virtual void connect() {}
    virtual int position(GroupId group) const = 0;
    virtual int members(GroupId group) const = 0;

    // What the queue is given from now on finds this rank's outputs written and its buffers no longer touched by other ranks;
    // the bytes of a send only after the wait for it. On the host both hold when this returns, the second also when it throws.
    // Throws Aborted if a rank called abort or if members launched different requests, InternalError for a request that
    // refusal() refuses (and aborts the other ranks).
    virtual void run(device::Queue& queue, GroupId group, std::span<const Request> requests) = 0;

    // On the host, on the caller's thread.
    void run(int channel, GroupId group, std::span<const Request> requests) {
        device::Queue here(static_cast<QueueName>(channel));
        run(here, group, requests);
    }
    void run(int channel, GroupId group, const Request& request) { run(channel, group, std::span(&request, 1)); }
    void barrier(int channel, GroupId group) { run(channel, group, std::span<const Request>()); }

    // For the earliest launch of sends of this rank that was not waited for yet: its bytes may change from now on.
    void wait(int channel, GroupId group) { run(channel, group, Request{.kind = Collective::Wait}); }

    // Between ops: moves on what this rank has sent, if the transport needs a caller for that. Never waits; throws Aborted.
    virtual void attend(int /*channel*/) {}
    void attend(const device::Queue& queue) { attend(queue.index()); }

    // Every launch that waits for a member now or later, on any rank, throws Aborted(reason). The first reason stays.
    virtual void abort(const std::string& reason) = 0;
};

}  // namespace lockstep::comm
