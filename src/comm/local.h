// Ranks as threads of one process: members read each other's buffers directly, between two barriers of their group.
// A LocalTransport is shared by all ranks and outlives their Communicators. A Communicator belongs to one rank; see
// Communicator for what its threads may do at the same time.
#pragma once

#include <memory>

#include "comm/one_process.h"

namespace lockstep::comm {

namespace local {
struct Group;
}
extern template class OneProcess<local::Group>;

class LocalTransport final : public OneProcess<local::Group> {
public:
    explicit LocalTransport(int ranks, LocalOptions options = {}) : OneProcess(ranks, options) {}
    std::unique_ptr<Communicator> communicator(int rank) override;
};

}  // namespace lockstep::comm
