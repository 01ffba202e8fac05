// A wire between "processes" that are threads of this one, for the sanitizers. A message of more than 64 bytes is read from its
// sender's buffer when a receive for it is posted, however late: whoever reuses the buffer before is found out.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "comm/processes/wire.h"

namespace lockstep::comm::test {

class Network {
public:
    explicit Network(std::vector<int> host_of)
        : host_of(std::move(host_of)),
          sent_bytes(this->host_of.size()),
          left_host_bytes(this->host_of.size()),
          inbox(this->host_of.size()) {}

    struct Entry {  // a send or a receive that has found no counterpart yet
        int from, to, tag;
        char* data;
        int64_t bytes;
        std::vector<char> copy;
        size_t state;
    };
    enum State : char { Waiting, Done, TooLong };

    std::mutex mutex;
    int most_tag = 1 << 20;
    bool leaves_when_asked = false;  // a message of more than 64 bytes, when its sender asks whether it has left
    const std::vector<int> host_of;
    std::vector<int64_t> sent_bytes;       // by process: data, not control messages
    std::vector<int64_t> left_host_bytes;  // of them, to other hosts
    std::list<Entry> sends, receives, held;
    std::deque<State> states;
    std::vector<std::deque<std::pair<int, std::string>>> inbox;  // control messages
};

class MemoryWire final : public processes::Wire {
public:
    MemoryWire(Network& network, int process) : network_(network), process_(process) {}

    int process() const override { return process_; }
    int processes() const override { return static_cast<int>(network_.host_of.size()); }
    int host_of(int process) const override { return network_.host_of[static_cast<size_t>(process)]; }
    int most_tag() const override { return network_.most_tag; }

    Ticket send(int to, int tag, const void* data, int64_t bytes) override {
        const std::lock_guard lock(network_.mutex);
        network_.sent_bytes[static_cast<size_t>(process_)] += bytes;
        if (host_of(to) != host_of(process_)) network_.left_host_bytes[static_cast<size_t>(process_)] += bytes;
        Network::Entry entry = begin(process_, to, tag, const_cast<void*>(data), bytes);
        if (bytes <= 64) {
            entry.copy.assign(entry.data, entry.data + bytes);
            entry.data = entry.copy.data();
            network_.states[entry.state] = Network::Done;
        } else if (network_.leaves_when_asked) {
            network_.held.push_back(std::move(entry));
            return {network_.held.back().state};
        }
        return leave(std::move(entry));
    }
    Ticket receive(int from, int tag, void* data, int64_t capacity_bytes) override {
        const std::lock_guard lock(network_.mutex);
        Ticket ticket = match(begin(from, process_, tag, data, capacity_bytes), network_.sends, network_.receives,
                              [](auto& send, auto& receive) { return deliver(send, receive); });
        ticket.receives = true;
        return ticket;
    }
    bool done(Ticket& ticket) override {
        const std::lock_guard lock(network_.mutex);
        const auto held = std::find_if(network_.held.begin(), network_.held.end(),
                                       [&](const Network::Entry& e) { return e.state == ticket.handle; });
        if (held != network_.held.end()) {
            Network::Entry entry = std::move(*held);
            network_.held.erase(held);
            leave(std::move(entry));
        }
        if (network_.states[ticket.handle] == Network::TooLong) throw std::runtime_error("a message is longer than was expected");
        return network_.states[ticket.handle] == Network::Done;
    }
    void drop(Ticket ticket) override {
        const std::lock_guard lock(network_.mutex);
        if (ticket.receives) network_.receives.remove_if([&](const Network::Entry& e) { return e.state == ticket.handle; });
    }
    void post(int to, std::string message) override {
        const std::lock_guard lock(network_.mutex);
        network_.inbox[static_cast<size_t>(to)].emplace_back(process_, std::move(message));
    }
    bool poll(int& from, std::string& message) override {
        const std::lock_guard lock(network_.mutex);
        auto& inbox = network_.inbox[static_cast<size_t>(process_)];
        if (inbox.empty()) return false;
        std::tie(from, message) = std::move(inbox.front());
        inbox.pop_front();
        return true;
    }

private:
    Network::Entry begin(int from, int to, int tag, void* data, int64_t bytes) {
        network_.states.push_back(Network::Waiting);
        return {from, to, tag, static_cast<char*>(data), bytes, {}, network_.states.size() - 1};
    }

    Ticket leave(Network::Entry send) {
        return match(std::move(send), network_.receives, network_.sends,
                     [](auto& receive, auto& other) { return deliver(other, receive); });
    }

    template <class Deliver>
    Ticket match(Network::Entry entry, std::list<Network::Entry>& others, std::list<Network::Entry>& own, Deliver deliver) {
        const uint64_t handle = entry.state;
        for (auto other = others.begin(); other != others.end(); ++other) {
            if (other->from != entry.from || other->to != entry.to || other->tag != entry.tag) continue;
            const bool fits = deliver(*other, entry);
            network_.states[other->state] = network_.states[entry.state] = Network::Done;
            if (!fits) network_.states[&own == &network_.receives ? entry.state : other->state] = Network::TooLong;
            others.erase(other);
            return {handle};
        }
        own.push_back(std::move(entry));
        return {handle};
    }

    static bool deliver(const Network::Entry& send, const Network::Entry& receive) {
        if (send.bytes > receive.bytes) return false;
        if (send.bytes > 0) std::memcpy(receive.data, send.data, static_cast<size_t>(send.bytes));
        return true;
    }

    Network& network_;
    const int process_;
};

}  // namespace lockstep::comm::test
