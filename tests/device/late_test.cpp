// The device that runs late: what forgets to copy, to wait or to record is found out.
#include "device/late.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace lockstep::device {
namespace {

struct Left {
    bool wait = false, record = false, copy_in = false, copy_out = false;
};

// The device doubles a number that the host gives it, and hands it back: what the host reads, seed by seed.
std::set<int> doubled(const Left& out) {
    std::set<int> results;
    for (uint64_t seed = 0; seed < 100; ++seed) {
        LateMachine machine(seed);
        const std::unique_ptr<Device> d = machine.device({});
        Queue &loads = d->queue(QueueName::Loads), &compute = d->queue(QueueName::Compute);
        void* number = d->allocate(sizeof(int), Place::Device);
        char* host = d->allocate(2 * sizeof(int), Place::Host);
        const Event loaded = d->new_event();
        const int given = 21;
        std::memcpy(host, &given, sizeof given);
        if (!out.copy_in) d->copy(loads, number, host, sizeof given);
        if (!out.record) d->record(loads, loaded);
        if (!out.wait) d->wait(compute, loaded);
        d->launch(compute, {&number, 1}, [](void* const* at) { *static_cast<int*>(at[0]) *= 2; });
        if (!out.copy_out) d->copy(compute, host + sizeof(int), number, sizeof(int));
        d->finish(compute);
        d->finish(loads);
        int got = 0;
        std::memcpy(&got, host + sizeof(int), sizeof got);
        results.insert(got);
    }
    return results;
}

TEST(DeviceLate, WhatIsForgottenShows) {
    EXPECT_EQ(doubled({}), (std::set<int>{42}));
    EXPECT_EQ(doubled({.wait = true}), (std::set<int>{0, 21, 42}));
    EXPECT_EQ(doubled({.record = true}), (std::set<int>{0, 21, 42}));
    EXPECT_EQ(doubled({.copy_in = true}), (std::set<int>{0}));
    EXPECT_EQ(doubled({.copy_out = true}), (std::set<int>{0}));
}

TEST(DeviceLate, HostCodeThatFollowsAnAddressDies) {
    LateMachine machine(1);
    const std::unique_ptr<Device> d = machine.device({});
    char* memory = d->allocate(1000, Place::Device);
    EXPECT_DEATH(
        {
            memory[10] = 1;
            std::exit(0);
        },
        "");
    EXPECT_DEATH(std::exit(memory[999] == 0 ? 0 : 1), "");
}

TEST(DeviceLate, HostCodeReadsWhatItHasWritten) {
    LateMachine machine(3);
    const std::unique_ptr<Device> d = machine.device({});
    Queue& q = d->queue(QueueName::Loads);
    constexpr int64_t kBytes = kAccessBytes / 2 + 100;  // staging wraps
    char* memory = d->allocate(6 * kBytes, Place::Device);
    for (int i = 0; i < 6; ++i) d->write(q, memory + i * kBytes, kBytes, [&](char* to) { std::memset(to, i + 1, kBytes); });
    for (int i = 0; i < 6; ++i) {
        d->read(q, memory + i * kBytes, kBytes, [&](const char* from) {
            EXPECT_EQ(from[0], i + 1);
            EXPECT_EQ(from[kBytes - 1], i + 1);
        });
    }
}

TEST(DeviceLate, OtherMemoryAndWhatLeavesAnAllocationIsRefused) {
    LateMachine machine(1);
    const std::unique_ptr<Device> d = machine.device({});
    Queue& q = d->queue(QueueName::Compute);
    char* memory = d->allocate(4096, Place::Device);
    char own[16] = {};
    void* address = own;
    EXPECT_THROW(d->copy(q, memory, own, 16), InternalError);
    EXPECT_THROW(d->copy(q, own, memory, 16), InternalError);
    EXPECT_THROW(d->launch(q, {&address, 1}, [](void* const*) {}), InternalError);
    EXPECT_THROW(d->fill(q, memory + 4000, 0, 1 << 20), InternalError);
}

TEST(DeviceLate, AnEventIsWhereItWasRecordedLast) {
    LateMachine machine(5);
    const std::unique_ptr<Device> d = machine.device({});
    Queue& q = d->queue(QueueName::Compute);
    const Event e = d->new_event();
    EXPECT_TRUE(d->done(e));  // never recorded
    int runs = 0;
    for (int i = 1; i <= 20; ++i) {
        d->launch(q, {}, [&](void* const*) { ++runs; });
        d->record(q, e);
        if (i % 5 == 0) {
            while (!d->done(e)) {
            }
            EXPECT_EQ(runs, i);
        }
    }
}

}  // namespace
}  // namespace lockstep::device
