#include "comm/local.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/arrivals.h"
#include "comm/launch.h"
#include "comm/local_copy.h"

namespace lockstep::comm {
namespace local {

// A launch of sends that was not received yet.
struct PendingSend {
    std::vector<Request> requests;
    std::chrono::steady_clock::time_point sent;
};

// What the members of a group share on one channel. All that members wait for in each other closes when the job aborts, except
// `finish`: a member that has passed `start` only copies until it arrives there. So no member leaves a launch while another
// still uses its buffers.
struct Channel {
    Arrivals start, finish;
    std::vector<Requests> launch;       // [members], written by each member before it arrives at start
    Count sent, received;               // launches
    std::vector<PendingSend> pending;   // of two members: [kSendsInFlight], the k-th launch's at k modulo that
    std::atomic<bool> copying = false;  // what was sent

    void close() { start.close(), sent.close(), received.close(); }
};

struct Group {
    explicit Group(std::vector<int> ranks) : ranks(std::move(ranks)) {
        for (Channel& channel : channels) {
            channel.launch.resize(this->ranks.size());
            if (this->ranks.size() == 2) channel.pending.resize(kSendsInFlight);
        }
    }
    const std::vector<int> ranks;
    Channel channels[kChannels];
};

}  // namespace local

namespace {

// Names the first two members that differ: the same text on every member.
std::string difference_in(const local::Group& group, int channel, std::span<const Requests> launch) {
    const auto other = std::find_if(launch.begin(), launch.end(), [&](Requests r) { return !same_shapes(r, launch[0]); });
    return mismatch(group.ranks, channel, launch[0], static_cast<int>(other - launch.begin()), *other);
}

class LocalCommunicator final : public RankOfProcess<LocalTransport> {
public:
    using Communicator::run;
    using RankOfProcess::RankOfProcess;
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        const int channel_index = queue.index();
        Membership& self = membership(id);
        refuse_bad(channel_index, self, requests);
        local::Channel& channel = self.group->channels[channel_index];
        Rounds& rounds = self.rounds[channel_index];
        if (const std::optional<Collective> kind = one_sided(requests)) {
            if (kind == Collective::Send) return send(channel, rounds, requests);
            if (kind == Collective::Recv) return receive(queue, self, requests);
            if (!channel.received.wait_for(++rounds.waited)) leave();
            return;
        }
        const int members = static_cast<int>(channel.launch.size());
        channel.launch[static_cast<size_t>(self.position)] = requests;
        if (!channel.start.arrive_and_wait(rounds.start, members)) leave();

        const auto began = std::chrono::steady_clock::now();
        const std::span<const Requests> launch = channel.launch;
        const bool matches = std::all_of(launch.begin(), launch.end(), [&](Requests r) { return same_shapes(r, launch[0]); });
        std::string difference;
        if (matches) {
            for (size_t index = 0; index < requests.size(); ++index)
                local::execute(host_moves(), queue, launch, index, self.position);
            const auto held = local::link_time(transport_.options().link, requests, members);
            if (held.count() > 0) std::this_thread::sleep_until(began + held);
        } else {
            difference = difference_in(*self.group, channel_index, launch);
        }
        channel.finish.arrive_and_wait(rounds.finish, members);
        if (!matches) {
            transport_.abort(difference);
            leave();
        }
    }

private:
    void send(local::Channel& channel, Rounds& rounds, Requests requests) {
        local::PendingSend& pending = channel.pending[rounds.messages++ % kSendsInFlight];
        pending.requests.assign(requests.begin(), requests.end());
        pending.sent = std::chrono::steady_clock::now();
        if (!channel.sent.add()) leave();
    }

    void receive(device::Queue& queue, Membership& self, Requests requests) {
        const int channel_index = queue.index();
        local::Channel& channel = self.group->channels[channel_index];
        uint32_t& received = self.rounds[channel_index].messages;
        if (!channel.sent.wait_for(received + 1)) leave();
        const local::PendingSend& pending = channel.pending[received++ % kSendsInFlight];
        channel.copying = true;
        std::string difference;
        if (!channel.sent.is_closed()) {
            const Requests launch[] = {pending.requests, requests};
            if (same_shapes(launch[0], launch[1])) local::receive(host_moves(), queue, pending.requests, requests);
            else difference = difference_in(*self.group, channel_index, launch);
        }
        channel.copying = false;
        channel.copying.notify_all();
        if (!difference.empty()) transport_.abort(difference);
        const auto held = local::link_time(transport_.options().link, requests, 2);
        if (held.count() > 0) std::this_thread::sleep_until(pending.sent + held);
        if (!channel.received.add()) leave();
    }

    // Waits until no rank copies from this one. A copy that begins after the abort sees it and ends.
    void before_leaving() override {
        for (Membership& m : memberships_) {
            for (local::Channel& channel : m.group->channels) {
                if (m.position == 0) channel.copying.wait(true);
            }
        }
    }
};

}  // namespace

template class OneProcess<local::Group>;

std::unique_ptr<Communicator> LocalTransport::communicator(int rank) { return std::make_unique<LocalCommunicator>(*this, rank); }

}  // namespace lockstep::comm
