#include "comm/local.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/arrivals.h"
#include "comm/launch.h"
#include "comm/local_copy.h"

namespace lockstep::comm {
namespace local {

// What the first of two members has given in a launch and the second has not taken.
struct Note {
    std::vector<Request> requests;
    std::chrono::steady_clock::time_point given;
};

// What the members of a group share on one channel. What others are waited for in closes when the world aborts; `finish` never
// does: whoever passed `start` only copies until it arrives, so nobody leaves a launch while another still uses its buffers.
struct Channel {
    Arrivals start, finish;
    std::vector<Requests> launch;       // [members], written by each member before it arrives at start
    Count given, taken;                 // launches of transfers
    std::vector<Note> notes;            // of two members: [kTransfersInFlight], the k-th launch's at k modulo that
    std::atomic<bool> copying = false;  // out of a note

    void close() { start.close(), given.close(), taken.close(); }
};

struct Group {
    explicit Group(std::vector<int> ranks) : ranks(std::move(ranks)) {
        for (Channel& channel : channels) {
            channel.launch.resize(this->ranks.size());
            if (this->ranks.size() == 2) channel.notes.resize(kTransfersInFlight);
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

class LocalCommunicator final : public Communicator {
public:
    LocalCommunicator(World& world, int rank) : world_(world), rank_(rank) {}

    int rank() const override { return rank_; }
    int ranks() const override { return world_.ranks(); }
    int position(GroupId group) const override { return membership(group).position; }
    int members(GroupId group) const override { return static_cast<int>(membership(group).group->ranks.size()); }
    void abort(const std::string& reason) override { world_.abort(reason); }

    GroupId add_group(std::vector<int> ranks) override {
        const auto self = std::find(ranks.begin(), ranks.end(), rank_);
        ensure(self != ranks.end(), fmt::format("add_group: rank {} is not in its group {}", rank_, ranks));
        local::Group* group = &world_.group(ranks);
        const auto known =
            std::find_if(memberships_.begin(), memberships_.end(), [&](const Membership& m) { return m.group == group; });
        if (known != memberships_.end())
            return static_cast<GroupId>(known - memberships_.begin());  // one count of rounds a group
        memberships_.emplace_back(group, static_cast<int>(self - ranks.begin()));
        return static_cast<GroupId>(memberships_.size() - 1);
    }

    using Communicator::run;
    void run(device::Queue& queue, GroupId id, Requests requests) override {
        const int channel_index = queue.index();
        Membership& self = membership(id);
        refuse_bad(channel_index, self, requests);
        local::Channel& channel = self.group->channels[channel_index];
        Rounds& rounds = self.rounds[channel_index];
        if (are_transfers(requests))
            return self.position == 0 ? give(channel, rounds, requests) : take(channel_index, self, requests);
        const int members = static_cast<int>(channel.launch.size());
        channel.launch[static_cast<size_t>(self.position)] = requests;
        if (!channel.start.arrive_and_wait(rounds.start, members)) leave();

        const auto began = std::chrono::steady_clock::now();
        const std::span<const Requests> launch = channel.launch;
        const bool matches = std::all_of(launch.begin(), launch.end(), [&](Requests r) { return same_shapes(r, launch[0]); });
        std::string difference;
        if (matches) {
            for (size_t index = 0; index < requests.size(); ++index) local::execute(launch, index, self.position);
            const auto held = local::link_time(world_.options().link, requests, members);
            if (held.count() > 0) std::this_thread::sleep_until(began + held);
        } else {
            difference = difference_in(*self.group, channel_index, launch);
        }
        channel.finish.arrive_and_wait(rounds.finish, members);
        if (!matches) {
            world_.abort(difference);
            leave();
        }
    }

    using Communicator::await_transfer;
    void await_transfer(device::Queue& queue, GroupId id) override {
        const int channel_index = queue.index();
        Membership& self = membership(id);
        Rounds& rounds = self.rounds[channel_index];
        if (rounds.awaited == rounds.transfers)
            throw InternalError(fmt::format("rank {} awaits a transfer and has given none", rank_));
        if (!self.group->channels[channel_index].taken.wait_for(++rounds.awaited)) leave();
    }

private:
    struct Rounds {
        uint32_t start = 0, finish = 0;
        uint32_t transfers = 0, awaited = 0;  // given, or taken, by this rank
    };
    struct Membership {
        Membership(local::Group* group, int position) : group(group), position(position) {}
        local::Group* group;
        int position;
        Rounds rounds[kChannels];
    };

    void give(local::Channel& channel, Rounds& rounds, Requests requests) {
        local::Note& note = channel.notes[rounds.transfers++ % kTransfersInFlight];
        note.requests.assign(requests.begin(), requests.end());
        note.given = std::chrono::steady_clock::now();
        if (!channel.given.add()) leave();
    }

    void take(int channel_index, Membership& self, Requests requests) {
        local::Channel& channel = self.group->channels[channel_index];
        uint32_t& taken = self.rounds[channel_index].transfers;
        if (!channel.given.wait_for(taken + 1)) leave();
        const local::Note& note = channel.notes[taken++ % kTransfersInFlight];
        channel.copying = true;
        std::string difference;
        if (!channel.given.is_closed()) {
            const Requests launch[] = {note.requests, requests};
            if (same_shapes(launch[0], launch[1])) local::take(note.requests, requests);
            else difference = difference_in(*self.group, channel_index, launch);
        }
        channel.copying = false;
        channel.copying.notify_all();
        if (!difference.empty()) world_.abort(difference);
        const auto held = local::link_time(world_.options().link, requests, 2);
        if (held.count() > 0) std::this_thread::sleep_until(note.given + held);
        if (!channel.taken.add()) leave();
    }

    // Throws Aborted, when nobody copies from this rank any more: who begins to copy after the abort sees it and does not.
    [[noreturn]] void leave() {
        wait_for_takers();
        world_.throw_aborted();
    }
    void wait_for_takers() {
        for (Membership& m : memberships_) {
            for (local::Channel& channel : m.group->channels) {
                if (m.position == 0) channel.copying.wait(true);
            }
        }
    }

    Membership& membership(GroupId id) { return memberships_.at(static_cast<size_t>(id)); }
    const Membership& membership(GroupId id) const { return memberships_.at(static_cast<size_t>(id)); }

    void refuse_bad(int channel, const Membership& self, Requests requests) {
        const Rounds& rounds = self.rounds[std::clamp(channel, 0, kChannels - 1)];
        const std::string why = refusal(channel, requests, self.position, static_cast<int>(self.group->ranks.size()),
                                        rounds.transfers - rounds.awaited);
        if (why.empty()) return;
        const std::string message = fmt::format("rank {} launched a collective that cannot run: {}", rank_, why);
        world_.abort(message);
        wait_for_takers();
        throw InternalError(message);
    }

    World& world_;
    const int rank_;
    std::vector<Membership> memberships_;
};

}  // namespace

World::World(int ranks, LocalOptions options)
    : ranks_(ranks), options_(options), topology_{std::vector<int>(static_cast<size_t>(std::max(ranks, 0)), 0), ranks} {
    ensure(ranks >= 1, "a world has at least one rank");
}

World::~World() = default;

std::unique_ptr<Communicator> World::communicator(int rank) {
    ensure(rank >= 0 && rank < ranks_, fmt::format("rank {} in a world of {} ranks", rank, ranks_));
    return std::make_unique<LocalCommunicator>(*this, rank);
}

void World::abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    for (const auto& group : groups_) {
        for (local::Channel& channel : group->channels) channel.close();
    }
}

void World::throw_aborted() {
    const std::lock_guard lock(mutex_);
    throw Aborted(reason_);
}

local::Group& World::group(const std::vector<int>& ranks) {
    require_group(ranks, ranks_);
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted(reason_);
    for (const auto& group : groups_) {
        if (group->ranks == ranks) return *group;
    }
    return *groups_.emplace_back(std::make_unique<local::Group>(ranks));
}

}  // namespace lockstep::comm
