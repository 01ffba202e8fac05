// Which of the compiled instruction sets this process uses. Decided by the processor alone, never by timing.
#pragma once

#include <string>

namespace lockstep::kernels::cpu {

enum class Isa { baseline, avx2, avx512 };

Isa detect_isa();
const char* name(Isa isa);
// All that kernels of this process may use: "avx512, avx512_bf16, amx". Processes whose texts differ may compute other bits.
std::string instruction_sets();

}  // namespace lockstep::kernels::cpu
