// A job whose collectives run in the queues of devices that are not the host. The buffers of a body, which stand on the host, are
// brought to the device and back.
#pragma once

#include <atomic>
#include <cstring>
#include <utility>

#include "base/round.h"
#include "comm/queued.h"
#include "device/late.h"
#include "tests/comm/jobs.h"

namespace lockstep::comm::test {
// Host code's buffers on a device, for one rank.
class Staged final : public Communicator {
public:
    // PeersAlike: each launch uses the arena from its beginning, so its members have their buffers at equal offsets.
    enum class By { Any, Peers, PeersAlike };
    Staged(std::unique_ptr<Communicator> inner, device::Machine& machine, By by = By::Any)
        : inner_(std::move(inner)), device_(machine.device({})), by_peers_(by != By::Any), is_alike_(by == By::PeersAlike) {
        if (!is_alike_) return;
        arena_ = device_->allocate(kArenaBytes, Place::Device);
        inner_->expose(arena_, kArenaBytes, "one");
    }

    int rank() const override { return inner_->rank(); }
    int ranks() const override { return inner_->ranks(); }
    GroupId add_group(std::vector<int> ranks) override {
        const GroupId group = inner_->add_group(std::move(ranks));
        for (QueueName queue : kQueuesOfSteps) inner_->use(group, queue, by_peers_);
        return group;
    }
    void connect() override { inner_->connect(); }
    int position(GroupId group) const override { return inner_->position(group); }
    int members(GroupId group) const override { return inner_->members(group); }
    void abort(const std::string& reason) override { inner_->abort(reason); }

    using Communicator::run;
    void run(device::Queue& host, GroupId group, std::span<const Request> requests) override {
        device::Queue& queue = device_->queue(host.name());
        const bool may_run = refusal(requests, group).empty();
        if (is_alike_) used_ = 0;
        std::vector<Copy> copies;
        std::vector<Request> there(requests.begin(), requests.end());
        for (Request& r : there) {
            r.by_peers = by_peers_;
            if (may_run) copies.push_back(bring(queue, r, group));
        }
        inner_->run(queue, group, there);
        if (!requests.empty() && requests[0].kind == Collective::Send) return;
        for (const Copy& c : copies) {
            if (c.bytes > 0)
                device_->read(queue, c.there, c.bytes,
                              [&](const char* from) { std::memcpy(c.here, from, static_cast<size_t>(c.bytes)); });
        }
        device_->finish(queue);
    }

private:
    struct Copy {  // of a result
        char *here = nullptr, *there = nullptr;
        int64_t bytes = 0;
    };
    std::string refusal(std::span<const Request> requests, GroupId group) const {
        std::string why;
        for (const Request& r : requests) why += comm::refusal(r, inner_->position(group), inner_->members(group));
        return why;
    }
    // Of an arena that is used round and round: what lies that far back has been taken long since.
    char* room(int64_t bytes) {
        const std::lock_guard lock(mutex_);
        if (!arena_) arena_ = device_->allocate(kArenaBytes, Place::Device);
        bytes = round_up(bytes, kAlignmentBytes);
        if (used_ + bytes > kArenaBytes) used_ = 0;
        return arena_ + std::exchange(used_, used_ + bytes);
    }
    // Replaces the request's addresses; what overlaps here does so there.
    Copy bring(device::Queue& queue, Request& r, GroupId group) {
        const int members = inner_->members(group);
        const int64_t in_bytes = r.in ? r.in_bytes(members) : 0, out_bytes = r.out ? r.out_bytes(members) : 0;
        auto *in = const_cast<char*>(static_cast<const char*>(r.in)), *out = static_cast<char*>(r.out);
        const auto place = [&](char* here, int64_t bytes) {
            char* there = room(bytes);
            if (bytes > 0)
                device_->write(queue, there, bytes, [&](char* to) { std::memcpy(to, here, static_cast<size_t>(bytes)); });
            return there;
        };
        const bool overlap =
            in_bytes > 0 && out_bytes > 0 && std::less<>()(in, out + out_bytes) && std::less<>()(out, in + in_bytes);
        char* const begin = std::min(in, out, std::less<>());
        char* const shared = overlap ? place(begin, std::max(in + in_bytes, out + out_bytes) - begin) : nullptr;
        if (in_bytes > 0) r.in = overlap ? shared + (in - begin) : place(in, in_bytes);
        if (out_bytes > 0) r.out = overlap ? shared + (out - begin) : place(out, out_bytes);
        return {out, static_cast<char*>(r.out), out_bytes};
    }

    static constexpr int64_t kArenaBytes = int64_t{256} << 20;
    std::unique_ptr<Communicator> inner_;
    std::unique_ptr<device::Device> device_;
    const bool by_peers_, is_alike_;
    std::mutex mutex_;  // two threads of a rank, each on its channel
    char* arena_ = nullptr;
    int64_t used_ = 0;
};

struct StagedTransport {
    std::unique_ptr<device::Machine> machine;
    QueuedTransport world;
    int ranks() const { return world.ranks(); }
    std::unique_ptr<Communicator> communicator(int rank) { return std::make_unique<Staged>(world.communicator(rank), *machine); }
};

// `machine`: made anew for each run.
inline Job queued_job(const std::string& name, int ranks, std::function<std::unique_ptr<device::Machine>()> machine,
                      const Moves& moves = host_moves()) {
    const mesh::Topology topology = {std::vector<int>(static_cast<size_t>(ranks), 0), ranks};
    return {name + std::to_string(ranks), topology, [ranks, machine, &moves](const Body& body) {
                StagedTransport world{machine(), QueuedTransport(ranks, {}, moves)};
                return run_ranks(world, 0, ranks, body);
            }};
}

inline std::unique_ptr<device::Machine> next_late_machine() {
    static std::atomic<uint64_t> seed = 0;
    return device::late_machine(++seed);
}
inline Job queued_job(int ranks, const Moves& moves = host_moves()) {
    return queued_job(&moves == &host_moves() ? "Queued" : "QueuedByKernels", ranks, next_late_machine, moves);
}

}  // namespace lockstep::comm::test
