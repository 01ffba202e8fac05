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
    Count given, taken;         // launches of transfers
    std::vector<Member> notes;  // of two members: the k-th launch's at k modulo kTransfersInFlight

    void close() { start.close(), finish.close(), given.close(), taken.close(); }
};

struct Group {
    explicit Group(std::vector<int> ranks) : ranks(std::move(ranks)) {
        for (Channel& channel : channels) {
            channel.members.resize(this->ranks.size());
            if (this->ranks.size() == 2) channel.notes.resize(kTransfersInFlight);
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

class QueuedCommunicator final : public Communicator {
public:
    QueuedCommunicator(QueuedWorld& world, int rank) : world_(world), rank_(rank) {}

    int rank() const override { return rank_; }
    int ranks() const override { return world_.ranks(); }
    int position(GroupId group) const override { return memberships_.at(static_cast<size_t>(group)).position; }
    int members(GroupId group) const override {
        return static_cast<int>(memberships_.at(static_cast<size_t>(group)).group->ranks.size());
    }
    void abort(const std::string& reason) override { world_.abort(reason); }

    GroupId add_group(std::vector<int> ranks) override {
        const auto self = std::find(ranks.begin(), ranks.end(), rank_);
        ensure(self != ranks.end(), fmt::format("add_group: rank {} is not in its group {}", rank_, ranks));
        queued::Group* group = &world_.group(ranks);
        const auto known =
            std::find_if(memberships_.begin(), memberships_.end(), [&](const Membership& m) { return m.group == group; });
        if (known != memberships_.end()) return static_cast<GroupId>(known - memberships_.begin());
        memberships_.push_back({group, static_cast<int>(self - ranks.begin()), {}});
        return static_cast<GroupId>(memberships_.size() - 1);
    }

    using Communicator::run;
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        Membership& self = memberships_.at(static_cast<size_t>(id));
        refuse_bad(queue.index(), self, requests);
        if (!are_transfers(requests)) return meet(queue, self, requests);
        self.position == 0 ? give(queue, self, requests) : take(queue, self, requests);
    }

    using Communicator::await_transfer;
    void await_transfer(device::Queue& queue, GroupId id) override {
        Membership& self = memberships_.at(static_cast<size_t>(id));
        queued::Channel& channel = self.group->channels[queue.index()];
        Rounds& rounds = self.rounds[queue.index()];
        if (rounds.awaited == rounds.transfers)
            throw InternalError(fmt::format("rank {} awaits a transfer and has given none", rank_));
        const Member& note = channel.notes[rounds.awaited % kTransfersInFlight];
        if (!channel.taken.wait_for(++rounds.awaited)) world_.throw_aborted();
        queue.device().wait(queue, *note.finished);
    }

private:
    struct Rounds {
        uint32_t start = 0, finish = 0;
        uint32_t transfers = 0, awaited = 0;  // given, or taken, by this rank
    };
    struct Membership {
        queued::Group* group;
        int position;
        Rounds rounds[kChannels];
    };

    void meet(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        Rounds& rounds = self.rounds[queue.index()];
        const int count = static_cast<int>(channel.members.size());
        Member& own = channel.members[static_cast<size_t>(self.position)];
        own.requests.assign(requests.begin(), requests.end());
        record(queue, own.ready);
        if (!channel.start.arrive_and_wait(rounds.start, count)) world_.throw_aborted();

        const auto other = std::find_if(channel.members.begin(), channel.members.end(),
                                        [&](const Member& m) { return !same_shapes(m.requests, channel.members[0].requests); });
        if (other != channel.members.end()) {
            world_.abort(mismatch(self.group->ranks, queue.index(), channel.members[0].requests,
                                  static_cast<int>(other - channel.members.begin()), other->requests));
            world_.throw_aborted();
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
               [position = self.position,
                held = local::link_time(world_.options().link, requests, count)](std::span<const Requests> launch) {
                   for (size_t i = 0; i < launch[0].size(); ++i) local::execute(launch, i, position);
                   if (held.count() > 0) std::this_thread::sleep_for(held);
               });
        record(queue, own.finished);
        if (!channel.finish.arrive_and_wait(rounds.finish, count)) world_.throw_aborted();
        wait_for_others(&Member::finished);
    }

    void give(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        Member& note = channel.notes[self.rounds[queue.index()].transfers++ % kTransfersInFlight];
        note.requests.assign(requests.begin(), requests.end());
        for (Request& r : note.requests) r.out = nullptr;
        record(queue, note.ready);
        if (!channel.given.add()) world_.throw_aborted();
    }

    void take(device::Queue& queue, Membership& self, Requests requests) {
        queued::Channel& channel = self.group->channels[queue.index()];
        uint32_t& taken = self.rounds[queue.index()].transfers;
        if (!channel.given.wait_for(taken + 1)) world_.throw_aborted();
        Member& note = channel.notes[taken++ % kTransfersInFlight];
        if (!same_shapes(note.requests, requests)) {
            world_.abort(mismatch(self.group->ranks, queue.index(), note.requests, 1, requests));
            world_.throw_aborted();
        }
        queue.device().wait(queue, *note.ready);
        std::vector<Request> own(requests.begin(), requests.end());
        for (Request& r : own) r.in = nullptr;
        launch(queue, {note.requests, std::move(own)},
               [held = local::link_time(world_.options().link, requests, 2)](std::span<const Requests> launch) {
                   local::take(launch[0], launch[1]);
                   if (held.count() > 0) std::this_thread::sleep_for(held);
               });
        record(queue, note.finished);
        if (!channel.taken.add()) world_.throw_aborted();
    }

    void refuse_bad(int channel, const Membership& self, Requests requests) {
        const Rounds& rounds = self.rounds[std::clamp(channel, 0, kChannels - 1)];
        const std::string why = refusal(channel, requests, self.position, static_cast<int>(self.group->ranks.size()),
                                        rounds.transfers - rounds.awaited);
        if (why.empty()) return;
        const std::string message = fmt::format("rank {} launched a collective that cannot run: {}", rank_, why);
        world_.abort(message);
        throw InternalError(message);
    }

    QueuedWorld& world_;
    const int rank_;
    std::vector<Membership> memberships_;
};

}  // namespace

QueuedWorld::QueuedWorld(int ranks, LocalOptions options)
    : ranks_(ranks), options_(options), topology_{std::vector<int>(static_cast<size_t>(std::max(ranks, 0)), 0), ranks} {
    ensure(ranks >= 1, "a world has at least one rank");
}

QueuedWorld::~QueuedWorld() = default;

std::unique_ptr<Communicator> QueuedWorld::communicator(int rank) {
    ensure(rank >= 0 && rank < ranks_, fmt::format("rank {} in a world of {} ranks", rank, ranks_));
    return std::make_unique<QueuedCommunicator>(*this, rank);
}

void QueuedWorld::abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    for (const auto& group : groups_) {
        for (queued::Channel& channel : group->channels) channel.close();
    }
}

void QueuedWorld::throw_aborted() {
    const std::lock_guard lock(mutex_);
    throw Aborted(reason_);
}

queued::Group& QueuedWorld::group(const std::vector<int>& ranks) {
    require_group(ranks, ranks_);
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted(reason_);
    for (const auto& group : groups_) {
        if (group->ranks == ranks) return *group;
    }
    return *groups_.emplace_back(std::make_unique<queued::Group>(ranks));
}

}  // namespace lockstep::comm
