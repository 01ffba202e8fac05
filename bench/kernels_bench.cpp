// Speed of the CPU kernels beside the floor of this machine, measured in the same process: the FMA roof for products and
// attention, the copy bandwidth for the rest. Counters: GFLOPs or GBs (useful ones only: attention counts visible work),
// and their share of the roof or of the copy. Args of every benchmark end with the number of threads.
//   kernels_bench --benchmark_filter=matmul --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
// The name of an instruction set (baseline, avx2, avx512) after the flags: its kernels.
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/quantized.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/bias.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float8_runs.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/roof.h"
#include "kernels/cpu/scaled_matmul.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::cpu {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_s() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

ThreadPool& pool_of(int threads) {
    static std::map<int, std::unique_ptr<ThreadPool>> pools;
    std::unique_ptr<ThreadPool>& pool = pools[threads];
    if (pool) return *pool;
    std::vector<int> cpus(threads);  // pinned: unpinned teams sometimes share one core for seconds
    std::iota(cpus.begin(), cpus.end(), 0);
    pool = std::make_unique<ThreadPool>(threads, cpus);
    return *pool;
}

// The best of several samples: other work on the machine only ever lowers one.
double best_rate(int samples, const auto& sample) {
    double best = 0;
    for (int i = 0; i < samples; ++i) {
        const double start = now_s();
        const double amount = sample();
        best = std::max(best, amount / (now_s() - start));
    }
    return best;
}

// By processor time, so that it is right although other work has a core for a while.
double roof_gflops(int threads, double (*flops)(int64_t) = fma_flops) {
    constexpr int64_t kRounds = 4'000'000;
    static std::map<std::pair<int, double (*)(int64_t)>, double> measured;
    double& roof = measured[{threads, flops}];
    if (roof != 0) return roof;
    const double start = cpu_s();
    for (int i = 0; i < 20; ++i) pool_of(threads).parallel([flops](int, int) { flops(kRounds); });
    return roof = 20.0 * threads * (threads * flops(1) * kRounds) / (cpu_s() - start) / 1e9;
}

struct Floats {
    explicit Floats(int64_t count) : data(static_cast<float*>(std::aligned_alloc(64, (count * 4 + 127) / 64 * 64)), &std::free) {
        for (int64_t i = 0; i < count; ++i) data.get()[i] = 0.001f * static_cast<float>(i % 1000) - 0.5f;
    }
    float* get() const { return data.get(); }
    std::unique_ptr<float, decltype(&std::free)> data;
};

// Bytes read plus bytes written, arrays far larger than the caches.
double copy_gbytes(int threads) {
    static std::map<int, double> measured;
    double& rate = measured[threads];
    if (rate != 0) return rate;
    constexpr int64_t kCount = 64 << 20;
    const Floats from(kCount), to(kCount);
    rate = best_rate(7,
                     [&] {
                         pool_of(threads).parallel([&](int thread, int parts) {
                             const Range mine = split(kCount, parts, thread, 16);
                             std::copy(from.get() + mine.begin, from.get() + mine.end, to.get() + mine.begin);
                         });
                         return kCount * 8.0;
                     }) /
           1e9;
    return rate;
}

// Three rates: of the mean iteration (the Time column), of the fastest, and by processor time, which on a shared machine
// leaves out the time when another process had the core (waiting workers count only while they spin).
template <typename Run>
void measure(benchmark::State& state, int threads, double amount, double floor, const char* unit, const char* share,
             const Run& run) {
    run();
    double best_s = 1e30;
    const double cpu_start_s = cpu_s();
    for (auto _ : state) {
        const double start = now_s();
        run();
        const double elapsed = now_s() - start;
        state.SetIterationTime(elapsed);
        best_s = std::min(best_s, elapsed);
    }
    const double cpu_rate = amount / 1e9 * static_cast<double>(state.iterations()) * threads / (cpu_s() - cpu_start_s);
    state.counters[unit] = amount / 1e9 / best_s;
    state.counters[share] = amount / 1e9 / best_s / floor;
    state.counters[std::string("cpu_") + unit] = cpu_rate;
    state.counters[std::string("cpu_") + share] = cpu_rate / floor;
}

void measure_flops(benchmark::State& state, int threads, double flops, const auto& run) {
    measure(state, threads, flops, roof_gflops(threads), "GFLOPs", "of_roof", run);
}

void measure_bytes(benchmark::State& state, int threads, double bytes, const auto& run) {
    measure(state, threads, bytes, copy_gbytes(threads), "GBs", "of_copy", run);
}

// In turns with something else, so that other work on a shared machine slows both. Counters: the rate of the fastest call, and
// the median of the processor time of what is `beside` as a share of that of a call, times `weight`.
void measure_in_turns(benchmark::State& state, double amount, const char* unit, const char* share, double weight, const auto& run,
                      const auto& beside) {
    run(), beside();
    std::vector<double> shares;
    double best_s = 1e30;
    for (auto _ : state) {
        const double start = now_s(), cpu_start = cpu_s();
        run();
        const double elapsed = now_s() - start, cpu_middle = cpu_s();
        beside();
        shares.push_back(weight * (cpu_s() - cpu_middle) / (cpu_middle - cpu_start));
        state.SetIterationTime(elapsed);
        best_s = std::min(best_s, elapsed);
    }
    const auto middle = shares.begin() + static_cast<int64_t>(shares.size() / 2);
    std::nth_element(shares.begin(), middle, shares.end());
    state.counters[unit] = amount / 1e9 / best_s;
    state.counters[share] = *middle;
}

void measure_bytes_beside_copy(benchmark::State& state, int threads, double bytes, const auto& run) {
    constexpr int64_t kCount = 16 << 20;
    static const Floats from(kCount), to(kCount);
    measure_in_turns(state, bytes, "GBs", "of_copy", bytes / (8.0 * kCount), run, [&] {
        pool_of(threads).parallel([&](int thread, int parts) {
            const Range mine = split(kCount, parts, thread, 16);
            std::copy(from.get() + mine.begin, from.get() + mine.end, to.get() + mine.begin);
        });
    });
}

enum Pass { kForward, kInputGradient, kWeightGradient };

const char* const kPassNames[] = {"fwd", "dX", "dW+="};

// Args: tokens, out features, in features, pass, kernel, threads. Weights are [out, in].
MatmulShape shape_of(const benchmark::State& state) {
    const int64_t tokens = state.range(0), out = state.range(1), in = state.range(2);
    if (state.range(3) == kInputGradient) return {tokens, in, out, Transpose::no, Transpose::no};
    if (state.range(3) == kWeightGradient) return {out, in, tokens, Transpose::yes, Transpose::no};
    return {tokens, out, in, Transpose::no, Transpose::yes};
}

void matmul(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(5));
    const MatmulShape shape = shape_of(state);
    const Matmul product(shape, threads, static_cast<MatmulKernel>(state.range(4)));
    const Floats a(shape.m * shape.k), b(shape.k * shape.n), c(shape.m * shape.n), workspace(product.workspace_bytes() / 4);
    measure_flops(state, threads, 2.0 * shape.m * shape.n * shape.k, [&] {
        product.run(pool_of(threads), a.get(), b.get(), c.get(), state.range(3) == kWeightGradient ? c.get() : nullptr,
                    workspace.get());
    });
    state.SetLabel(std::string(state.range(4) == 0 ? "packed " : "onednn ") + kPassNames[state.range(3)]);
}

// The same of bfloat16, with results in bfloat16, and in float32 for dW.
void matmul_bf16(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(5));
    const MatmulShape shape = shape_of(state);
    const auto kernel = static_cast<MatmulKernel>(state.range(4));
    if (kernel == MatmulKernel::amx && !has_amx()) return state.SkipWithError("this processor has no AMX");
    const Matmul product(shape, threads, kernel, Matmul::Result::narrow);
    const Floats a(shape.m * shape.k), b(shape.k * shape.n), c(shape.m * shape.n), workspace(product.workspace_bytes() / 4);
    const std::vector<Bf16> narrow_a(a.get(), a.get() + shape.m * shape.k), narrow_b(b.get(), b.get() + shape.k * shape.n);
    const Bf16 *const left = narrow_a.data(), *const right = narrow_b.data();
    measure(state, threads, 2.0 * shape.m * shape.n * shape.k, roof_gflops(threads, bf16_flops), "GFLOPs", "of_roof", [&] {
        if (state.range(3) == kWeightGradient) product.run(pool_of(threads), left, right, c.get(), c.get(), workspace.get());
        else product.run(pool_of(threads), left, right, reinterpret_cast<Bf16*>(c.get()), nullptr, workspace.get());
    });
    const char* const name = kernel == MatmulKernel::amx ? "amx " : kernel == MatmulKernel::bf16_dot ? "dot " : "packed ";
    state.SetLabel(std::string(name) + kPassNames[state.range(3)]);
}

// How scales lie: one for each operand; one for each row and column; of 32 steps of K, powers of two (MX); of 128 steps, a row of
// A or 128 columns of B (blockwise).
enum Scales { kOfOperands, kOfRows, kOfMx, kOfBlocks };

const char* const kScalesNames[] = {"operands ", "rows ", "mx ", "blocks "};

ScaledFactor scaled_factor(Scales scales, int64_t outer, int64_t k, int64_t rows_together) {
    ScaledFactor f{Dtype::F8E4M3, {}, {}, scales == kOfMx};
    const int64_t block = scales == kOfMx ? 32 : scales == kOfBlocks ? 128 : k;
    for (int64_t i = 0; i < outer; ++i) f.outer.push_back(scales == kOfOperands ? 0 : i / rows_together * (k / block));
    for (int64_t p = 0; p < k; ++p) f.inner.push_back(p / block);
    return f;
}

// Products of float8 in turns with those of bfloat16, or of float32 with the packed kernel: of_wide is what their rate is of the
// latter's. Args: as above, with scales before threads.
void matmul_float8(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(6));
    const MatmulShape shape = shape_of(state);
    const auto kernel = static_cast<MatmulKernel>(state.range(4));
    const auto scales = static_cast<Scales>(state.range(5));
    if (kernel == MatmulKernel::amx && !has_amx()) return state.SkipWithError("this processor has no AMX");
    const bool adds = state.range(3) == kWeightGradient, is_float = kernel == MatmulKernel::packed;
    const auto result = adds || is_float ? Matmul::Result::f32 : Matmul::Result::narrow;
    const int64_t together = scales == kOfBlocks && !adds ? 128 : 1;
    const ScaledMatmul product(shape, scaled_factor(scales, shape.m, shape.k, 1),
                               scaled_factor(scales, shape.n, shape.k, together), threads, kernel, result);
    const Matmul wide(shape, threads, kernel, result);
    const Floats a(shape.m * shape.k), b(shape.k * shape.n), c(shape.m * shape.n),
        workspace(std::max(product.workspace_bytes(), wide.workspace_bytes()) / 4);
    const std::vector<F8E4M3> left(a.get(), a.get() + shape.m * shape.k), right(b.get(), b.get() + shape.k * shape.n);
    const std::vector<Bf16> wide_left(left.begin(), left.end()), wide_right(right.begin(), right.end());
    const std::vector<float> of_a(static_cast<size_t>(shape.m * shape.k / 32 + 1), 0.5F),
        of_b(static_cast<size_t>(shape.n * shape.k / 32 + 1), 0.5F);
    ThreadPool& pool = pool_of(threads);
    const float* const before = adds ? c.get() : nullptr;
    auto* const narrow = reinterpret_cast<Bf16*>(c.get());
    const auto run = [&] {
        const auto to = [&](auto* out) {
            product.run(pool, left.data(), right.data(), of_a.data(), of_b.data(), out, before, workspace.get());
        };
        if (result == Matmul::Result::f32) to(c.get());
        else to(narrow);
    };
    const auto run_wide = [&] {
        if (is_float) wide.run(pool, a.get(), b.get(), c.get(), before, workspace.get());
        else if (adds) wide.run(pool, wide_left.data(), wide_right.data(), c.get(), before, workspace.get());
        else wide.run(pool, wide_left.data(), wide_right.data(), narrow, nullptr, workspace.get());
    };
    measure_in_turns(state, 2.0 * shape.m * shape.n * shape.k, "GFLOPs", "of_wide", 1, run, run_wide);
    const char* const name = kernel == MatmulKernel::amx ? "amx " : kernel == MatmulKernel::bf16_dot ? "dot " : "packed ";
    state.SetLabel(std::string(name) + kScalesNames[scales] + kPassNames[state.range(3)]);
}

void matmul_args(benchmark::internal::Benchmark* bench, const std::vector<MatmulKernel>& kernels) {
    const std::vector<std::vector<int64_t>> shapes{{1024, 512, 512},  {1024, 1408, 512}, {1024, 512, 1408}, {1024, 32000, 512},
                                                   {128, 32000, 512}, {1024, 768, 3072}, {1024, 3072, 768}};
    for (const std::vector<int64_t>& s : shapes)
        for (int pass : {kForward, kInputGradient, kWeightGradient})
            for (MatmulKernel kernel : kernels)
                for (int threads : {1, 2}) bench->Args({s[0], s[1], s[2], pass, static_cast<int>(kernel), threads});
}
BENCHMARK(matmul)->Apply([](auto* bench) {
                     matmul_args(bench, {MatmulKernel::packed, MatmulKernel::onednn});
                 }) -> UseManualTime() -> Unit(benchmark::kMillisecond);
BENCHMARK(matmul_float8)
    ->Apply([](auto* bench) {
        for (int64_t size : {512, 1024, 2048, 4096})
            for (int pass : {kForward, kInputGradient, kWeightGradient})
                for (MatmulKernel kernel : {MatmulKernel::packed, MatmulKernel::bf16_dot, MatmulKernel::amx})
                    for (int scales : {kOfOperands, kOfRows, kOfMx, kOfBlocks})
                        for (int threads : {1, 2})
                            bench->Args({size, size, size, pass, static_cast<int>(kernel), scales, threads});
    }) -> UseManualTime() -> Unit(benchmark::kMillisecond);
BENCHMARK(matmul_bf16)
    ->Apply([](auto* bench) {
        matmul_args(bench, {MatmulKernel::packed, MatmulKernel::bf16_dot, MatmulKernel::amx});
    }) -> UseManualTime() -> Unit(benchmark::kMillisecond);

// Of one way to make products.
struct AttentionKernels {
    AttentionKernel kernel;
    const Typed<Attention>& forward;
    const Typed<AttentionBackward>& backward;
    const Typed<AttentionBlock>& block;
    const Typed<AttentionBlockBackward>& block_backward;
};
enum class AttentionPass {
    forward,
    backward,
    block,
    block_backward
};  // blocks of a ring, with all keys; the forward one goes on

// Args: batch, seq, kv_heads, group, head_dim, pass, kernel, threads. Causal.
template <class T>
void attention_of(benchmark::State& state, const AttentionKernels& kernels, double roof) {
    const AttentionKernel kernel = kernels.kernel;
    AttentionShape s{state.range(0), state.range(1), state.range(1), state.range(2), state.range(3), state.range(4), 0.125f};
    const int threads = static_cast<int>(state.range(7));
    const int64_t nq = s.batch * s.seq * s.kv_heads * s.group * s.head_dim, nk = nq / s.group;
    const Floats values(nq), lse(nq / s.head_dim);
    const std::vector<T> q(values.get(), values.get() + nq), k(q.begin(), q.begin() + nk), v(k), d_out(q);
    std::vector<T> out(nq), d_q(nq), d_k(nk), d_v(nk);
    std::vector<int32_t> pos(s.batch * s.seq), doc(pos.size(), 0);
    for (size_t i = 0; i < pos.size(); ++i) pos[i] = static_cast<int32_t>(i % s.seq);
    const AttentionMask mask{pos.data(), pos.data(), doc.data(), doc.data()};
    const Floats workspace(
        std::max(attention_workspace_bytes(s, threads, kernel), attention_backward_workspace_bytes(s, threads, kernel)) / 4);
    const double visible = s.batch * s.kv_heads * s.group * 0.5 * s.seq * (s.seq + 1) * s.head_dim;
    ThreadPool& pool = pool_of(threads);
    Attention<T>* const run = kernels.forward;
    AttentionBackward<T>* const run_backward = kernels.backward;
    AttentionBlock<T>* const run_block = kernels.block;
    AttentionBlockBackward<T>* const run_block_backward = kernels.block_backward;
    const bool is_block = state.range(5) >= static_cast<int>(AttentionPass::block);
    const Floats wide_out(is_block ? nq : 0), wide_d_q(is_block ? nq : 0), wide_d_k(is_block ? nk : 0),
        wide_d_v(is_block ? nk : 0);
    const auto make_out = [&] { run(pool, s, mask, q.data(), k.data(), v.data(), out.data(), lse.get(), workspace.get()); };
    make_out();
    const auto timed = [&](double flops, const char* label, const auto& work) {
        measure(state, threads, flops * visible, roof, "GFLOPs", "of_roof", work);
        state.SetLabel(std::string(kernel == AttentionKernel::amx ? "amx " : "floats ") + label);
    };
    switch (static_cast<AttentionPass>(state.range(5))) {
        case AttentionPass::forward: return timed(4, "forward", make_out);
        case AttentionPass::backward:
            return timed(10, "backward", [&] {
                run_backward(pool, s, mask, q.data(), k.data(), v.data(), lse.get(), d_out.data(), d_q.data(), d_k.data(),
                             d_v.data(), workspace.get());
            });
        case AttentionPass::block:
            return timed(4, "block", [&] {
                run_block(pool, s, mask, RingBlock::later, q.data(), k.data(), v.data(), wide_out.get(), lse.get(),
                          workspace.get());
            });
        case AttentionPass::block_backward:
            return timed(10, "block backward", [&] {
                run_block_backward(pool, s, mask, RingBlock::first, q.data(), k.data(), v.data(), out.data(), lse.get(),
                                   d_out.data(), wide_d_q.get(), wide_d_k.get(), wide_d_v.get(), workspace.get());
            });
    }
}

const AttentionKernels& kernels_of_floats() {
    static const AttentionKernels all = {AttentionKernel::floats, attention, attention_backward, attention_block,
                                         attention_block_backward};
    return all;
}
void attention_causal(benchmark::State& state) {
    attention_of<float>(state, kernels_of_floats(), roof_gflops(static_cast<int>(state.range(7))));
}

void attention_causal_bf16(benchmark::State& state) {
    const double roof = roof_gflops(static_cast<int>(state.range(7)), bf16_flops);
    if (static_cast<AttentionKernel>(state.range(6)) == AttentionKernel::floats)
        return attention_of<Bf16>(state, kernels_of_floats(), roof);
    if (!has_amx()) return state.SkipWithError("this processor has no AMX");
    attention_of<Bf16>(
        state, {AttentionKernel::amx, attention_amx, attention_backward_amx, attention_block_amx, attention_block_backward_amx},
        roof);
}

void attention_args(benchmark::internal::Benchmark* bench, const std::vector<AttentionKernel>& kernels) {
    for (const std::vector<int64_t>& s : std::vector<std::vector<int64_t>>{{4, 256, 8, 1, 64},
                                                                           {2, 1024, 8, 1, 64},
                                                                           {1, 2048, 8, 1, 64},
                                                                           {1, 2048, 2, 4, 64},
                                                                           {1, 1024, 4, 1, 128},
                                                                           {1, 4096, 8, 1, 64}})
        for (const AttentionPass pass :
             {AttentionPass::forward, AttentionPass::backward, AttentionPass::block, AttentionPass::block_backward})
            for (AttentionKernel kernel : kernels)
                for (int threads : {1, 2})
                    bench->Args({s[0], s[1], s[2], s[3], s[4], static_cast<int>(pass), static_cast<int>(kernel), threads});
}
BENCHMARK(attention_causal)->Apply([](auto* bench) {
                               attention_args(bench, {AttentionKernel::floats});
                           }) -> UseManualTime() -> Unit(benchmark::kMillisecond);
BENCHMARK(attention_causal_bf16)
    ->Apply([](auto* bench) {
        attention_args(bench, {AttentionKernel::floats, AttentionKernel::amx});
    }) -> UseManualTime() -> Unit(benchmark::kMillisecond);

// The sizes of Llama 6 x 512, 1,024 tokens: hidden 512, ffn 1,408, 8 heads of 64. Arg: threads.
constexpr int64_t kTokens = 1024, kHidden = 512, kFfn = 1408, kVocab = 32000;

void rms_norm_forward(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kHidden), w(kHidden), y(kTokens * kHidden), rstd(kTokens);
    measure_bytes(state, threads, 8.0 * kTokens * kHidden,
                  [&] { rms_norm(pool_of(threads), kTokens, kHidden, x.get(), w.get(), 1e-5f, y.get(), rstd.get()); });
}
void rms_norm_gradient(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kHidden), w(kHidden), dy(kTokens * kHidden), dx(kTokens * kHidden), rstd(kTokens), dw(kHidden);
    const Floats workspace(rms_norm_backward_workspace_bytes(kHidden, threads) / 4);
    measure_bytes(state, threads, 12.0 * kTokens * kHidden, [&] {
        rms_norm_backward(pool_of(threads), kTokens, kHidden, dy.get(), x.get(), w.get(), rstd.get(), nullptr, dx.get(), dw.get(),
                          true, workspace.get());
    });
}
void add_residual(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats a(kTokens * kHidden), b(kTokens * kHidden), out(kTokens * kHidden);
    const float* inputs[] = {a.get(), b.get()};
    measure_bytes(state, threads, 12.0 * kTokens * kHidden,
                  [&] { add(pool_of(threads), kTokens * kHidden, inputs, 2, out.get()); });
}
void swiglu_forward(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats gate(kTokens * kFfn), up(kTokens * kFfn), y(kTokens * kFfn);
    measure_bytes(state, threads, 12.0 * kTokens * kFfn,
                  [&] { swiglu(pool_of(threads), kTokens * kFfn, gate.get(), up.get(), y.get()); });
}
void swiglu_gradient(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats dy(kTokens * kFfn), gate(kTokens * kFfn), up(kTokens * kFfn), d_gate(kTokens * kFfn), d_up(kTokens * kFfn);
    measure_bytes(state, threads, 20.0 * kTokens * kFfn, [&] {
        swiglu_backward(pool_of(threads), kTokens * kFfn, dy.get(), gate.get(), up.get(), d_gate.get(), d_up.get(),
                        static_cast<float*>(nullptr));
    });
}
void swiglu_packed_forward(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats both(kTokens * 2 * kFfn), y(kTokens * kFfn);
    measure_bytes(state, threads, 12.0 * kTokens * kFfn,
                  [&] { swiglu_packed(pool_of(threads), kTokens, kFfn, both.get(), y.get()); });
}
void swiglu_packed_gradient(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats dy(kTokens * kFfn), both(kTokens * 2 * kFfn), d_both(kTokens * 2 * kFfn);
    measure_bytes(state, threads, 20.0 * kTokens * kFfn, [&] {
        swiglu_packed_backward(pool_of(threads), kTokens, kFfn, dy.get(), both.get(), d_both.get(), static_cast<float*>(nullptr));
    });
}
// GPT-2's: hidden 768, ffn 3,072.
constexpr int64_t kGptHidden = 768, kGptFfn = 3072;
void layer_norm_forward(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kGptHidden), w(kGptHidden), b(kGptHidden), y(kTokens * kGptHidden), mean(kTokens), rstd(kTokens);
    measure_bytes(state, threads, 8.0 * kTokens * kGptHidden, [&] {
        layer_norm(pool_of(threads), kTokens, kGptHidden, x.get(), w.get(), b.get(), 1e-5f, y.get(), mean.get(), rstd.get());
    });
}
void layer_norm_gradient(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kGptHidden), w(kGptHidden), dy(kTokens * kGptHidden), dx(kTokens * kGptHidden), mean(kTokens),
        rstd(kTokens), dw(kGptHidden), db(kGptHidden);
    const Floats workspace(layer_norm_backward_workspace_bytes(kGptHidden, threads) / 4);
    measure_bytes(state, threads, 12.0 * kTokens * kGptHidden, [&] {
        layer_norm_backward(pool_of(threads), kTokens, kGptHidden, dy.get(), x.get(), w.get(), mean.get(), rstd.get(), nullptr,
                            dx.get(), dw.get(), true, db.get(), workspace.get());
    });
}
void bias_gelu_forward(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kGptFfn), b(kGptFfn), y(kTokens * kGptFfn);
    measure_bytes(state, threads, 8.0 * kTokens * kGptFfn,
                  [&] { bias_gelu(pool_of(threads), kTokens, kGptFfn, x.get(), b.get(), y.get()); });
}
void bias_gelu_gradient(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats dy(kTokens * kGptFfn), x(kTokens * kGptFfn), b(kGptFfn), dx(kTokens * kGptFfn), db(kGptFfn);
    const Floats workspace(row_sums_workspace_bytes(kGptFfn, threads) / 4);
    measure_bytes(state, threads, 12.0 * kTokens * kGptFfn, [&] {
        bias_gelu_backward(pool_of(threads), kTokens, kGptFfn, dy.get(), x.get(), b.get(), dx.get(), db.get(), true,
                           workspace.get());
    });
}
void bias_dropout_residual(benchmark::State& state) {  // second argument: with dropout
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kGptHidden), b(kGptHidden), residual(kTokens * kGptHidden), y(kTokens * kGptHidden);
    const std::vector<int32_t> noise(kTokens, 12345);
    const DropoutMask mask{state.range(1) ? noise.data() : nullptr, 1, 1u << 28, 0, 1.1f};
    measure_bytes(state, threads, 12.0 * kTokens * kGptHidden, [&] {
        bias_dropout_add(pool_of(threads), kTokens, kGptHidden, x.get(), b.get(), residual.get(), mask, y.get());
    });
}
void sum_of_rows(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kGptHidden), sum(kGptHidden);
    measure_bytes(state, threads, 4.0 * kTokens * kGptHidden,
                  [&] { sum_rows(pool_of(threads), kTokens, kGptHidden, x.get(), sum.get(), true); });
}
void rope_heads(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats x(kTokens * kHidden), y(kTokens * kHidden);
    std::vector<int32_t> pos(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) pos[i] = static_cast<int32_t>(i);
    const std::vector<double> frequencies(32, 0.37);
    measure_bytes(state, threads, 8.0 * kTokens * kHidden, [&] {
        pool_of(threads).parallel([&](int thread, int parts) {
            rope(split(kTokens, parts, thread), 8, 64, x.get(), pos.data(), frequencies.data(), 1.0f, y.get());
        });
    });
}
void qkv_both_ways(benchmark::State& state) {  // 4 key heads with 2 queries each
    const int threads = static_cast<int>(state.range(0));
    const QkvShape shape{kTokens, 8, 4, 64};
    const Floats qkv(kTokens * 16 * 64), q(kTokens * 8 * 64), k(kTokens * 4 * 64), v(kTokens * 4 * 64);
    std::vector<int32_t> pos(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) pos[i] = static_cast<int32_t>(i);
    const std::vector<double> frequencies(32, 0.37);
    measure_bytes(state, threads, 16.0 * kTokens * 16 * 64, [&] {
        pool_of(threads).parallel([&](int thread, int parts) {
            const Range tokens = split(kTokens, parts, thread);
            split_qkv(tokens, shape, qkv.get(), pos.data(), frequencies.data(), 1.0f, q.get(), k.get(), v.get());
            join_qkv(tokens, shape, q.get(), k.get(), v.get(), pos.data(), frequencies.data(), -1.0f, qkv.get());
        });
    });
}
void embedding_both(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    const Floats table(kVocab * kHidden), out(kTokens * kHidden), gradient(kVocab * kHidden);
    std::vector<int32_t> ids(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) ids[i] = static_cast<int32_t>(i * 7919 % kVocab);
    measure_bytes(state, threads, 20.0 * kTokens * kHidden, [&] {
        embedding(pool_of(threads), kTokens, kHidden, ids.data(), 0, kVocab, table.get(), out.get());
        embedding_backward(pool_of(threads), kTokens, kHidden, ids.data(), 0, kVocab, out.get(), gradient.get(), true);
    });
}
void loss_all(benchmark::State& state) {  // logits read three times and written once
    const int threads = static_cast<int>(state.range(0));
    const Floats logits(kTokens * kVocab), m(kTokens), z(kTokens), t(kTokens), d_logits(kTokens * kVocab);
    const std::vector<int32_t> targets(kTokens, 17);
    ThreadPool& pool = pool_of(threads);
    measure_bytes(state, threads, 16.0 * kTokens * kVocab, [&] {
        row_max(pool, kTokens, kVocab, logits.get(), m.get());
        cross_entropy(pool, kTokens, kVocab, logits.get(), m.get(), targets.data(), 0, z.get(), t.get());
        cross_entropy_backward(pool, kTokens, kVocab, z.get(), t.get(), logits.get(), m.get(), targets.data(), 0, d_logits.get());
    });
}
void adamw_step(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const Floats g(kCount), w(kCount), m(kCount), v(kCount);
    std::fill(v.get(), v.get() + kCount, 0.01f);
    const AdamStep step{0.9, 0.95, 1e-8, 0.1};
    std::array<double, StepControl::kValues> control;
    StepControl{1e-6, 1, true, 0.1, 0.05, 0, 0}.write(control.data());
    float* const narrow = nullptr;
    measure_bytes(state, threads, 28.0 * kCount,
                  [&] { adamw(pool_of(threads), kCount, step, control.data(), g.get(), w.get(), m.get(), v.get(), narrow); });
}
void adamw_of_narrow_moments_step(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const Floats g(kCount), w(kCount);
    std::vector<Bf16> m(kCount, Bf16(0.01f)), v(kCount, Bf16(0.01f));
    const AdamStep step{0.9, 0.95, 1e-8, 0.1};
    std::array<double, StepControl::kValues> control;
    StepControl{1e-6, 1, true, 0.1, 0.05, 0, 0}.write(control.data());
    ElementDraws draws = {};
    draws.count = 1, draws.of[0] = {0, 0, kCount, 1, kCount, kCount, 1};
    const double steps = 1;
    float* const narrow = nullptr;
    measure_bytes(state, threads, 20.0 * kCount, [&] {
        adamw_of_narrow_moments(pool_of(threads), kCount, step, control.data(), {&draws, &steps, 0}, g.get(), w.get(), m.data(),
                                v.data(), narrow);
    });
}
void sum_of_squares_all(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const Floats x(kCount), workspace(sum_of_squares_workspace_bytes(kCount) / 4);
    measure_bytes(state, threads, 4.0 * kCount,
                  [&] { benchmark::DoNotOptimize(sum_of_squares(pool_of(threads), kCount, x.get(), workspace.get())); });
}
void quantize_floats(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const Floats x(kCount);
    const Quantization how{state.range(1), least_exponent(Dtype::F32), state.range(2) != 0};
    std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(kCount, how.bits)));
    measure_bytes(state, threads, 4.0 * kCount + static_cast<double>(q.size()),
                  [&] { quantize(pool_of(threads), kCount, how, x.get(), q.data()); });
}
// n values of the normal distribution.
template <int64_t n>
const std::vector<Bf16>& normal_values() {
    static const std::vector<Bf16> values = [] {
        std::mt19937 rng(1);
        std::normal_distribution<float> normal;
        std::vector<Bf16> out(static_cast<size_t>(n));
        for (size_t i = 0; i < out.size(); ++i) out[i] = i < 1 << 20 ? Bf16(normal(rng)) : out[i - (1 << 20)];
        return out;
    }();
    return values;
}
// Of bfloat16, with one scale.
void floats_to_float8(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const std::vector<Bf16>& x = normal_values<kCount>();
    std::vector<F8E4M3> q(kCount);
    measure_bytes_beside_copy(state, threads, 3.0 * kCount, [&] {
        pool_of(threads).parallel([&](int thread, int all) {
            const Range mine = split(kCount, all, thread, 16);
            run_to_float8(mine.count(), x.data() + mine.begin, 100.0F, q.data() + mine.begin);
        });
    });
}
// The two passes of blocks of n elements: the largest size, then the codes. Of 32 the scales are powers of two, of 128 they are not.
template <class S>
void scales_of(int64_t n, const uint32_t* most, S* s, float* by) {
    if constexpr (std::is_same_v<S, E8M0>) block_scales(n, most, F8E4M3::kLargest, BlockRounding::rceil, s, by);
    else float_scales(n, most, F8E4M3::kLargest, s, by);
}
template <class S>
void floats_to_blocks_of(benchmark::State& state, int64_t block) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const int64_t together = 2048 / block;
    const std::vector<Bf16>& x = normal_values<kCount>();
    std::vector<F8E4M3> q(kCount);
    std::vector<S> s(static_cast<size_t>(kCount / block));
    measure_bytes_beside_copy(state, threads, (3.0 + sizeof(S) / static_cast<double>(block)) * kCount, [&] {
        pool_of(threads).parallel([&](int thread, int all) {
            const Range mine = split(kCount / block, all, thread, together);
            for (int64_t b = mine.begin; b < mine.end; b += together) {
                uint32_t most[64];
                float by[64];
                largest_of_blocks(together, block, x.data() + b * block, most);
                scales_of(together, most, s.data() + b, by);
                blocks_to_float8(together, block, x.data() + b * block, by, q.data() + b * block);
            }
        });
    });
}
void floats_to_blocks(benchmark::State& state) { floats_to_blocks_of<E8M0>(state, 32); }
void floats_to_blocks_of_128(benchmark::State& state) { floats_to_blocks_of<float>(state, 128); }

// Blocks of rows of `row` elements, 4,096 columns at a time.
template <class S>
void columns_to_blocks_of(benchmark::State& state, int64_t block, int64_t row) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20, kTogether = 4096;
    const std::vector<Bf16>& x = normal_values<kCount>();
    std::vector<F8E4M3> q(kCount);
    std::vector<S> s(static_cast<size_t>(kCount / block));
    measure_bytes_beside_copy(state, threads, (3.0 + sizeof(S) / static_cast<double>(block)) * kCount, [&] {
        pool_of(threads).parallel([&](int thread, int all) {
            const Range mine = split(kCount / block, all, thread, kTogether);
            for (int64_t i = mine.begin; i < mine.end; i += kTogether) {
                const int64_t column = i % row, first = i / row * row * block + column;
                const int64_t next = column + kTogether < row ? kTogether : block * row - column;
                uint32_t most[kTogether] = {};
                float by[kTogether];
                largest_of_columns(block, kTogether, row, x.data() + first, most);
                scales_of(kTogether, most, s.data() + i, by);
                columns_to_float8(block, kTogether, row, next, x.data() + first, by, q.data() + first);
            }
        });
    });
}
void columns_to_blocks(benchmark::State& state) { columns_to_blocks_of<E8M0>(state, 32, 4096); }
void columns_to_blocks_of_wide_rows(benchmark::State& state) { columns_to_blocks_of<E8M0>(state, 32, 16384); }
void columns_to_blocks_of_128(benchmark::State& state) { columns_to_blocks_of<float>(state, 128, 4096); }
void largest_size_of_all(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 32 << 20;
    const std::vector<Bf16>& x = normal_values<kCount>();
    measure_bytes_beside_copy(state, threads, 2.0 * kCount, [&] {
        pool_of(threads).parallel([&](int thread, int all) {
            const Range mine = split(kCount, all, thread, 16);
            benchmark::DoNotOptimize(largest_size(mine.count(), x.data() + mine.begin));
        });
    });
}
void dequantize_sum_of_four(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    constexpr int64_t kCount = 16 << 20, kRows = 4;
    const Floats x(kCount);
    const int64_t bits = state.range(1);
    const std::vector<int8_t> q(static_cast<size_t>(kRows * quantized_bytes(kCount, bits)), 3);
    measure_bytes(state, threads, 4.0 * kCount + static_cast<double>(q.size()),
                  [&] { dequantize(pool_of(threads), kRows, kCount, bits, q.data(), x.get()); });
}
void fork_join(benchmark::State& state) {
    const int threads = static_cast<int>(state.range(0));
    for (auto _ : state) pool_of(threads).parallel([](int, int) {});
}

void one_and_two_threads(benchmark::internal::Benchmark* bench) {
    bench->Arg(1)->Arg(2)->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(rms_norm_forward)->Apply(one_and_two_threads);
BENCHMARK(rms_norm_gradient)->Apply(one_and_two_threads);
BENCHMARK(add_residual)->Apply(one_and_two_threads);
BENCHMARK(swiglu_forward)->Apply(one_and_two_threads);
BENCHMARK(swiglu_gradient)->Apply(one_and_two_threads);
BENCHMARK(swiglu_packed_forward)->Apply(one_and_two_threads);
BENCHMARK(swiglu_packed_gradient)->Apply(one_and_two_threads);
BENCHMARK(layer_norm_forward)->Apply(one_and_two_threads);
BENCHMARK(layer_norm_gradient)->Apply(one_and_two_threads);
BENCHMARK(bias_gelu_forward)->Apply(one_and_two_threads);
BENCHMARK(bias_gelu_gradient)->Apply(one_and_two_threads);
BENCHMARK(bias_dropout_residual)
    ->Args({1, 0})
    ->Args({1, 1})
    ->Args({2, 0})
    ->Args({2, 1})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(sum_of_rows)->Apply(one_and_two_threads);
BENCHMARK(rope_heads)->Apply(one_and_two_threads);
BENCHMARK(qkv_both_ways)->Apply(one_and_two_threads);
BENCHMARK(embedding_both)->Apply(one_and_two_threads);
BENCHMARK(loss_all)->Apply(one_and_two_threads);
BENCHMARK(adamw_step)->Apply(one_and_two_threads);
BENCHMARK(adamw_of_narrow_moments_step)->Apply(one_and_two_threads);
BENCHMARK(sum_of_squares_all)->Apply(one_and_two_threads);
BENCHMARK(quantize_floats)
    ->ArgNames({"threads", "bits", "stochastic"})
    ->ArgsProduct({{1, 2}, {8, 4}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(dequantize_sum_of_four)
    ->ArgNames({"threads", "bits"})
    ->ArgsProduct({{1, 2}, {8, 4}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(floats_to_float8)->Apply(one_and_two_threads);
BENCHMARK(floats_to_blocks)->Apply(one_and_two_threads);
BENCHMARK(floats_to_blocks_of_128)->Apply(one_and_two_threads);
BENCHMARK(columns_to_blocks)->Apply(one_and_two_threads);
BENCHMARK(columns_to_blocks_of_wide_rows)->Apply(one_and_two_threads);
BENCHMARK(columns_to_blocks_of_128)->Apply(one_and_two_threads);
BENCHMARK(largest_size_of_all)->Apply(one_and_two_threads);
BENCHMARK(fork_join)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace lockstep::kernels::cpu

int main(int argc, char** argv) {
    using namespace lockstep::kernels::cpu;
    benchmark::Initialize(&argc, argv);
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (argc > 1 && std::string(argv[1]) == name(isa)) use_isa(isa);
    }
    std::printf("instruction set %s; roofs %.1f / %.1f GFLOP/s, of bfloat16 %.1f / %.1f, copy %.1f / %.1f GB/s (1 / 2 threads)\n",
                name(isa()), roof_gflops(1), roof_gflops(2), roof_gflops(1, bf16_flops), roof_gflops(2, bf16_flops),
                copy_gbytes(1), copy_gbytes(2));
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
