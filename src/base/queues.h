// The queues of a rank and the memories that it has: one list of each, by which everything that is kept for every queue or for
// every memory is counted. A technique that needs a queue of its own adds a line here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "base/enum_array.h"

namespace lockstep {

// What is given to one queue happens in the order in which it was given. Queues are ordered by events only.
// Collectives of different axes have queues of their own, so that none waits behind one that it does not need.
enum class QueueName : uint8_t { Compute, Comm, Tensor, Pipeline, Loads, Snapshots };

struct QueueTraits {
    QueueName queue;
    std::string_view name;   // in program text
    std::string_view title;  // in flight records and traces
    bool in_steps;           // a program's calls may be in it, and its collectives have a channel of their own
    bool computes;           // the threads of a rank share the work of its kernels
};

inline constexpr std::array kQueueTraits = {
    QueueTraits{QueueName::Compute, "compute", "compute", true, true},
    QueueTraits{QueueName::Comm, "comm", "communication", true, false},         // weights and gradients
    QueueTraits{QueueName::Tensor, "tensor", "tensor", true, false},            // parts of layers (asynchronous TP)
    QueueTraits{QueueName::Pipeline, "pipeline", "pipeline", true, false},      // transfers
    QueueTraits{QueueName::Loads, "loads", "loads", false, false},              // of host code, which reads and writes
    QueueTraits{QueueName::Snapshots, "snapshots", "snapshots", false, false},  // copies for checkpoints
};
inline constexpr size_t kQueues = kQueueTraits.size();
inline constexpr size_t kStepQueues = std::ranges::count_if(kQueueTraits, &QueueTraits::in_steps);

static_assert(
    [] {
        for (size_t i = 0; i < kQueues; ++i) {
            if (kQueueTraits[i].queue != static_cast<QueueName>(i)) return false;
        }
        return true;
    }(),
    "a row is at the place of its queue");

constexpr const QueueTraits& traits_of(QueueName queue) { return kQueueTraits[static_cast<size_t>(queue)]; }
constexpr std::string_view name_of(QueueName queue) { return traits_of(queue).name; }

// The queues of a step, in their order.
inline constexpr auto kQueuesOfSteps = [] {
    std::array<QueueName, kStepQueues> out{};
    for (size_t i = 0; i < kStepQueues; ++i) out[i] = kQueueTraits[i].queue;
    return out;
}();
static_assert(std::ranges::all_of(kQueuesOfSteps, [](QueueName queue) { return traits_of(queue).in_steps; }),
              "the queues of a step come first");

template <class T>
using ByQueue = EnumArray<QueueName, T, kQueues>;
template <class T>
using ByStepQueue = EnumArray<QueueName, T, kStepQueues>;

// Whose memory bytes lie in. Of a processor all are one memory.
enum class Place : uint8_t {
    Device,
    Host  // what copies to and from the device may use; host code follows its addresses
};
inline constexpr std::array kPlaces = {Place::Device, Place::Host};
constexpr std::string_view name_of(Place place) { return place == Place::Device ? "device" : "host"; }

template <class T>
using ByPlace = EnumArray<Place, T, kPlaces.size()>;

}  // namespace lockstep
