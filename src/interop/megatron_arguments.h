// What Megatron-LM's arguments mean that no reader of megatron_*.cpp takes: nothing here, nothing that has a counterpart, or
// another computation. The names are those of Megatron-LM (core_r0.8 to core_r0.16) and of Megatron-DeepSpeed.
#pragma once

#include <string>
#include <vector>

namespace lockstep::interop {

enum class Fate {
    NoEffect,  // it does nothing to what a recipe says
    Unmapped,  // it does something that no key says, and the computation stays the same
    LeftOut,   // it asks for another computation, and a plan may leave it out, loudly
    Refused,   // it asks for another computation, unless its value is one that leaves it off
};

struct KnownArgument {
    Fate fate;
    std::string why;
    std::vector<std::string> off;  // values with which it does nothing; "" stands for no value
};

// Null: Megatron-LM has no such argument.
const KnownArgument* find_megatron_argument(const std::string& name);
// Every name of the table.
std::vector<std::string> megatron_argument_names();

}  // namespace lockstep::interop
