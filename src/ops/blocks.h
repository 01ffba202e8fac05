// Names of the ops on blocks of a dim (blocks.cpp).
#pragma once

#include <string_view>

namespace lockstep::ops {

inline constexpr std::string_view kJoinBlocks = "join_blocks";
// An attribute: blocks keep the order of a list, whatever the rank.
inline constexpr const char* kListed = "listed";

}  // namespace lockstep::ops
