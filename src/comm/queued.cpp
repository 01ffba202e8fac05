#include "comm/queued.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/arrivals.h"
#include "comm/launch.h"
#include "comm/local_copy.h"
#include "device/device.h"

namespace lockstep::comm {
namespace queued {

// What a member has published: its requests, and when its queue has come to them and is through with its share.
struct Member {
    std::vector<Request> requests;
    std::optional<device::Event> ready, finished;
};

struct Channel {
    Arrivals start, finish;  // of the members' threads
    std::vector<Member> members;
    Count sent, received;         // launches
    std::vector<Member> pending;  // sends, of two members: the k-th launch's at k modulo kSendsInFlight

    void close() { start.close(), finish.close(), sent.close(), received.close(); }
};

struct Group {
    explicit Group(std::vector<int> ranks) : ranks(std::move(ranks)) {
        for (Channel& channel : channels) {
            channel.members.resize(this->ranks.size());
            if (this->ranks.size() == 2) channel.pending.resize(kSendsInFlight);
        }
    }
    const std::vector<int> ranks;
    Channel channels[kChannels];
};

}  // namespace queued

namespace {

using queued::Member;

void record(device::Queue& queue, std::optional<device::Event>& event) {
    if (!event) event = queue.device().new_event();
    queue.device().record(queue, *event);
}

// f(the requests of each member with the addresses that kernels use), in the queue. Requests without bytes may have no address.
template <class F>
void launch(device::Queue& queue, std::vector<std::vector<Request>> members, F f) {
    std::vector<void*> addresses;
    for (const std::vector<Request>& requests : members) {
        for (const Request& r : requests) {
            addresses.push_back(const_cast<void*>(r.in));
            addresses.push_back(r.out);
        }
    }
    queue.device().launch(queue, addresses, [members = std::move(members), f](void* const* real) mutable {
        std::vector<Requests> all;
        for (std::vector<Request>& requests : members) {
            for (Request& r : requests) {
                r.in = *real++;
                r.out = *real++;
            }
            all.emplace_back(requests);
        }
        f(std::span<const Requests>(all));
    });
}

class QueuedCommunicator final : public RankOfProcess<QueuedTransport> {
public:
    using Communicator::run;
    using RankOfProcess::RankOfProcess;
    bool may_be_captured() const override { return ranks() == 1; }
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        Membership& self = membership(id);
        refuse_bad(queue.index(), self, requests);
        const std::optional<Collective> kind = one_sided(requests);
        if (!kind) join(queue, self, requests);
        else if (kind == Collective::Send) send(queue, self, requests);
        else if (kind == Collective::Recv) receive(queue, self, requests);
        else wait(queue, self);
    }

private:
    void join(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        Rounds& rounds = self.rounds[queue.index()];
        const int count = static_cast<int>(channel.members.size());
        Member& own = channel.members[static_cast<size_t>(self.position)];
        own.requests.assign(requests.begin(), requests.end());
        if (count == 1 && requests.empty()) {  // whether the job goes on: only the host asks
            if (!channel.start.arrive_and_wait(rounds.start, 1) || !channel.finish.arrive_and_wait(rounds.finish, 1)) leave();
            return;
        }
        record(queue, own.ready);
        if (!channel.start.arrive_and_wait(rounds.start, count)) leave();

        const auto other = std::find_if(channel.members.begin(), channel.members.end(),
                                        [&](const Member& m) { return !same_shapes(m.requests, channel.members[0].requests); });
        if (other != channel.members.end()) {
            transport_.abort(mismatch(self.group->ranks, queue.index(), channel.members[0].requests,
                                      static_cast<int>(other - channel.members.begin()), other->requests));
            leave();
        }
        const auto wait_for_others = [&](std::optional<device::Event> Member::*event) {
            for (const Member& m : channel.members) {
                if (&m != &own) queue.device().wait(queue, *(m.*event));
            }
        };
        wait_for_others(&Member::ready);
        std::vector<std::vector<Request>> all;
        for (const Member& m : channel.members) all.push_back(m.requests);
        launch(queue, std::move(all),
               [position = self.position, &queue, &moves = transport_.moves()](std::span<const Requests> launch) {
                   for (size_t i = 0; i < launch[0].size(); ++i) local::execute(moves, queue, launch, i, position);
               });
        hold(queue, requests, count);
        record(queue, own.finished);
        if (!channel.finish.arrive_and_wait(rounds.finish, count)) leave();
        wait_for_others(&Member::finished);
    }

    // For as long as the modelled links would take.
    void hold(device::Queue& queue, Requests requests, int members) {
        const auto held = local::link_time(transport_.options().link, requests, members);
        if (held.count() > 0) queue.device().call(queue, [held] { std::this_thread::sleep_for(held); });
    }

    void send(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        Member& pending = channel.pending[self.rounds[queue.index()].messages++ % kSendsInFlight];
        pending.requests.assign(requests.begin(), requests.end());
        for (Request& r : pending.requests) r.out = nullptr;
        record(queue, pending.ready);
        if (!channel.sent.add()) leave();
    }

    void wait(device::Queue& queue, Membership& self) {
        queued::Channel& channel = self.group->channels[queue.index()];
        uint32_t& waited = self.rounds[queue.index()].waited;
        const Member& pending = channel.pending[waited % kSendsInFlight];
        if (!channel.received.wait_for(++waited)) leave();
        queue.device().wait(queue, *pending.finished);
    }

    void receive(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        uint32_t& received = self.rounds[queue.index()].messages;
        if (!channel.sent.wait_for(received + 1)) leave();
        Member& pending = channel.pending[received++ % kSendsInFlight];
        if (!same_shapes(pending.requests, requests)) {
            transport_.abort(mismatch(self.group->ranks, queue.index(), pending.requests, 1, requests));
            leave();
        }
        queue.device().wait(queue, *pending.ready);
        std::vector<Request> own(requests.begin(), requests.end());
        for (Request& r : own) r.in = nullptr;
        launch(queue, {pending.requests, std::move(own)},
               [&queue, &moves = transport_.moves()](std::span<const Requests> launch) {
                   local::receive(moves, queue, launch[0], launch[1]);
               });
        hold(queue, requests, 2);
        record(queue, pending.finished);
        if (!channel.received.add()) leave();
    }
};

}  // namespace

template class OneProcess<queued::Group>;

std::unique_ptr<Communicator> QueuedTransport::communicator(int rank) {
    return std::make_unique<QueuedCommunicator>(*this, rank);
}

}  // namespace lockstep::comm
