// Ranks as threads of several processes: rank = process * ranks_per_process + thread. Members of a group that are in one
// process join in its memory; one of them, the first, then moves the data of all of them between processes (gather.h,
// *_reduce.h) and the others copy from it. The bits are those of the local transport.
// A ProcessTransport is one process's part of the job; it outlives its Communicators. See Communicator for what may happen at
// the same time. Threads of ranks call the wire themselves, several at a time: handing a launch to a thread for it would cost
// two switches of threads, and the first member waits for its launch anyway. A waiting thread polls, yields, then sleeps
// briefly between polls. It can therefore be stopped, and leaves the processor to the ranks that it waits for.
#pragma once

#include <memory>
#include <string>

#include "comm/processes/wire.h"
#include "comm/transport.h"

namespace lockstep::comm::processes {

// The same on every process.
struct Options {
    // Collectives travel in pieces of this size, several under way. Below the 64 KiB up to which Open MPI sends over TCP at
    // once: beyond, it asks the receiver first, and both look only now and then. A step of HSDP on 4 emulated hosts of 2 ranks
    // at 200 Mbit/s took 1.79 s with these, 2.13 s with 256 KiB.
    int64_t piece_bytes = 56 << 10;
    int64_t message_bytes = 1 << 30;          // no message is longer
    int64_t small_bytes = mesh::kSmallBytes;  // of requests that name no algorithm
};

struct State;

class ProcessTransport final : public Transport {
public:
    // Does not wait for other processes, but where they are started with other arguments all stop.
    ProcessTransport(std::unique_ptr<Wire> wire, int ranks_per_process, Options options = {});
    // Waits until all processes are here; destroyed by an exception, it stops them first.
    ~ProcessTransport() override;
    ProcessTransport(const ProcessTransport&) = delete;
    ProcessTransport& operator=(const ProcessTransport&) = delete;

    int ranks() const override;
    int first_rank() const override;
    int ranks_here() const override;
    const mesh::Topology& topology() const override;
    std::unique_ptr<Communicator> communicator(int rank) override;
    // Does not wait for the others.
    void abort(const std::string& reason) override;

private:
    const int exceptions_;  // under way when this was made
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm::processes
