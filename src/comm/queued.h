// Ranks as threads of one process whose devices' queues run later than what is given to them. Members meet when they launch, on
// the host: each publishes its requests and an event of its queue, and lets its queue wait for the events of all. In the queue
// each then does its own share, as ranks of the local transport do, and waits until all have done theirs. Nothing blocks in a
// queue: as the host meets in the order of the program, what a queue waits for has been given by then.
#pragma once

#include "comm/local.h"
#include "comm/transport.h"

namespace lockstep::comm {

namespace queued {
struct Group;
}

class QueuedTransport final : public Transport {
public:
    explicit QueuedTransport(int ranks, LocalOptions options = {});
    ~QueuedTransport() override;
    QueuedTransport(const QueuedTransport&) = delete;
    QueuedTransport& operator=(const QueuedTransport&) = delete;

    int ranks() const override { return ranks_; }
    int first_rank() const override { return 0; }
    int ranks_here() const override { return ranks_; }
    const mesh::Topology& topology() const override { return topology_; }
    const LocalOptions& options() const { return options_; }

    std::unique_ptr<Communicator> communicator(int rank) override;

    void abort(const std::string& reason) override;
    [[noreturn]] void throw_aborted();

    // The group of these ranks in this order, made on first use. For Communicators.
    queued::Group& group(const std::vector<int>& ranks);

private:
    const int ranks_;
    const LocalOptions options_;
    const mesh::Topology topology_;  // one process
    std::mutex mutex_;               // guards what follows
    std::vector<std::unique_ptr<queued::Group>> groups_;
    bool aborted_ = false;
    std::string reason_;
};

}  // namespace lockstep::comm
