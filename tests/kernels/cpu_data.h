// What tests of the CPU's kernels draw and give to them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace lockstep::kernels::cpu {

constexpr float kGuard = 12345.0f;  // lies between rows, where no kernel writes

// Between low and high, both of them possible.
inline int64_t pick(std::mt19937& rng, int64_t low, int64_t high) { return low + static_cast<int64_t>(rng() % (high - low + 1)); }

// From the normal distribution with mean 0 and the standard deviation `spread`.
inline std::vector<float> random_floats(std::mt19937& rng, int64_t n, float spread = 1) {
    std::normal_distribution<float> value(0, spread);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = value(rng);
    return v;
}

struct AlignedBytes {  // NaN wherever a kernel reads what it has not written
    explicit AlignedBytes(int64_t bytes) : data(std::aligned_alloc(64, (bytes + 127) / 64 * 64), &std::free) {
        std::memset(data.get(), 0xff, static_cast<size_t>(bytes));
    }
    std::unique_ptr<void, decltype(&std::free)> data;
};

}  // namespace lockstep::kernels::cpu
