// What the transports of one process have in common: their ranks, the groups that these have made and what each rank knows of
// them, and how a job is aborted. The transports differ in how the members of a group join.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/launch.h"
#include "comm/transport.h"
#include "mesh/ring.h"

namespace lockstep::comm {

// A launch is held back until a ring over links of this speed would have finished it, as if every rank had one link and
// each channel the whole of it. For experiments on overlap.
struct LocalOptions {
    mesh::Link link;
};

// A group has `ranks`, and `channels` that close.
template <class GroupOfRanks>
class OneProcess : public Transport {
public:
    using Group = GroupOfRanks;

    OneProcess(int ranks, LocalOptions options);
    ~OneProcess() override;
    OneProcess(const OneProcess&) = delete;
    OneProcess& operator=(const OneProcess&) = delete;

    int ranks() const override { return ranks_; }
    int first_rank() const override { return 0; }
    int ranks_here() const override { return ranks_; }
    const mesh::Topology& topology() const override { return topology_; }
    const LocalOptions& options() const { return options_; }

    // A launch that all its members have entered still completes.
    void abort(const std::string& reason) override;
    [[noreturn]] void throw_aborted();

    // The group of these ranks in this order, made on first use. For Communicators.
    Group& group(const std::vector<int>& ranks);

private:
    const int ranks_;
    const LocalOptions options_;
    const mesh::Topology topology_;  // one process
    std::mutex mutex_;               // guards what follows; no launch takes it unless it throws
    std::vector<std::unique_ptr<Group>> groups_;
    bool aborted_ = false;
    std::string reason_;
};

// One rank of such a transport, which outlives it.
template <class TransportOfRanks>
class RankOfProcess : public Communicator {
public:
    using Group = typename TransportOfRanks::Group;

    RankOfProcess(TransportOfRanks& transport, int rank) : transport_(transport), rank_(rank) {
        ensure(rank >= 0 && rank < ranks(), fmt::format("rank {} in a world of {} ranks", rank, ranks()));
    }

    int rank() const override { return rank_; }
    int ranks() const override { return transport_.ranks(); }
    int position(GroupId group) const override { return membership(group).position; }
    int members(GroupId group) const override { return static_cast<int>(membership(group).group->ranks.size()); }
    void abort(const std::string& reason) override { transport_.abort(reason); }

    GroupId add_group(std::vector<int> ranks) override {
        const int position = position_in(ranks, rank_);
        Group* group = &transport_.group(ranks);
        const auto known =
            std::find_if(memberships_.begin(), memberships_.end(), [&](const Membership& m) { return m.group == group; });
        if (known != memberships_.end())
            return static_cast<GroupId>(known - memberships_.begin());  // one count of rounds a group
        memberships_.push_back({group, position, {}});
        return static_cast<GroupId>(memberships_.size() - 1);
    }

protected:
    struct Rounds {
        uint32_t start = 0, finish = 0;
        uint32_t messages = 0, waited = 0;  // launches of this rank: sent, or received; waited for
    };
    struct Membership {
        Group* group;
        int position;
        Rounds rounds[kChannels];
    };

    Membership& membership(GroupId id) { return memberships_.at(static_cast<size_t>(id)); }
    const Membership& membership(GroupId id) const { return memberships_.at(static_cast<size_t>(id)); }

    // What must have ended before this rank gives up its buffers.
    virtual void before_leaving() {}
    // Throws Aborted.
    [[noreturn]] void leave() {
        before_leaving();
        transport_.throw_aborted();
    }
    void refuse_bad(int channel, const Membership& self, Requests requests) {
        const Rounds& rounds = self.rounds[std::clamp(channel, 0, kChannels - 1)];
        const auto wrong = wrong_launch(rank_, channel, requests, self.position, static_cast<int>(self.group->ranks.size()),
                                        rounds.messages - rounds.waited);
        if (!wrong) return;
        transport_.abort(*wrong);
        before_leaving();
        throw InternalError(*wrong);
    }

    TransportOfRanks& transport_;
    std::vector<Membership> memberships_;

private:
    const int rank_;
};

template <class Group>
OneProcess<Group>::OneProcess(int ranks, LocalOptions options)
    : ranks_(ranks), options_(options), topology_{std::vector<int>(static_cast<size_t>(std::max(ranks, 0)), 0), ranks} {
    ensure(ranks >= 1, "a world has at least one rank");
}

template <class Group>
OneProcess<Group>::~OneProcess() = default;

template <class Group>
void OneProcess<Group>::abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    for (const auto& group : groups_) {
        for (auto& channel : group->channels) channel.close();
    }
}

template <class Group>
void OneProcess<Group>::throw_aborted() {
    const std::lock_guard lock(mutex_);
    throw Aborted(reason_);
}

template <class Group>
Group& OneProcess<Group>::group(const std::vector<int>& ranks) {
    require_group(ranks, ranks_);
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted(reason_);
    for (const auto& group : groups_) {
        if (group->ranks == ranks) return *group;
    }
    return *groups_.emplace_back(std::make_unique<Group>(ranks));
}

}  // namespace lockstep::comm
