#include "tests/fakes/cuda/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::fakes::cuda {
namespace {

std::vector<const char*> sent(const Launches& launches, size_t offset_bytes) {
    std::vector<const char*> all;
    for (const auto& [rank, launch] : launches) all.push_back(launch.send + offset_bytes);
    return all;
}

void run_all_gather(const Launches& launches) {
    for (const auto& [to, receiver] : launches) {
        for (const auto& [from, sender] : launches)
            std::memmove(receiver.receive + static_cast<size_t>(from) * sender.bytes(), sender.send, sender.bytes());
    }
}

// Each rank's share of the elements is reduced along the ring, and ends at that rank.
void run_all_reduce(const Launches& launches) {
    const Launch& any = launches.begin()->second;
    const size_t ranks = launches.size(), element_bytes = element_type(any.type).bytes;
    std::vector<char> result(any.bytes());
    for (size_t r = 0; r < ranks; ++r) {
        const size_t begin = any.count * r / ranks, end = any.count * (r + 1) / ranks;
        const size_t offset_bytes = begin * element_bytes;
        reduce(any.type, any.operation, sent(launches, offset_bytes), end - begin, r + 1, result.data() + offset_bytes);
    }
    for (const auto& [rank, launch] : launches) std::copy(result.begin(), result.end(), launch.receive);
}

void run_reduce_scatter(const Launches& launches) {
    for (const auto& [rank, launch] : launches) {
        const auto r = static_cast<size_t>(rank);
        std::vector<char> result(launch.bytes());
        reduce(launch.type, launch.operation, sent(launches, r * launch.bytes()), launch.count, r + 1, result.data());
        std::copy(result.begin(), result.end(), launch.receive);
    }
}

void run_copies(const Launches& launches, const Launch& source) {
    for (const auto& [rank, launch] : launches) {
        if (launch.receive) std::memmove(launch.receive, source.send, source.bytes());
    }
}

}  // namespace

bool agree(const Launch& one, const Launch& other) {
    const auto terms = [](const Launch& l) {
        const Kind kind = l.is_transfer() ? Kind::Send : l.kind;
        return std::tuple(kind, l.count, l.type, l.operation, l.is_transfer() ? -1 : l.root, l.captured);
    };
    return terms(one) == terms(other);
}

std::string text(const Launch& l) {
    std::string all = fmt::format("{} of {} {}", l.call, l.count, element_type(l.type).name);
    if (l.reduces()) all += fmt::format(" ({})", name_of(l.operation));
    if (l.kind == Kind::Broadcast) all += fmt::format(" from root {}", l.root);
    if (l.captured) all += " in a graph";
    return all;
}

void run(const Launches& launches) {
    const Launch& any = launches.begin()->second;
    switch (any.kind) {
        case Kind::AllGather: return run_all_gather(launches);
        case Kind::AllReduce: return run_all_reduce(launches);
        case Kind::ReduceScatter: return run_reduce_scatter(launches);
        case Kind::Broadcast: return run_copies(launches, launches.at(any.root));
        case Kind::Send:
        case Kind::Receive: return run_copies(launches, launches.at(0));
    }
}

}  // namespace lockstep::fakes::cuda
