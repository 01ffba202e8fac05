// The device of a GPU on fakes of CUDA's runtime.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "comm/gpu/moves.h"
#include "device/gpu/gpu.h"
#include "kernels/gpu/any_type.h"
#include "kernels/gpu/elementwise.h"
#include "tests/comm/queued_job.h"
#include "tests/fakes/cuda/fake.h"

namespace lockstep::device::gpu {
namespace {

namespace fake = fakes::cuda;

TEST(GpuDevice, WhatIsForgottenShows) {
    const auto doubled = [](bool records, bool waits) {
        std::set<float> results;
        for (uint64_t seed = 0; seed < 30; ++seed) {
            fake::reset(seed);
            const std::unique_ptr<Machine> m = machine(kernels::gpu::add_one);
            const std::unique_ptr<Device> d = m->device({});
            Queue &loads = d->queue(QueueName::Loads), &compute = d->queue(QueueName::Compute);
            void* const number = d->allocate(sizeof(float), Place::Device);
            const Event loaded = d->new_event(), computed = d->new_event();
            d->write(loads, number, sizeof(float), [](char* to) {
                const float given = 21;
                std::memcpy(to, &given, sizeof given);
            });
            if (records) d->record(loads, loaded);
            if (waits) d->wait(compute, loaded);
            d->launch(compute, {&number, 1}, [&](void* const* at) {
                auto* const x = static_cast<float*>(at[0]);
                kernels::gpu::scale(compute.handle(), 1, x, 2.0f, x);
            });
            d->record(compute, computed);
            d->wait(loads, computed);
            d->read(loads, number, sizeof(float), [&](const char* from) {
                float got = 0;
                std::memcpy(&got, from, sizeof got);
                results.insert(got);
            });
        }
        return results;
    };
    EXPECT_EQ(doubled(true, true), (std::set<float>{42}));
    EXPECT_EQ(doubled(true, false), (std::set<float>{21, 42}));
    EXPECT_EQ(doubled(false, true), (std::set<float>{21, 42}));
}

TEST(GpuDevice, MemoryIsZeroAndHostCodeReadsWhatItHasWritten) {
    fake::reset(1);
    const std::unique_ptr<Machine> m = machine(kernels::gpu::add_one);
    const std::unique_ptr<Device> d = m->device({});
    Queue& q = d->queue(QueueName::Loads);
    constexpr int64_t kBytes = kAccessBytes / 2 + 100;  // staging wraps
    char* const memory = d->allocate(7 * kBytes, Place::Device);
    for (int i = 0; i < 6; ++i)
        d->write(q, memory + i * kBytes, kBytes, [&](char* to) { std::memset(to, i + 1, static_cast<size_t>(kBytes)); });
    for (int i = 0; i < 7; ++i) {
        d->read(q, memory + i * kBytes, kBytes, [&](const char* from) {
            EXPECT_EQ(from[0], i == 6 ? 0 : i + 1);
            EXPECT_EQ(from[kBytes - 1], i == 6 ? 0 : i + 1);
        });
    }
}

TEST(GpuDevice, CodeRunsInTheOrderOfItsQueueAndEventsHaveTimes) {
    fake::reset(1);
    const std::unique_ptr<Machine> m = machine(kernels::gpu::add_one);
    const std::unique_ptr<Device> d = m->device({});
    Queue& q = d->queue(QueueName::Compute);
    std::string order;
    const Event first = d->new_event(true), second = d->new_event(true);
    d->record(q, first);
    d->call(q, [&] { order += "a", std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    d->call(q, [&] { order += "b"; });
    d->record(q, second);
    d->finish(q);
    EXPECT_EQ(order, "ab");
    EXPECT_TRUE(d->done(second));
    EXPECT_GE(d->time_s(second) - d->time_s(first), 2e-3);
    const double now_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    EXPECT_NEAR(d->time_s(second), now_s, 5);
}

TEST(GpuDevice, SaysWhatThereIs) {
    fake::reset(1);
    EXPECT_EQ(find().description, "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors, 80.0 GiB), driver 13.0, runtime 13.0");
    EXPECT_EQ(find().memory_bytes, int64_t{80} << 30);
    EXPECT_EQ(peak_flops_per_s(find().name, "bf16"), 989e12);
    EXPECT_EQ(peak_flops_per_s("NVIDIA H100 PCIe", "bf16"), 756e12);
    EXPECT_EQ(peak_flops_per_s("NVIDIA A100-SXM4-40GB", "f32"), 19.5e12);
    EXPECT_EQ(peak_flops_per_s("another GPU", "bf16"), 0);
    fake::set_driver(std::nullopt);
    EXPECT_EQ(find().why_none, "this machine has no driver for GPUs");
    fake::reset(1);
    fake::set_driver(12020);
    EXPECT_EQ(find().why_none, "the driver is for 12.2, and this build needs 13.0 or later");
    fake::reset(1);
    fake::set_device_count(0);
    EXPECT_EQ(find().why_none, "the driver finds no GPU");
}

TEST(GpuDevice, MemoryThatIsRefusedIsNone) {
    fake::reset(1);
    fake::set_memory_limit(1 << 20);
    const std::unique_ptr<Machine> m = machine(kernels::gpu::add_one);
    const std::unique_ptr<Device> d = m->device({});
    EXPECT_EQ(d->allocate(2 << 20, Place::Device), nullptr);
    const int64_t before = used_bytes();
    EXPECT_NE(d->allocate(1 << 19, Place::Device), nullptr);
    EXPECT_EQ(used_bytes() - before, 1 << 19);
}

}  // namespace
}  // namespace lockstep::device::gpu

namespace lockstep::comm::test {
namespace {

std::unique_ptr<device::Machine> next_gpu() {
    static std::atomic<uint64_t> seed = 0;
    fakes::cuda::reset(++seed);
    return device::gpu::machine(kernels::gpu::add_one);
}

const auto jobs = ::testing::Values(queued_job("Gpu", 1, next_gpu, gpu::moves()), queued_job("Gpu", 3, next_gpu, gpu::moves()));
INSTANTIATE_TEST_SUITE_P(Gpu, Comm, jobs, name_of_job);
INSTANTIATE_TEST_SUITE_P(Gpu, CommBits, jobs, name_of_job);

}  // namespace
}  // namespace lockstep::comm::test
