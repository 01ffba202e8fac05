// A GPU as the device of ranks: one of this process's, which its ranks share. Queues are streams; communication's has priority.
// Memory of Place::Host is pinned. An error of the vendor's runtime is an InternalError that names the call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"

namespace lockstep::device::gpu {

// What there is; or why there is none, in words.
struct Found {
    int count = 0;
    std::string why_none;
    int64_t memory_bytes = 0, cache_bytes = 0;  // the cache: of all its processors
    int compute_capability = 0;                 // 90: Hopper
    std::string name;                           // "NVIDIA H100 80GB HBM3"
    std::string description;  // "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors, 79.1 GiB), driver 13.0, runtime 13.0"
};
Found find();
// From now on the calling thread's; one that find() has found.
void use(int index);
// Of the calling thread's GPU, by all programs: arenas, and what libraries and the driver keep.
int64_t used_bytes();
// Multiply-adds twice a second, without sparsity, from the vendor's data sheets; 0: the name is not known.
// dtype: "f32", "bf16".
double peak_flops_per_s(std::string_view name, std::string_view dtype);

// One that find() has found. `add_one`: starts a kernel that adds one to a counter of pinned memory.
using AddOne = void (*)(void* stream, uint64_t* counter);
std::unique_ptr<Machine> machine(AddOne add_one, int index = 0);

}  // namespace lockstep::device::gpu
