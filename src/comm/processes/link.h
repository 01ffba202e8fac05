// What Gather, DirectReduce, ChainReduce and TwoLevelReduce have in common. Each moves one collective between processes as a
// state machine that never waits: advance() does what can be done now. Its caller waits, and checks whether the job is being
// stopped. Destroying one that is not done withdraws its receives. Memory comes from a Scratch, which grows on the first launch
// of a size and is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/processes/pieces.h"
#include "comm/processes/rows.h"
#include "comm/processes/wire.h"
#include "mesh/algorithms.h"

namespace lockstep::comm::processes {

enum class Progress { None, Some, Done };

inline constexpr int64_t kWindow = 16;  // messages of one kind under way

// What is gathered from one part: its place in the result.
struct Block {
    int part = 0;
    Area to;
    const std::byte* from = nullptr;  // in one run; used where the part is this one
    int64_t first_piece = 0;          // set by Gather
};

// What one part gets of a reduction.
struct Target {
    int part = 0;
    Area from, to;             // of every member's operand; of the result
    std::byte* out = nullptr;  // used where the part is this one
    bool accumulate = false;
};

// Of one collective at a time.
struct Scratch {
    std::vector<std::byte> staging;
    std::vector<uint8_t> there;  // pieces that have arrived
    std::vector<Message> sends, receives;
    std::vector<Rows> sources;
    std::vector<const std::byte*> ins;
    std::vector<uint64_t> words;
    std::vector<std::byte> operands;
    std::vector<Block> blocks;    // by part
    std::vector<Target> targets;  // by part

    std::byte* stage(int64_t bytes) {
        if (static_cast<int64_t>(staging.size()) < bytes) staging.resize(static_cast<size_t>(bytes));
        return staging.data();
    }
};

// One process's side of a collective.
struct Link {
    Wire& wire;
    int tag;
    const mesh::GroupLayout& layout;
    int me;               // the part that this process is
    int64_t piece_bytes;  // of the longest message
    Scratch& scratch;

    Message send(int part, const void* data, int64_t bytes) const {
        return {wire, wire.send(layout.process_of[part], tag, data, bytes)};
    }
    Message receive(int part, void* data, int64_t bytes) const {
        return {wire, wire.receive(layout.process_of[part], tag, data, bytes)};
    }
};

}  // namespace lockstep::comm::processes
