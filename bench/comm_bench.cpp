// The local transport at 32 MiB a rank, beside memcpy by as many threads in the same run: bus_GB/s is the bandwidth that a
// ring would need a link for ((n-1)/n of the larger tensor; twice that for all_reduce), traffic_GB/s what memory moves
// (bytes read and written by all ranks). memcpy's traffic is the limit to compare with.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "comm/local.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kBytes = 32 << 20;  // of the larger tensor of each rank
constexpr int64_t kCount = kBytes / 4;

std::unique_ptr<LocalTransport> world;
std::vector<std::unique_ptr<Communicator>> ranks;
std::vector<GroupId> groups;

void make_world(const benchmark::State& state) {
    world = std::make_unique<LocalTransport>(state.threads());
    std::vector<int> all;
    for (int rank = 0; rank < state.threads(); ++rank) all.push_back(rank);
    ranks.clear();
    groups.clear();
    for (int rank : all) {
        ranks.push_back(world->communicator(rank));
        groups.push_back(ranks.back()->add_group(all));
    }
}

// Repeats the body and reports wall time by rank 0's clock: the library divides its own times by the number of threads.
// bus_bytes and traffic_bytes: of one iteration, traffic by all ranks together.
template <class Body>
void measure(benchmark::State& state, double bus_bytes, double traffic_bytes, Body body) {
    const auto began = std::chrono::steady_clock::now();
    for (auto _ : state) body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (state.thread_index() != 0) return;
    const double wall_s = took.count() / static_cast<double>(state.iterations());
    state.counters["wall_ms"] = wall_s * 1e3;
    state.counters["bus_GB/s"] = bus_bytes / wall_s / 1e9;
    state.counters["traffic_GB/s"] = traffic_bytes / wall_s / 1e9;
}

void run(benchmark::State& state, double bus_bytes, double traffic_bytes, std::span<const Request> requests) {
    Communicator& comm = *ranks[static_cast<size_t>(state.thread_index())];
    const GroupId group = groups[static_cast<size_t>(state.thread_index())];
    measure(state, bus_bytes, traffic_bytes, [&] { comm.run(0, group, requests); });
}

void bench_all_gather(benchmark::State& state) {
    const int n = state.threads();
    std::vector<float> in(kCount / n, 1), out(kCount);
    const Request request = all_gather(Dtype::F32, in.data(), out.data(), 1, kCount / n, 1);
    run(state, 1.0 * kBytes * (n - 1) / n, 2.0 * kBytes * n, {&request, 1});
}

void bench_reduce_scatter(benchmark::State& state) {
    const int n = state.threads();
    std::vector<float> in(kCount, 1), out(kCount / n);
    const Request request = reduce_scatter(Dtype::F32, in.data(), out.data(), 1, kCount / n, 1);
    run(state, 1.0 * kBytes * (n - 1) / n, 1.0 * kBytes * (n + 1), {&request, 1});
}

void bench_all_reduce(benchmark::State& state) {
    const int n = state.threads();
    std::vector<float> in(kCount, 1), out(kCount);
    const Request request = all_reduce(Dtype::F32, in.data(), out.data(), kCount);
    run(state, 2.0 * kBytes * (n - 1) / n, 2.0 * kBytes * n, {&request, 1});
}

void bench_all_reduce_in_place(benchmark::State& state) {
    const int n = state.threads();
    std::vector<float> data(kCount, 0);
    const Request request = all_reduce(Dtype::F32, data.data(), data.data(), kCount);
    run(state, 2.0 * kBytes * (n - 1) / n, 2.0 * kBytes * n, {&request, 1});
}

void bench_barrier(benchmark::State& state) { run(state, 0, 0, {}); }

void bench_memcpy(benchmark::State& state) {
    std::vector<float> from(kCount, 1), to(kCount);
    measure(state, 0, 2.0 * kBytes * state.threads(), [&] {
        std::memcpy(to.data(), from.data(), kBytes);
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
    });
}

void setting(benchmark::internal::Benchmark* bench) {
    bench->Setup(make_world)->Threads(2)->Threads(4)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(bench_memcpy)->Apply(setting);
BENCHMARK(bench_all_gather)->Apply(setting);
BENCHMARK(bench_reduce_scatter)->Apply(setting);
BENCHMARK(bench_all_reduce)->Apply(setting);
BENCHMARK(bench_all_reduce_in_place)->Apply(setting);
BENCHMARK(bench_barrier)->Apply(setting);

}  // namespace
}  // namespace lockstep::comm
