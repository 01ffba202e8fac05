// The collectives of a group of ranks: what each is called in programs, and whether its data has several ways to go.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace lockstep::mesh {

// Permute: the operand of each member becomes the result of the member a given number of positions behind it, around the group.
enum class Collective { AllGather, ReduceScatter, AllReduce, Permute };

struct CollectiveTraits {
    std::string_view name;  // of the op
    bool has_ways;          // see mesh/ways.h
};
inline constexpr std::array<CollectiveTraits, 4> kCollectives = {
    {{"all_gather", true}, {"reduce_scatter", true}, {"all_reduce", true}, {"permute", false}}};

constexpr const CollectiveTraits& traits_of(Collective kind) { return kCollectives[static_cast<size_t>(kind)]; }

// Nothing: no collective is called so.
constexpr std::optional<Collective> collective_named(std::string_view name) {
    for (size_t i = 0; i < kCollectives.size(); ++i) {
        if (kCollectives[i].name == name) return static_cast<Collective>(i);
    }
    return std::nullopt;
}

}  // namespace lockstep::mesh
