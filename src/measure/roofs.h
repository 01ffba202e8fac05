// What this machine can do at most, measured now: multiply-adds and copies by 1 to n threads, each on its own processor.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::measure {

struct Roofs {
    // [i]: i + 1 threads together.
    std::map<std::string, std::vector<double>> flops_per_s;  // "f32", "bf16": multiply-adds in registers (kernels/cpu/roof.h)
    std::vector<double> copy_bytes_per_s;                    // read plus written, arrays far larger than the caches
};

// About 0.3 s a thread count. The best of several samples: other work on the machine only ever lowers one.
Roofs roofs(const std::vector<int>& cpus);
// Only the first kind, of "f32" or "bf16", by a thread on each processor together. Some hundredths of a second.
double flops_roof(const std::vector<int>& cpus, std::string_view dtype);

}  // namespace lockstep::measure
