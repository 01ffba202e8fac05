// The emulator notices what a GPU leaves undefined: kernels with a bug each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/gpu/mma.h"

namespace lockstep::testing {
namespace {

using namespace kernels::gpu;
using emulator::Order;

constexpr int kThreads = 128;

enum class Bug { None, NoBarrierAfterWrite, NoBarrierBeforeWrite };

// out[row] = the sums of two rows of kThreads numbers, one after the other through the same shared memory.
template <Bug bug>
__global__ void two_sums(const float* x, float* out) {
    __shared__ float parts[kThreads / kLanes];
    for (int row = 0; row < 2; ++row) {
        float v = x[row * kThreads + static_cast<int>(thread())];
        for (int mask = kLanes / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
        if (bug != Bug::NoBarrierBeforeWrite) block_barrier();
        if (thread() % kLanes == 0) parts[thread() / kLanes] = v;
        if (bug != Bug::NoBarrierAfterWrite) block_barrier();
        float sum = 0;
        for (float part : parts) sum += part;
        if (thread() == kThreads - 1) out[row] = sum;
        if (bug == Bug::NoBarrierBeforeWrite && row == 0) out[2] = sum;
        out[3 + row * kThreads + static_cast<int>(thread())] = sum;
    }
}

template <Bug bug>
std::vector<float> sums_in(Order order) {
    std::vector<float> x(2 * kThreads), out(3 + 2 * kThreads);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) + (i < kThreads ? 0.0f : 100.0f);
    emulator::set_order(order, 3);
    launch(two_sums<bug>, {1, kThreads}, nullptr, x.data(), out.data());
    return out;
}
template <Bug bug>
bool differs_between_orders() {
    const std::vector<float> first = sums_in<bug>(Order::Ascending);
    return first != sums_in<bug>(Order::Descending) || first != sums_in<bug>(Order::Shuffled);
}

TEST(GpuEmulator, AnOrderOfWarpsChangesNothingInACorrectKernel) {
    EXPECT_FALSE(differs_between_orders<Bug::None>());
    const std::vector<float> sums = sums_in<Bug::None>(Order::Shuffled);
    float want[2] = {};
    for (int i = 0; i < 2 * kThreads; ++i) want[i / kThreads] += static_cast<float>(i % 7) + (i < kThreads ? 0.0f : 100.0f);
    EXPECT_EQ(sums[0], want[0]);
    EXPECT_EQ(sums[1], want[1]);
}

TEST(GpuEmulator, AMissingBarrierShows) {
    EXPECT_TRUE(differs_between_orders<Bug::NoBarrierAfterWrite>());
    EXPECT_TRUE(differs_between_orders<Bug::NoBarrierBeforeWrite>());
}

template <class... P, class... A>
std::string refusal(void (*kernel)(P...), const Grid& grid, A... arguments) {
    emulator::set_order(Order::Ascending);
    try {
        launch(kernel, grid, nullptr, arguments...);
    } catch (const std::runtime_error& e) {
        return e.what();
    }
    return "none";
}

__global__ void barriers_of_two_branches(float* out) {
    if (thread() < kLanes) block_barrier();
    else block_barrier();
    out[thread()] = 1;
}
template <bool first>
__global__ void half_a_warp_leaves(float* out) {
    if ((thread() % kLanes < kLanes / 2) == first) return;
    out[thread()] = shuffle_xor(1.0f, 1);
}
__global__ void one_waits_for_the_block_and_others_for_the_warp(float* out) {
    if (thread() % kLanes == 0) block_barrier();
    else out[thread()] = shuffle_xor(1.0f, 1);
}
__global__ void reads_what_nobody_wrote(float* out) {
    SHARED_MEMORY(float, shared);
    if (thread() != 5) shared[thread()] = 1;
    block_barrier();
    out[thread()] = shared[thread()];
}
__global__ void writes_beyond(float*) {
    SHARED_MEMORY(float, shared);
    shared[thread()] = 1;
}
__global__ void does_nothing(float*) {}

TEST(GpuEmulator, RefusesWhatAGpuLeavesUndefined) {
    std::vector<float> out(kThreads);
    const auto expect = [](const std::string& got, const std::string& want) {
        EXPECT_NE(got.find(want), std::string::npos) << got;
        EXPECT_NE(got.find("line "), std::string::npos) << got;
    };
    expect(refusal(barriers_of_two_branches, {1, kThreads}, out.data()), "some threads of a block are at ");
    expect(refusal(half_a_warp_leaves<true>, {1, kThreads}, out.data()), "only 16 lanes of a warp are left at ");
    expect(refusal(half_a_warp_leaves<false>, {1, kThreads}, out.data()), "wait for each other: thread 0 at ");
    expect(refusal(one_waits_for_the_block_and_others_for_the_warp, {1, kThreads}, out.data()),
           "wait for each other: thread 0 at ");
}

TEST(GpuEmulator, RefusesWhatNoGpuTakes) {
    float* const none = nullptr;
    EXPECT_NE(refusal(does_nothing, {1, 2048}, none).find("a block of 2048 threads"), std::string::npos);
    EXPECT_NE(refusal(does_nothing, {1, 32, 1 << 20}, none).find("bytes of shared memory"), std::string::npos);
    EXPECT_NE(refusal(does_nothing, {0, 32}, none).find("a grid of 0"), std::string::npos);
    EXPECT_EQ(refusal(does_nothing, {1, 1024}, none), "none");
}

__global__ void copies_eight(const float* x, float* out) { store(out, load<8>(x)); }

TEST(GpuEmulator, RefusesAccessesThatAreNotAligned) {
    alignas(16) float x[12] = {}, out[12] = {};
    EXPECT_EQ(refusal(copies_eight, {1, 1}, x, out), "none");
    EXPECT_NE(refusal(copies_eight, {1, 1}, x + 1, out).find("reads or writes 16 bytes"), std::string::npos);
    EXPECT_NE(refusal(copies_eight, {1, 1}, x, out + 2).find("reads or writes 16 bytes"), std::string::npos);
}

TEST(GpuEmulator, RefusesWritesBeyondSharedMemory) {
    float* const none = nullptr;
    EXPECT_EQ(refusal(writes_beyond, {1, 32, 32 * sizeof(float)}, none), "none");
    EXPECT_NE(refusal(writes_beyond, {1, 32, 31 * sizeof(float)}, none).find("beyond its 124 bytes"), std::string::npos);
}

TEST(GpuEmulator, SharedMemoryStartsAsNan) {
    std::vector<float> out(kThreads);
    EXPECT_EQ(refusal(reads_what_nobody_wrote, {1, kThreads, kThreads * sizeof(float)}, out.data()), "none");
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i == 5) << i;
}

enum class Awaits { BeforeReading, AllButTheLast, AfterReading, Never };

// Each thread reads what its neighbour has copied.
template <Awaits awaits>
__global__ void copies_two(const float* x, float* out) {
    SHARED_MEMORY(float, shared);
    for (int i = 0; i < 2; ++i) {
        start_copy<4>(shared + i * kThreads + thread(), x + i * kThreads + thread(), i == 0 || thread() != 3);
        end_group_of_copies();
    }
    if (awaits == Awaits::BeforeReading) await_copies<0>();
    if (awaits == Awaits::AllButTheLast) await_copies<1>();
    block_barrier();
    for (unsigned i = 0; i < 2; ++i) out[i * kThreads + thread()] = shared[i * kThreads + (thread() + 1) % kThreads];
    block_barrier();
    if (awaits != Awaits::Never) await_copies<0>();
}
template <Awaits awaits>
std::string refusal_of_copies(std::vector<float>& out) {
    std::vector<float> x(2 * kThreads, 2.0f);
    out.resize(x.size());
    return refusal(copies_two<awaits>, {1, kThreads, 2 * kThreads * sizeof(float)}, x.data(), out.data());
}

TEST(GpuEmulator, CopiesHappenWhenTheyAreAwaited) {
    std::vector<float> out;
    EXPECT_EQ(refusal_of_copies<Awaits::BeforeReading>(out), "none");
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i == kThreads + 2 ? 0 : 2) << i;
    EXPECT_EQ(refusal_of_copies<Awaits::AllButTheLast>(out), "none");
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= kThreads) << i;
    EXPECT_EQ(refusal_of_copies<Awaits::AfterReading>(out), "none");
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_NE(refusal_of_copies<Awaits::Never>(out).find("ends with copies that it did not await"), std::string::npos);
}

// Elements of operands where PTX says that a lane has them; sums [16, 8] = left [16, 16] right [16, 8].
template <class T>
__global__ void multiplies(const T* left, const T* right, float* sums) {
    const unsigned g = thread() / 4, t = thread() % 4;
    uint32_t a[4], b[2];
    const auto word = [](T low, T high) { return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16; };
    for (unsigned i = 0; i < 4; ++i) {
        const T* const from = left + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * t;
        a[i] = word(from[0], from[1]);
    }
    for (unsigned i = 0; i < 2; ++i) b[i] = word(right[(i * 8 + 2 * t) * 8 + g], right[(i * 8 + 2 * t + 1) * 8 + g]);
    float sum[4] = {100, 100, 100, 100};
    mma_16x8x16<T>(sum, a, b[0], b[1]);
    for (unsigned i = 0; i < 4; ++i) sums[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
// Four matrices [8, 8] that lie behind each other, as the words of lanes.
template <bool transposed>
__global__ void loads_matrices(const Bf16* x, uint32_t* words) {
    uint32_t own[4];
    load_matrices<transposed>(own, x + thread() * 8);
    for (unsigned i = 0; i < 4; ++i) words[i * kLanes + thread()] = own[i];
}

template <class T>
void expect_product() {
    std::vector<T> left, right;
    for (int i = 0; i < 256; ++i) left.push_back(T(static_cast<float>(i * 7 % 19 - 9)));
    for (int i = 0; i < 128; ++i) right.push_back(T(static_cast<float>(i * 5 % 23 - 11)));
    std::vector<float> sums(128);
    EXPECT_EQ(refusal(multiplies<T>, {1, kLanes}, left.data(), right.data(), sums.data()), "none");
    for (size_t row = 0; row < 16; ++row) {
        for (size_t column = 0; column < 8; ++column) {
            float want = 100;
            for (size_t k = 0; k < 16; ++k)
                want += static_cast<float>(left[row * 16 + k]) * static_cast<float>(right[k * 8 + column]);
            EXPECT_EQ(sums[row * 8 + column], want) << row << ", " << column;
        }
    }
}

TEST(GpuEmulator, ProductsOfWarpsHaveTheirLayout) {
    expect_product<Bf16>();
    expect_product<F16>();
    alignas(16) Bf16 x[256 + 8];
    for (size_t i = 0; i < 256; ++i) x[i].bits = static_cast<uint16_t>(i);
    for (const bool transposed : {false, true}) {
        std::vector<uint32_t> words(128);
        EXPECT_EQ(refusal(transposed ? loads_matrices<true> : loads_matrices<false>, {1, kLanes}, +x, words.data()), "none");
        for (uint32_t i = 0; i < 4; ++i) {
            for (uint32_t lane = 0; lane < 32; ++lane) {
                const uint32_t row = lane / 4, column = lane % 4 * 2;
                const uint32_t first = i * 64 + (transposed ? column * 8 + row : row * 8 + column);
                EXPECT_EQ(words[i * 32 + lane], first | (first + (transposed ? 8 : 1)) << 16) << i << ", " << lane;
            }
        }
    }
    std::vector<uint32_t> words(128);
    EXPECT_NE(refusal(loads_matrices<false>, {1, kLanes}, x + 4, words.data()).find("reads or writes 16 bytes"),
              std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
