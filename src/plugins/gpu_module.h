// What runs programs on a GPU, in a shared library of its own (plugins/cuda), which is opened when a recipe asks for it:
// Lockstep itself links no library of a vendor, and starts on machines without a driver.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/moves.h"
#include "comm/process_group.h"
#include "device/device.h"
#include "kernels/cuda/planned_products.h"
#include "kernels/kernel.h"

namespace lockstep::plugins {

struct GpuModule {
    std::vector<const std::vector<kernels::Registered>*> kernels;      // of several for one op the first is taken
    const comm::Moves* moves = nullptr;                                // among ranks that share the GPU
    std::unique_ptr<device::Machine> (*machine)(int index) = nullptr;  // of the GPU of that number, modulo how many there are
    // Of one rank each; by_peers: for programs that say so of collectives, where why_no_peers is empty.
    std::unique_ptr<comm::Transport> (*across_processes)(comm::ProcessGroup& group, int ranks, bool by_peers) = nullptr;
    // Why the processes of a host cannot write to each other's GPUs, the same on all processes; empty: they can. All call it at the
    // same time, each for the GPU that it will have. It is tried.
    std::string (*why_no_peers)(comm::ProcessGroup& group, int index) = nullptr;
    // Sums by the transport's library are taken outside of switches from now on, unless the user's variable says otherwise.
    void (*avoid_sums_in_switches)() = nullptr;
    // Of the GPU; where there is none, why_none says so in words.
    std::string name, description, why_none;
    int compute_capability = 0;                                    // 90: Hopper
    int64_t memory_bytes = 0, cache_bytes = 0;                     // the cache: of all its processors
    int64_t (*used_bytes)() = nullptr;                             // of that memory now, by all programs
    double (*peak_flops_per_s)(std::string_view dtype) = nullptr;  // by the data sheet; 0: not known
    // Of the library of products: its version, and the algorithms that it names for an op of it, the best one by its own
    // judgement first, in no more workspace and no more than `most`.
    int64_t products_version = 0;
    std::vector<kernels::cuda::ProductAlgorithm> (*product_algorithms)(const kernels::KernelContext& context,
                                                                       int64_t workspace_bytes, int most) = nullptr;
};

// A module exports two functions; the first of them is asked first: what it was built from must be what this was built from.
inline constexpr const char *kBuildSymbol = "lockstep_module_build", *kModuleSymbol = "lockstep_module";
using BuildFunction = const char* (*)();
using ModuleFunction = const GpuModule* (*)();
// "0.1.0, 9a1af66b2c, GCC 12.2.0"
std::string build_text();

// The file of the module, of the variable. Before the first call of what follows; without it the module is looked for next to
// the program, and in the folder of libraries next to that.
inline constexpr const char* kModuleVariable = "LOCKSTEP_GPU_MODULE";
void use_gpu_module(const std::string& file);

// Opened at the first call, with its kernels known to make_kernel() from then on. UserError runtime.no_gpu: no module, one of
// another build, or no GPU.
const GpuModule& gpu_module();
// Of the catalog that programs for it are compiled with.
ops::KernelCatalog gpu_catalog();

// For --version: what gpu_module() would find, in a line.
std::string gpu_text();

}  // namespace lockstep::plugins
