// What a run says of the machine that it runs on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::telemetry {

struct Machine {
    std::string host, processor, system;  // "node3", "AMD EPYC 7763 64-Core Processor", "Linux 6.1.0 x86_64"
    int64_t cores = 0;                    // that this process may use
    int64_t memory_bytes = 0;
    std::string gpu;  // by which device one is seen; empty: none is
};
Machine this_machine();

// The file by which a driver shows that the machine has a GPU: /proc/driver/nvidia, /dev/kfd, /dev/dxg. Empty: none.
std::string gpu_device(const std::filesystem::path& root = "/");

}  // namespace lockstep::telemetry
