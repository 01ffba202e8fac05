#include "telemetry/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>

#include "base/processors.h"
#include "telemetry/metrics.h"

namespace lockstep::telemetry {
namespace {

std::string processor_name(const char* otherwise) {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        const size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return otherwise;
}

}  // namespace

std::string gpu_device(const std::filesystem::path& root) {
    for (const char* device : {"proc/driver/nvidia/version", "dev/nvidia0", "dev/kfd", "dev/dxg"}) {
        std::error_code ignored;
        if (std::filesystem::exists(root / device, ignored)) return std::string("/") + device;
    }
    return "";
}

Machine this_machine() {
    utsname name{};
    uname(&name);
    return {name.nodename,
            processor_name(name.machine),
            fmt::format("{} {} {}", name.sysname, name.release, name.machine),
            static_cast<int64_t>(usable_cpus().size()),
            machine_memory_bytes(),
            gpu_device()};
}

}  // namespace lockstep::telemetry
