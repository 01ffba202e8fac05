// The emulator notices what a GPU leaves undefined: kernels with a bug each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/gpu/dialect.h"

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

}  // namespace
}  // namespace lockstep::testing
