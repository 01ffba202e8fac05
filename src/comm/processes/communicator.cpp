#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/local_copy.h"
#include "comm/processes/leader.h"
#include "comm/processes/rows.h"

namespace lockstep::comm::processes {
namespace {

class ProcessCommunicator final : public Communicator {
public:
    ProcessCommunicator(ProcessTransport& transport, State& state, int rank)
        : transport_(transport), state_(state), rank_(rank) {}

    int rank() const override { return rank_; }
    int ranks() const override { return transport_.ranks(); }
    int position(GroupId group) const override { return membership(group).position; }
    int members(GroupId group) const override { return membership(group).group->layout.members(); }
    void abort(const std::string& reason) override { transport_.abort(reason); }

    GroupId add_group(std::vector<int> ranks) override;
    using Communicator::run;
    void run(device::Queue& queue, GroupId group, Requests requests) override;
    using Communicator::attend;
    void attend(int channel) override;

private:
    struct Counts {  // of launches; they wrap around
        uint32_t start = 0, middle = 0, finish = 0;
        uint32_t sent = 0, waited = 0, received = 0;
    };
    struct Membership {
        Membership(Group* group, int position) : group(group), position(position) {}
        Group* group;
        int position;
        Counts counts[kChannels];
    };

    Membership& membership(GroupId id) { return memberships_.at(static_cast<size_t>(id)); }
    const Membership& membership(GroupId id) const { return memberships_.at(static_cast<size_t>(id)); }

    void join(Membership& self, int channel, Requests requests);
    bool execute_here(Group& group, int channel, int position, Requests requests);
    void copy_from_leader(const Group& group, const Channel& channel, Requests requests);
    void send(Membership& self, int channel, Requests requests);
    void wait(Membership& self, int channel);
    void receive(Membership& self, int channel, Requests requests);
    void receive_here(Group& group, int channel, Requests requests, uint32_t launch);
    void receive_messages(Group& group, int channel, Requests requests);

    // False where the job is stopping, also by a failure of f itself, which aborts it.
    template <class F>
    bool succeeds(F f) {
        try {
            f();
            return true;
        } catch (const Stopped&) {
        } catch (const std::exception& error) {
            transport_.abort(fmt::format("rank {}: {}", rank_, error.what()));
        }
        return false;
    }

    ProcessTransport& transport_;
    State& state_;
    const int rank_;
    std::vector<Membership> memberships_;
    std::vector<PendingSend*> leaving_[kChannels];  // to other processes, and not seen to have left
};

GroupId ProcessCommunicator::add_group(std::vector<int> ranks) {
    const int position = position_in(ranks, rank_);
    Group* group = &state_.group(ranks, transport_);
    const auto known =
        std::find_if(memberships_.begin(), memberships_.end(), [&](const Membership& m) { return m.group == group; });
    if (known != memberships_.end()) return static_cast<GroupId>(known - memberships_.begin());
    memberships_.emplace_back(group, position);
    return static_cast<GroupId>(memberships_.size() - 1);
}

void ProcessCommunicator::run(device::Queue& queue, GroupId id, Requests requests) {
    const int channel = queue.index();
    Membership& self = membership(id);
    const Counts& counts = self.counts[std::clamp(channel, 0, kChannels - 1)];
    if (const auto wrong =
            wrong_launch(rank_, channel, requests, self.position, self.group->layout.members(), counts.sent - counts.waited)) {
        transport_.abort(*wrong);
        throw InternalError(*wrong);
    }
    const std::optional<Collective> kind = one_sided(requests);
    if (!kind) join(self, channel, requests);
    else if (kind == Collective::Send) send(self, channel, requests);
    else if (kind == Collective::Recv) receive(self, channel, requests);
    else wait(self, channel);
}

void ProcessCommunicator::join(Membership& self, int index, Requests requests) {
    Group& group = *self.group;
    Channel& channel = group.channels[index];
    Counts& counts = self.counts[index];
    const int here = static_cast<int>(group.here.size());
    channel.launch[self.position] = requests;
    channel.digests[self.position] = digest_of(requests);
    if (!channel.start.arrive_and_wait(counts.start, here)) state_.control.throw_aborted();

    bool right = true;
    if (group.in_one_process()) {
        right = execute_here(group, index, self.position, requests);
    } else {
        if (self.position == group.leader()) channel.failed = !succeeds([&] { lead(state_, group, index); });
        channel.middle.arrive_and_wait(counts.middle, here);
        right = !channel.failed;
        if (right && self.position != group.leader()) copy_from_leader(group, channel, requests);
    }
    channel.finish.arrive_and_wait(counts.finish, here);
    if (!right) state_.control.throw_aborted();
}

bool ProcessCommunicator::execute_here(Group& group, int index, int position, Requests requests) {
    const Channel& channel = group.channels[index];
    const auto other = std::find_if(channel.digests.begin(), channel.digests.end(),
                                    [&](uint64_t digest) { return digest != channel.digests[0]; });
    if (other != channel.digests.end()) {
        const auto at = static_cast<int>(other - channel.digests.begin());
        transport_.abort(mismatch(group.ranks, index, channel.launch[0], at, channel.launch[at]));
        return false;
    }
    device::Queue here(static_cast<QueueName>(index));
    for (size_t i = 0; i < requests.size(); ++i) local::execute(host_moves(), here, channel.launch, i, position);
    return true;
}

void ProcessCommunicator::copy_from_leader(const Group& group, const Channel& channel, Requests requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request& r = requests[i];
        const int64_t bytes = r.out_bytes(group.layout.members());
        if (r.traits().same_result && bytes > 0)
            std::memcpy(r.out, channel.launch[group.leader()][i].out, static_cast<size_t>(bytes));
    }
}

void ProcessCommunicator::send(Membership& self, int index, Requests requests) {
    if (state_.control.stopping()) state_.control.throw_aborted();
    Group& group = *self.group;
    Channel& channel = group.channels[index];
    PendingSend& pending = channel.pending[self.counts[index].sent++ % kSendsInFlight];
    if (group.in_one_process()) {
        pending.requests.assign(requests.begin(), requests.end());
        channel.sent.add();
        return;
    }
    const bool sent = succeeds([&] {
        const int to = group.layout.process_of[group.layout.part_of[1]], tag = tag_of(group, index);
        const auto send = [&](const std::byte* data, int64_t bytes) {
            pending.messages.emplace_back(*state_.wire, state_.wire->send(to, tag, data, bytes));
        };
        write_header(requests, pending.header);
        send(pending.header.data(), static_cast<int64_t>(pending.header.size()));
        for (const Request& r : requests) {
            const int64_t bytes = r.block_bytes(), limit = state_.options.message_bytes;
            for (int64_t at = 0; at < bytes; at += limit)
                send(static_cast<const std::byte*>(r.in) + at, std::min(limit, bytes - at));
        }
    });
    if (!sent) state_.control.throw_aborted();
    leaving_[index].push_back(&pending);
    state_.control.add_unattended(1);
}

void ProcessCommunicator::wait(Membership& self, int index) {
    Channel& channel = self.group->channels[index];
    Counts& counts = self.counts[index];
    PendingSend& pending = channel.pending[counts.waited++ % kSendsInFlight];
    if (self.group->in_one_process()) {
        if (!channel.received.wait_for(counts.waited)) state_.control.throw_aborted();
        return;
    }
    if (!succeeds([&] { wait_for(state_.control, pending.messages); })) state_.control.throw_aborted();
    attend(index);
}

void ProcessCommunicator::attend(int index) {
    if (index >= kChannels || leaving_[index].empty()) return;
    const auto has_left = [&](PendingSend* pending) {
        std::erase_if(pending->messages, [](Message& m) { return m.done(); });
        if (pending->messages.empty()) state_.control.add_unattended(-1);
        return pending->messages.empty();
    };
    if (!succeeds([&] { std::erase_if(leaving_[index], has_left); })) state_.control.throw_aborted();
}

void ProcessCommunicator::receive(Membership& self, int index, Requests requests) {
    Group& group = *self.group;
    const uint32_t launch = self.counts[index].received++;
    const bool right = succeeds([&] {
        group.in_one_process() ? receive_here(group, index, requests, launch) : receive_messages(group, index, requests);
    });
    if (!right) state_.control.throw_aborted();
}

void ProcessCommunicator::receive_here(Group& group, int index, Requests requests, uint32_t launch) {
    Channel& channel = group.channels[index];
    if (!channel.sent.wait_for(launch + 1)) throw Stopped();
    const ActiveGuard active(state_.control);  // a stop is not through while this copies
    const std::vector<Request>& sent = channel.pending[launch % kSendsInFlight].requests;
    if (!same_shapes(sent, requests)) {
        transport_.abort(mismatch(group.ranks, index, sent, 1, requests));
        throw Stopped();
    }
    device::Queue here(static_cast<QueueName>(index));
    local::receive(host_moves(), here, sent, requests);
    channel.received.add();
}

void ProcessCommunicator::receive_messages(Group& group, int index, Requests requests) {
    Channel& channel = group.channels[index];
    const ActiveGuard active(state_.control);
    const int from = group.layout.process_of[group.layout.part_of[0]], tag = tag_of(group, index);
    // Taken back, where this is stopped, before it leaves.
    struct Clear {
        std::vector<Message>& messages;
        ~Clear() { messages.clear(); }
    } clear{channel.receiving};
    const auto expect = [&](std::byte* data, int64_t bytes) {
        channel.receiving.emplace_back(*state_.wire, state_.wire->receive(from, tag, data, bytes));
    };
    channel.header.assign(static_cast<size_t>(header_capacity(2)), std::byte{0});
    expect(channel.header.data(), static_cast<int64_t>(channel.header.size()));
    for (const Request& r : requests) {
        const int64_t bytes = r.block_bytes(), limit = state_.options.message_bytes;
        for (int64_t at = 0; at < bytes; at += limit) expect(static_cast<std::byte*>(r.out) + at, std::min(limit, bytes - at));
    }
    wait_for(state_.control, std::span(channel.receiving).first(1));
    std::vector<Request> sent;
    const bool are_sends = read_header(channel.header, sent);
    if (!are_sends || !same_shapes(sent, requests)) {
        transport_.abort(are_sends
                             ? mismatch(group.ranks, index, sent, 1, requests)
                             : fmt::format("ranks launched different collectives in group {} on channel {}: rank {} something "
                                           "other than sends, rank {} {}",
                                           group.ranks, index, group.ranks[0], rank_, describe(requests[0])));
        throw Stopped();
    }
    wait_for(state_.control, channel.receiving);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(ProcessTransport& transport, State& state, int rank) {
    return std::make_unique<ProcessCommunicator>(transport, state, rank);
}

}  // namespace lockstep::comm::processes
