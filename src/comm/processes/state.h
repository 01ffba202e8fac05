// What the threads of one process share: its groups, and memory for the launches that lead between processes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/arrivals.h"
#include "comm/launch.h"
#include "comm/processes/control.h"
#include "comm/processes/link.h"
#include "comm/processes/process_transport.h"

namespace lockstep::comm::processes {

// A launch of sends that was not waited for yet.
struct PendingSend {
    std::vector<Request> requests;  // to a member in this process
    std::vector<std::byte> header;  // to one in another
    std::vector<Message> messages;
};

// What the members of a group in this process share on one channel. `start` closes when the job stops, the others never: a
// member that has passed `start` reaches the end of the launch.
struct Channel {
    Arrivals start, middle, finish;
    std::vector<Requests> launch;   // [members], of those here, written before they arrive at start
    std::vector<uint64_t> digests;  // the same; then the leader fills in the others
    bool failed = false;            // written by the leader before middle

    std::vector<PendingSend> pending;  // [kSendsInFlight], of the first member of two
    Count sent, received;              // launches between two members in this process
    std::vector<std::byte> header;
    std::vector<Message> receiving;
};

struct Group {
    Group(std::vector<int> ranks, int number, const ProcessTransport& world);
    const std::vector<int> ranks;
    const int number;
    const mesh::GroupLayout layout;
    const int me;                                  // the part that this process is
    const std::vector<int>& here;                  // positions
    const std::array<mesh::Hops, 3> hops;          // by GatherBy; none where the group cannot go that way
    const std::vector<mesh::Hops> broadcast_hops;  // by root
    const std::optional<mesh::Levels> levels;      // where sums may have two
    Channel channels[kChannels];

    int leader() const { return here.front(); }
    bool in_one_process() const { return layout.parts() == 1; }
};

struct State {
    State(std::unique_ptr<Wire> wire, int ranks_per_process, Options options);

    Group& group(const std::vector<int>& ranks, const ProcessTransport& world);
    std::unique_ptr<Scratch> take_scratch();
    void give_back(std::unique_ptr<Scratch> scratch);

    const std::unique_ptr<Wire> wire;
    const int ranks_per_process;
    const Options options;
    mesh::Topology topology;

    std::mutex mutex;  // guards what follows
    std::map<std::vector<int>, std::unique_ptr<Group>> groups;
    std::vector<std::unique_ptr<Scratch>> scratches;

    Control control;  // last: its thread uses the rest

private:
    void close_groups();
};

std::unique_ptr<Communicator> make_communicator(ProcessTransport& world, State& state, int rank);

}  // namespace lockstep::comm::processes
