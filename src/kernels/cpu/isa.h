// Which of the compiled instruction sets this process uses. Decided by the processor alone, never by timing.
#pragma once

namespace lockstep::kernels::cpu {

enum class Isa { baseline, avx2, avx512 };

Isa detect_isa();
const char* name(Isa isa);

}  // namespace lockstep::kernels::cpu
