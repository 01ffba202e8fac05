// One address, size or name of a finished program changed at random, as a wrong planner would do it. Many are harmless. The same
// seed gives the same damage.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "ir/program.h"

namespace lockstep::check_test {

enum class MemoryDamage {
    TemporaryElsewhere,     // a temporary's offset: over another, near the scratch's ends, between elements
    TemporariesShare,       // two temporaries at one offset
    ViewOfAnother,          // a view, or what is none, becomes a view of a tensor of its size
    NoView,                 // a view loses what it views
    ViewsOffset,            // of a view itself, which nobody asks
    WorkspaceElsewhere,     // over a temporary, near the scratch's ends, off its alignment
    WorkspaceBytes,         // more or fewer
    NoScratch,              // of a call, or of all calls of a routine
    ScratchBytes,           // of a routine: more, fewer, none, negative
    OtherScratch,           // of a call: another buffer
    BufferElsewhere,        // any buffer: over another one, near its arena's ends
    BufferOfAnotherEntry,   // a transient buffer over a state or input
    BufferBytes,            // more, fewer
    BindingOffset,          // of a call's port
    BindingBuffer,          // of a call's port: another of at least its size
    PortBytes,              // more, fewer
    PortTensor,             // offset of a port's tensor, or two tensors' offsets exchanged
    ArenaBytes,             // more, fewer
    HostArenaBytes,         // the same of the host's memory
    BufferOfTheOtherPlace,  // a copy in the device's memory, or another buffer in the host's
    MayNotOverwrite,        // a kernel that works in place is one that does not
    PaddingRanges,          // what zero_padding clears
    // Changes of the text: the program means something else, and memory must be right for that.
    SwapOps,
    OtherOperand,  // of the same type and dims
    OtherResult
};
constexpr int kMemoryDamages = 25;
std::string_view name_of(MemoryDamage damage);
// Does the program mean something else afterwards?
constexpr bool changes_text(MemoryDamage damage) { return damage >= MemoryDamage::SwapOps; }

// What was done; empty where the program has no place for this kind of damage.
std::string apply(ir::Program& program, MemoryDamage damage, std::mt19937_64& random);

}  // namespace lockstep::check_test
