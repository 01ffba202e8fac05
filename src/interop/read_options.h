// What is given besides a file that is read.
#pragma once

#include <string>
#include <vector>

#include "interop/shell.h"

namespace lockstep::interop {

struct ReadOptions {
    ScriptInputs script;                 // of a script: its arguments, and variables of its environment
    std::string deepspeed_config;        // of a script: the file in the place of --deepspeed_config's; empty: that one
    std::vector<std::string> leave_out;  // of a script: arguments that are left out, without "--"
};

}  // namespace lockstep::interop
