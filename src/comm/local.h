// Ranks as threads of one process: members read each other's buffers directly, between two barriers of their group.
// A LocalTransport is shared by all ranks and outlives their Communicators. A Communicator belongs to one rank; see Communicator
// for what its threads may do at the same time.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "mesh/ring.h"

namespace lockstep::comm {

// A launch is held back until a ring over links of this speed would have finished it, as if every rank had one link and
// each channel the whole of it. For experiments on overlap.
struct LocalOptions {
    mesh::Link link;
};

namespace local {
struct Group;
}

class LocalTransport final : public Transport {
public:
    explicit LocalTransport(int ranks, LocalOptions options = {});
    ~LocalTransport() override;
    LocalTransport(const LocalTransport&) = delete;
    LocalTransport& operator=(const LocalTransport&) = delete;

    int ranks() const override { return ranks_; }
    int first_rank() const override { return 0; }
    int ranks_here() const override { return ranks_; }
    const mesh::Topology& topology() const override { return topology_; }
    const LocalOptions& options() const { return options_; }

    std::unique_ptr<Communicator> communicator(int rank) override;

    // A launch that all its members have entered still completes.
    void abort(const std::string& reason) override;
    [[noreturn]] void throw_aborted();

    // The group of these ranks in this order, made on first use. For Communicators.
    local::Group& group(const std::vector<int>& ranks);

private:
    const int ranks_;
    const LocalOptions options_;
    const mesh::Topology topology_;  // one process
    std::mutex mutex_;               // guards what follows; no launch takes it unless it throws
    std::vector<std::unique_ptr<local::Group>> groups_;
    bool aborted_ = false;
    std::string reason_;
};

}  // namespace lockstep::comm
