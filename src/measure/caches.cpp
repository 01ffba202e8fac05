#include "measure/caches.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"

namespace lockstep::measure {
namespace {

constexpr int64_t kMostBytes = 256 << 20, kPiece = 64 << 10;

int64_t reported(int name, int64_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}

// Processors that share the last cache of this one: the bits of a mask in hexadecimal digits.
int sharing_last_cache(int cpu) {
    int bits = 0;
    for (int index = 0; index < 8; ++index) {
        std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) +
                         "/shared_cpu_map");
        std::string mask;
        if (!(in >> mask)) break;
        bits = 0;
        for (char c : mask) {
            if (c != ',') bits += std::popcount(static_cast<unsigned>(std::stoi(std::string(1, c), nullptr, 16)));
        }
    }
    return bits;
}

// Each core copies one half of its bytes to the other, all at the same time.
class Copies {
public:
    Copies(const std::vector<int>& cpus, int64_t most_bytes) : pool_(static_cast<int>(cpus.size()), cpus) {
        memory_.resize(cpus.size());
        pool_.parallel([&](int thread, int) {
            memory_[static_cast<size_t>(thread)].reset(new char[static_cast<size_t>(most_bytes)]);
            std::memset(memory_[static_cast<size_t>(thread)].get(), 1, static_cast<size_t>(most_bytes));
        });
    }

    // Seconds per byte, read or written, when each core copies within `bytes` bytes.
    double time_s(int64_t bytes) {
        const int64_t half = std::max(bytes / 2 / kPiece, int64_t{1}) * kPiece;
        const int64_t rounds = std::max<int64_t>(1, (32 << 20) / half);
        const auto copy = [&](int thread, int) {
            char* from = memory_[static_cast<size_t>(thread)].get();
            for (int64_t round = 0; round < rounds; ++round) {
                for (int64_t at = 0; at < half; at += kPiece) std::memcpy(from + half + at, from + at, kPiece);
            }
        };
        return 1 / best_rate(5, static_cast<double>(2 * half * rounds), [&] { pool_.parallel(copy); });
    }

private:
    ThreadPool pool_;
    std::vector<std::unique_ptr<char[]>> memory_;
};

std::vector<ops::CacheLevel> measured(const std::vector<int>& cpus, double memory_bytes) {
    const auto cores = static_cast<int>(cpus.size());
    const int64_t near = reported(_SC_LEVEL2_CACHE_SIZE, 1 << 20), far = reported(_SC_LEVEL3_CACHE_SIZE, 0);
    const int sharing = std::clamp(sharing_last_cache(cpus[0]), 1, cores);
    const auto room = static_cast<int64_t>(memory_bytes > 0 ? memory_bytes / (8.0 * cores) : kMostBytes);
    const int64_t most = std::max(std::min({kMostBytes, room, std::max(4 * far, 64 * near)}), 16 * near);
    Copies copies(cpus, most);
    const double near_s = copies.time_s(near / 2), far_s = copies.time_s(4 * near), memory_s = copies.time_s(most);
    ops::CacheLevel own{static_cast<double>(near), 1, 1};
    if (far <= near || memory_s <= near_s) return {own};
    int64_t held = 4 * near;  // by the shared cache, of each core
    while (2 * held < most && copies.time_s(2 * held) < (far_s + memory_s) / 2) held *= 2;
    own.price_beyond = std::clamp((far_s - near_s) / (memory_s - near_s), 0.0, 1.0);
    return {own, {static_cast<double>(held * sharing), sharing, 1}};
}

}  // namespace

std::vector<ops::CacheLevel> caches(const std::vector<int>& cpus, double memory_bytes) {
    std::vector<ops::CacheLevel> out;
    on_cpu(cpus[0], [&] { out = measured(cpus, memory_bytes); });
    return out;
}

}  // namespace lockstep::measure
