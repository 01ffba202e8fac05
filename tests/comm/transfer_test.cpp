// Transfers between two ranks: who gives goes on, who takes waits, in order; bytes are free when they have been awaited.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "tests/comm/jobs.h"
#include "tests/comm/queued_job.h"

namespace lockstep::comm::test {
namespace {

class CommTransfer : public testing::TestWithParam<Job> {};
INSTANTIATE_TEST_SUITE_P(Jobs, CommTransfer,
                         testing::Values(local_job(2), memory_job("TwoProcesses", 1, {0, 1}), memory_job("OneProcess", 2, {0}),
                                         queued_job(2)),
                         name_of_job);

Request give(const std::vector<float>& x) { return transfer(Type::Float32, x.data(), nullptr, static_cast<int64_t>(x.size())); }
Request take(std::vector<float>& x) { return transfer(Type::Float32, nullptr, x.data(), static_cast<int64_t>(x.size())); }

TEST_P(CommTransfer, WhoGivesGoesOn) {
    std::atomic<bool> given = false;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<std::vector<float>> x(3, std::vector<float>(5));
        if (comm.rank() == 0) {
            for (size_t k = 0; k < x.size(); ++k) {
                x[k].assign(5, static_cast<float>(k + 1));
                comm.run(0, group, give(x[k]));
            }
            given = true;  // that nobody has taken anything yet, the other rank says
            for (size_t k = 0; k < x.size(); ++k) {
                comm.await_transfer(0, group);
                x[k].assign(5, -1);
            }
        } else {
            while (!given) std::this_thread::yield();
            for (size_t k = 0; k < x.size(); ++k) {
                comm.run(0, group, take(x[k]));
                EXPECT_EQ(x[k], std::vector<float>(5, static_cast<float>(k + 1)));
            }
        }
    });
    expect_all(errors, "");
}

// Both ways and on both channels at once; now and then somebody is late.
TEST_P(CommTransfer, BytesAreThoseOfTheGiving) {
    constexpr int kCount = 3000;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const int me = comm.rank();
        const GroupId out = comm.add_group({me, 1 - me}), in = comm.add_group({1 - me, me});
        std::vector<std::thread> threads;
        for (int channel = 0; channel < kChannels; ++channel) {
            threads.emplace_back([&, channel] {
                std::mt19937 random(static_cast<unsigned>(me * 2 + channel));
                std::vector<std::vector<float>> sent(5, std::vector<float>(17));
                std::vector<float> got(17);
                for (int k = 0; k < kCount; ++k) {
                    std::vector<float>& x = sent[static_cast<size_t>(k) % sent.size()];
                    if (k >= static_cast<int>(sent.size())) comm.await_transfer(channel, out);  // the one that used x last
                    x.assign(17, static_cast<float>(k + 10000 * channel));
                    comm.run(channel, out, give(x));
                    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
                    if (random() % 4 == 0) comm.attend(channel);
                    comm.run(channel, in, take(got));
                    ASSERT_EQ(got, std::vector<float>(17, static_cast<float>(k + 10000 * channel)));
                }
                for (size_t k = 0; k < sent.size(); ++k) comm.await_transfer(channel, out);
            });
        }
        for (std::thread& t : threads) t.join();
    });
    expect_all(errors, "");
}

TEST_P(CommTransfer, SixtyFourLaunchesMayBeUnderWay) {
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId pair = comm.add_group({0, 1});
        std::vector<std::vector<float>> values(kTransfersInFlight, std::vector<float>(100));
        for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < kTransfersInFlight; ++i) {
                std::vector<float>& value = values[static_cast<size_t>(i)];
                if (comm.rank() == 0) value.assign(100, static_cast<float>(i + round));
                comm.run(0, pair, comm.rank() == 0 ? give(value) : take(value));
                wrong += value[99] != static_cast<float>(i + round);
            }
            for (int i = 0; comm.rank() == 0 && i < kTransfersInFlight; ++i) comm.await_transfer(0, pair);
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// On a wire that moves what is under way only for who asks: a rank that computes asks between its ops, long before it awaits.
TEST(CommTransferAttended, WhatIsGivenLeavesBetweenOps) {
    std::atomic<bool> taken = false;
    const auto errors = memory_job("TwoProcesses", 1, {0, 1}, {}, true).run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<float> x(1000, 7.0f);
        if (comm.rank() == 1) {
            x.assign(1000, 0.0f);
            comm.run(0, group, take(x));
            EXPECT_EQ(x, std::vector<float>(1000, 7.0f));
            taken = true;
            return;
        }
        comm.run(0, group, give(x));
        const auto start = std::chrono::steady_clock::now();
        while (!taken && std::chrono::steady_clock::now() - start < std::chrono::seconds(10)) {
            comm.attend(0);
            std::this_thread::yield();
        }
        EXPECT_TRUE(taken);
        comm.await_transfer(0, group);
    });
    expect_all(errors, "");
}

TEST_P(CommTransfer, NothingGivenIsNotAwaited) {
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        if (comm.rank() == 0) comm.await_transfer(0, group);
    });
    EXPECT_EQ(errors.at(0), "rank 0 awaits a transfer and has given none");
}

}  // namespace
}  // namespace lockstep::comm::test
