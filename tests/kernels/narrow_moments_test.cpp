// AdamW and Adam with moments in bfloat16: the kernels of each instruction set and of a GPU (on the emulator) against double
// precision written here once more, in shards that begin and end within runs of elements.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/gpu/emulator.h"
#include "kernels/gpu/update.h"
#include "kernels/step_control.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels {
namespace {

constexpr double kSteps = 4;
constexpr uint64_t kLayer = 3;

// Three parameters: one that began before the shard, one in short rows and groups of them, one whose index passes 2^32.
ElementDraws three_parameters() {
    ElementDraws d = {};
    d.count = 3, d.seed = 7;
    d.of[0] = {-100, 40, 300, 1, 300, 300, 11};
    d.of[1] = {203, 5, 7, 5, 21, 170, 22};
    d.of[2] = {650, (int64_t{1} << 32) - 30, 90, 1, 90, 1000, 33};
    return d;
}
// Of element i, by the words of ops/element_places.h.
uint32_t bits_of(const ElementDraws& d, int64_t i) {
    const DrawnParameter& p = i < 203 ? d.of[0] : i < 650 ? d.of[1] : d.of[2];
    const int64_t j = i - p.begin, index = p.first + j / p.run / p.rows * p.far + j / p.run % p.rows * p.stride + j % p.run;
    const uint64_t row = rounding_row(rounding_noise(d.seed, kSteps), p.stream, kLayer, index);
    return dropout_bits(row, static_cast<uint32_t>(index));
}

struct Moments {
    std::vector<float> w;
    std::vector<Bf16> m, v, narrow;
};

// run(step, control, rounding, n, g, moments): by the kernel. Returns what it leaves.
template <class Run>
Moments expect_as_in_double(bool coupled, const Run& run) {
    constexpr int64_t kElements = 1003;
    std::mt19937 random(5);
    const std::vector<float> g = cpu::random_floats(random, kElements), w = cpu::random_floats(random, kElements);
    Moments x{w, {}, {}, std::vector<Bf16>(kElements)};
    for (int64_t i = 0; i < kElements; ++i) {
        x.m.emplace_back(static_cast<float>(random() % 1000) * 1e-3f - 0.5f);
        x.v.emplace_back(static_cast<float>(random() % 1000 + 1) * 1e-3f);
    }
    const Moments before = x;
    const ElementDraws draws = three_parameters();
    AdamStep step;
    step.beta1 = 0.9, step.beta2 = 0.999, step.eps = 1e-8;
    (coupled ? step.l2 = 0.1f : step.weight_decay = 0.1);
    StepControl now{1e-3, 0.5, true, 0.3, 0.004, 0, 0};
    std::array<double, StepControl::kValues> control;
    now.write(control.data());
    const MomentRounding rounding = {&draws, &kSteps, kLayer};
    run(step, control.data(), rounding, kElements, g.data(), x);
    int64_t flipped = 0;
    for (int64_t i = 0; i < kElements; ++i) {
        const auto k = static_cast<size_t>(i);
        const double old = static_cast<double>(w[k]), grad = 0.5 * static_cast<double>(g[k]) + (coupled ? 0.1 * old : 0),
                     first = 0.9 * static_cast<double>(before.m[k]) + 0.1 * grad,
                     second = 0.999 * static_cast<double>(before.v[k]) + 0.001 * grad * grad,
                     direction = first / 0.3 / (std::sqrt(second / 0.004) + 1e-8);
        EXPECT_NEAR(x.w[k], old * (coupled ? 1 : 1 - 1e-4) - 1e-3 * direction, 1e-6) << i;
        EXPECT_EQ(x.narrow[k].bits, Bf16(x.w[k]).bits) << i;
        // A float's rounding may pass the point where the draw decides.
        flipped += x.m[k].bits != Bf16(first).bits;
        flipped += static_cast<double>(x.v[k]) != rounded_to_bf16(second, bits_of(draws, i));
        EXPECT_NEAR(x.m[k], first, std::abs(first) * 0x1p-8) << i;
        EXPECT_NEAR(x.v[k], second, second * 0x1p-7) << i;
    }
    EXPECT_LE(flipped, 2);
    const Moments after = x;
    now.commit = false;
    now.write(control.data());
    run(step, control.data(), rounding, kElements, g.data(), x);
    EXPECT_EQ(after.w, x.w);
    EXPECT_EQ(std::memcmp(after.m.data(), x.m.data(), sizeof(Bf16) * kElements), 0);
    EXPECT_EQ(std::memcmp(after.v.data(), x.v.data(), sizeof(Bf16) * kElements), 0);
    return after;
}

void expect_same_squares(const Moments& a, const Moments& b) {
    size_t differ = 0;
    for (size_t i = 0; i < a.v.size(); ++i) differ += a.v[i].bits != b.v[i].bits;
    EXPECT_LE(differ, 2u);
}

TEST(NarrowMoments, OfEachInstructionSetAndOfAGpuAreThoseOfDouble) {
    for (const bool coupled : {false, true}) {
        const Moments on_gpu = expect_as_in_double(coupled, [](const AdamStep& step, const double* control,
                                                               const MomentRounding& how, int64_t n, const float* g, Moments& x) {
            gpu::adamw_of_narrow_moments(nullptr, n, step, control, how, g, x.w.data(), x.m.data(), x.v.data(), x.narrow.data());
        });
        for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
            if (!cpu::has_isa(isa)) continue;
            cpu::use_isa(isa);
            std::vector<Moments> of_threads;
            for (const int threads : {1, 2, 3}) {
                ThreadPool pool(threads);
                of_threads.push_back(
                    expect_as_in_double(coupled, [&](const AdamStep& step, const double* control, const MomentRounding& how,
                                                     int64_t n, const float* g, Moments& x) {
                        cpu::adamw_of_narrow_moments(pool, n, step, control, how, g, x.w.data(), x.m.data(), x.v.data(),
                                                     x.narrow.data());
                    }));
                EXPECT_EQ(of_threads[0].w, of_threads.back().w);
                EXPECT_EQ(std::memcmp(of_threads[0].v.data(), of_threads.back().v.data(), 2 * of_threads[0].v.size()), 0);
            }
            expect_same_squares(of_threads[0], on_gpu);
        }
        cpu::use_isa(cpu::detect_isa());
    }
}

}  // namespace
}  // namespace lockstep::kernels
