// Messages between two ranks: a send goes on, a receive waits, in order; bytes are free after the wait for their send.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "tests/comm/jobs.h"
#include "tests/comm/queued_job.h"

namespace lockstep::comm::test {
namespace {

class CommSend : public ::testing::TestWithParam<Job> {};
INSTANTIATE_TEST_SUITE_P(Jobs, CommSend,
                         ::testing::Values(local_job(2), memory_job("TwoProcesses", 1, {0, 1}), memory_job("OneProcess", 2, {0}),
                                           queued_job(2)),
                         name_of_job);

Request send(const std::vector<float>& x) { return comm::send(Dtype::F32, x.data(), static_cast<int64_t>(x.size())); }
Request recv(std::vector<float>& x) { return comm::recv(Dtype::F32, x.data(), static_cast<int64_t>(x.size())); }

TEST_P(CommSend, ASendGoesOn) {
    std::atomic<bool> is_sent = false;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<std::vector<float>> x(3, std::vector<float>(5));
        if (comm.rank() == 0) {
            for (size_t k = 0; k < x.size(); ++k) {
                x[k].assign(5, static_cast<float>(k + 1));
                comm.run(0, group, send(x[k]));
            }
            is_sent = true;  // the other rank shows that nothing was received yet
            for (size_t k = 0; k < x.size(); ++k) {
                comm.wait(0, group);
                x[k].assign(5, -1);
            }
        } else {
            while (!is_sent) std::this_thread::yield();
            for (size_t k = 0; k < x.size(); ++k) {
                comm.run(0, group, recv(x[k]));
                EXPECT_EQ(x[k], std::vector<float>(5, static_cast<float>(k + 1)));
            }
        }
    });
    expect_all(errors, "");
}

// Both ways and on both channels at once; now and then somebody is late.
TEST_P(CommSend, BytesAreThoseOfTheSend) {
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
                    if (k >= static_cast<int>(sent.size())) comm.wait(channel, out);  // the one that used x last
                    x.assign(17, static_cast<float>(k + 10000 * channel));
                    comm.run(channel, out, send(x));
                    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
                    if (random() % 4 == 0) comm.attend(channel);
                    comm.run(channel, in, recv(got));
                    ASSERT_EQ(got, std::vector<float>(17, static_cast<float>(k + 10000 * channel)));
                }
                for (size_t k = 0; k < sent.size(); ++k) comm.wait(channel, out);
            });
        }
        for (std::thread& t : threads) t.join();
    });
    expect_all(errors, "");
}

TEST_P(CommSend, SixtyFourLaunchesMayBeUnderWay) {
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId pair = comm.add_group({0, 1});
        std::vector<std::vector<float>> values(kSendsInFlight, std::vector<float>(100));
        for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < kSendsInFlight; ++i) {
                std::vector<float>& value = values[static_cast<size_t>(i)];
                if (comm.rank() == 0) value.assign(100, static_cast<float>(i + round));
                comm.run(0, pair, comm.rank() == 0 ? send(value) : recv(value));
                wrong += value[99] != static_cast<float>(i + round);
            }
            for (int i = 0; comm.rank() == 0 && i < kSendsInFlight; ++i) comm.wait(0, pair);
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// On a wire that moves what is under way only for who asks: a rank that computes asks between its ops, long before it awaits.
TEST(CommSendAttended, WhatIsSentLeavesBetweenOps) {
    std::atomic<bool> received = false;
    const auto errors = memory_job("TwoProcesses", 1, {0, 1}, {}, true).run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<float> x(1000, 7.0f);
        if (comm.rank() == 1) {
            x.assign(1000, 0.0f);
            comm.run(0, group, recv(x));
            EXPECT_EQ(x, std::vector<float>(1000, 7.0f));
            received = true;
            return;
        }
        comm.run(0, group, send(x));
        const auto start = std::chrono::steady_clock::now();
        while (!received && std::chrono::steady_clock::now() - start < std::chrono::seconds(10)) {
            comm.attend(0);
            std::this_thread::yield();
        }
        EXPECT_TRUE(received);
        comm.wait(0, group);
    });
    expect_all(errors, "");
}

TEST_P(CommSend, NothingSentIsNotWaitedFor) {
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        if (comm.rank() == 0) comm.wait(0, group);
    });
    EXPECT_EQ(errors.at(0), "rank 0 launched a collective that cannot run: wait: nothing was sent");
}

}  // namespace
}  // namespace lockstep::comm::test
