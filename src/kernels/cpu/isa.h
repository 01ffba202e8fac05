// Which of the compiled instruction sets this process uses: the best one of the processor, or the one that was asked for. Never
// decided by timing.
#pragma once

#include <string>

#include "base/instruction_sets.h"

namespace lockstep::kernels::cpu {

using lockstep::Isa;

Isa processor_isa();  // the best one of this processor
// The one that is used by default: the processor's, or the only one of a build with LOCKSTEP_ISA=native.
Isa detect_isa();
bool has_isa(Isa wanted);  // this processor and this build
Isa isa();                 // the one in use
// Changes the one in use, for all kernels of this process: to be called before a job's threads start. Requires has_isa(wanted).
void use_isa(Isa wanted);
const char* name(Isa isa);
// All that kernels of this process may use: "avx512, avx512_bf16, amx". Processes whose texts differ may compute other bits.
std::string instruction_sets();
// The same as a value, with what this build adds to them: of this processor, no more than isa().
InstructionSets instruction_sets_here();

}  // namespace lockstep::kernels::cpu
