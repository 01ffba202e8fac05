#include "measure/roofs.h"

#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "kernels/cpu/roof.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"

namespace lockstep::measure {
namespace {

Roofs measured(const std::vector<int>& cpus) {
    constexpr int64_t kRounds = 2'000'000, kBytes = 128 << 20;
    const std::unique_ptr<char[]> from(new char[kBytes]), to(new char[kBytes]);
    std::memset(from.get(), 1, kBytes), std::memset(to.get(), 1, kBytes);
    Roofs out;
    for (int threads = 1; threads <= static_cast<int>(cpus.size()); ++threads) {
        ThreadPool pool(threads, cpus);
        const auto flops_per_s = [&](double (*run)(int64_t rounds)) {
            return best_rate(7, run(kRounds) * threads, [&] { pool.parallel([&](int, int) { run(kRounds); }); });
        };
        out.flops_per_s["f32"].push_back(flops_per_s(kernels::cpu::fma_flops));
        out.flops_per_s["bf16"].push_back(flops_per_s(kernels::cpu::bf16_flops));
        out.copy_bytes_per_s.push_back(best_rate(5, 2.0 * kBytes, [&] {
            pool.parallel([&](int thread, int parts) {
                const Range mine = split(kBytes, parts, thread, 4096);
                std::memcpy(to.get() + mine.begin, from.get() + mine.begin, static_cast<size_t>(mine.count()));
            });
        }));
    }
    return out;
}

}  // namespace

Roofs roofs(const std::vector<int>& cpus) {
    Roofs out;
    on_cpu(cpus[0], [&] { out = measured(cpus); });
    return out;
}

}  // namespace lockstep::measure
