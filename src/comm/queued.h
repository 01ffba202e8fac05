// Ranks as threads of one process whose devices' queues run later than what is given to them. Members join when they launch, on
// the host: each publishes its requests and an event of its queue, and lets its queue wait for the events of all. In the queue
// each then does its own share, as ranks of the local transport do, and waits until all have done theirs. Nothing blocks in a
// queue: as the host joins in the order of the program, what a queue waits for has been given by then.
#pragma once

#include <memory>

#include "comm/moves.h"
#include "comm/one_process.h"

namespace lockstep::comm {

namespace queued {
struct Group;
}
extern template class OneProcess<queued::Group>;

class QueuedTransport final : public OneProcess<queued::Group> {
public:
    // `moves` outlives the transport.
    explicit QueuedTransport(int ranks, LocalOptions options = {}, const Moves& moves = host_moves())
        : OneProcess(ranks, options), moves_(moves) {}
    std::unique_ptr<Communicator> communicator(int rank) override;
    const Moves& moves() const { return moves_; }

private:
    const Moves& moves_;
};

}  // namespace lockstep::comm
