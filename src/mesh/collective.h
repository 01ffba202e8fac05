// The one table of collectives, in the words of MPI and NCCL: what programs, transports, costs, the simulator and `check` know
// of each kind. A kind that this table lacks does not exist: asking for it throws.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace lockstep::mesh {

// AllGather: every member has the blocks of all. ReduceScatter: member k has the reduced block k. AllReduce: every member has
// the reduced block. AllToAll: member k has block k of every member. Broadcast: every member has the root's block. Permute: a
// member has the block of the member `by` positions before it, around the group.
// Send and Recv are the two sides of a message between two members, the sender first. A send returns at once, and its bytes
// must not change until the Wait for it is over. A receive waits for what is sent. Between two members, messages are received
// and waited for in the order in which they were sent.
enum class Collective { AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Permute, Send, Recv, Wait };

// What the op of a collective says besides operands and group, each an integer: dims of its operand, positions in the group, or
// a pipeline rank.
enum class Attr { None, Dim, From, To, Root, By, Peer };
constexpr std::string_view name_of(Attr attr) {
    constexpr std::array<std::string_view, 7> names = {"", "dim", "from", "to", "root", "by", "peer"};
    return names[static_cast<size_t>(attr)];
}

// How many blocks a member gives, or takes.
enum class Blocks { None, One, Members };

// What a collective puts on a link when it goes around a ring of equal links: blocks, and steps of one latency each.
struct RingUse {
    double blocks = 0, steps = 0;
};

struct CollectiveTraits {
    Collective kind;
    std::string_view name;  // of the op,
    Attr attr, other_attr;  // which needs both
    Blocks gives, takes;
    bool symmetric;    // all members launch it, and nobody goes on before all have come
    bool reduces;      // sums, or maxima, of the members' blocks
    bool gathers;      // blocks of members, or of what they have reduced, are brought to everybody
    bool same_result;  // every member gets the same bits
    RingUse (*ring)(double members);

    bool has(Attr a) const { return attr == a || other_attr == a; }
    bool has_algorithm() const { return reduces || gathers; }  // see mesh/algorithms.h
    // Does a member move bytes? Those of a message the receiver moves.
    bool moves_bytes() const { return symmetric || takes != Blocks::None; }
};

inline constexpr std::array<CollectiveTraits, 9> kCollectives = {{
    {Collective::AllGather, "all_gather", Attr::Dim, Attr::None, Blocks::One, Blocks::Members, true, false, true, true,
     [](double n) {
         return RingUse{n - 1, n - 1};
     }},
    {Collective::ReduceScatter, "reduce_scatter", Attr::Dim, Attr::None, Blocks::Members, Blocks::One, true, true, false, false,
     [](double n) {
         return RingUse{n - 1, n - 1};
     }},
    {Collective::AllReduce, "all_reduce", Attr::None, Attr::None, Blocks::One, Blocks::One, true, true, true, true,
     [](double n) {
         return RingUse{2 / n * (n - 1), 2 * (n - 1)};
     }},
    {Collective::AllToAll, "all_to_all", Attr::From, Attr::To, Blocks::Members, Blocks::Members, true, false, false, false,
     [](double n) {
         return RingUse{n - 1, n - 1};
     }},
    {Collective::Broadcast, "broadcast", Attr::Root, Attr::None, Blocks::One, Blocks::One, true, false, false, true,
     [](double n) {
         return RingUse{n > 1 ? 1.0 : 0.0, n - 1};
     }},
    {Collective::Permute, "permute", Attr::By, Attr::None, Blocks::One, Blocks::One, true, false, false, false,
     [](double) {
         return RingUse{1, 1};
     }},
    {Collective::Send, "send", Attr::Peer, Attr::None, Blocks::One, Blocks::None, false, false, false, false,
     [](double) {
         return RingUse{1, 1};
     }},
    {Collective::Recv, "recv", Attr::Peer, Attr::None, Blocks::None, Blocks::One, false, false, false, false,
     [](double) {
         return RingUse{1, 1};
     }},
    {Collective::Wait, "wait", Attr::Peer, Attr::None, Blocks::None, Blocks::None, false, false, false, false,
     [](double) { return RingUse{}; }},
}};

constexpr const CollectiveTraits& traits_of(Collective kind) { return kCollectives[static_cast<size_t>(kind)]; }
constexpr std::string_view name_of(Collective kind) { return traits_of(kind).name; }

constexpr bool is_in_order() {
    for (size_t i = 0; i < kCollectives.size(); ++i) {
        if (static_cast<size_t>(kCollectives[i].kind) != i) return false;
    }
    return true;
}
static_assert(is_in_order());

// Nothing: no collective is called so.
constexpr std::optional<Collective> collective_named(std::string_view name) {
    for (const CollectiveTraits& traits : kCollectives) {
        if (traits.name == name) return traits.kind;
    }
    return std::nullopt;
}

inline Collective collective_of(std::string_view name) {
    const std::optional<Collective> kind = collective_named(name);
    ensure(kind.has_value(), std::string(name) + " is no collective");
    return *kind;
}

}  // namespace lockstep::mesh
