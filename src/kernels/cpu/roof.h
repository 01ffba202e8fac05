// The multiply-add roof of this machine: what products are held against.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cpu {

// Runs `rounds` rounds of independent float32 multiply-adds that never leave the registers, on the calling thread, with the
// instruction set that the kernels use. Returns the FLOPs done.
double fma_flops(int64_t rounds);

// The same of bfloat16, summed in float32, by the instruction that its products would take: AMX, the dot product, or fma_flops.
double bf16_flops(int64_t rounds);

}  // namespace lockstep::kernels::cpu
