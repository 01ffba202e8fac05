#include "measure/roofs.h"

#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "kernels/cpu/roof.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"

namespace lockstep::measure {
namespace {

double flops_per_s(ThreadPool& pool, int threads, double (*run)(int64_t rounds)) {
    constexpr int64_t kRounds = 2'000'000;
    return best_rate(7, run(kRounds) * threads, [&] { pool.parallel([&](int, int) { run(kRounds); }); });
}

Roofs measured(const std::vector<int>& cpus) {
    constexpr int64_t kBytes = 128 << 20;
    const std::unique_ptr<char[]> from(new char[kBytes]), to(new char[kBytes]);
    std::memset(from.get(), 1, kBytes), std::memset(to.get(), 1, kBytes);
    Roofs out;
    for (int threads = 1; threads <= static_cast<int>(cpus.size()); ++threads) {
        ThreadPool pool(threads, cpus);
        out.flops_per_s["f32"].push_back(flops_per_s(pool, threads, kernels::cpu::fma_flops));
        out.flops_per_s["bf16"].push_back(flops_per_s(pool, threads, kernels::cpu::bf16_flops));
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

double flops_roof(const std::vector<int>& cpus, std::string_view dtype) {
    double out = 0;
    on_cpu(cpus[0], [&] {
        ThreadPool pool(static_cast<int>(cpus.size()), cpus);
        out = flops_per_s(pool, static_cast<int>(cpus.size()),
                          dtype == "bf16" ? kernels::cpu::bf16_flops : kernels::cpu::fma_flops);
    });
    return out;
}

}  // namespace lockstep::measure
