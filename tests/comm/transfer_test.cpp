// Transfers between two ranks: who gives goes on, who takes waits, in order; bytes are free when they have been awaited.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "comm/local.h"
#include "ranks.h"

namespace lockstep::comm {
namespace {

using test::run_ranks;

Request give(const std::vector<float>& x) { return transfer(Type::Float32, x.data(), nullptr, static_cast<int64_t>(x.size())); }
Request take(std::vector<float>& x) { return transfer(Type::Float32, nullptr, x.data(), static_cast<int64_t>(x.size())); }

TEST(CommTransfer, WhoGivesGoesOn) {
    World world(2);
    std::atomic<bool> given = false;
    const auto errors = run_ranks(world, [&](Communicator& comm) {
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
    EXPECT_EQ(errors, std::vector<std::string>(2));
}

// Both ways and on both channels at once; now and then somebody is late.
TEST(CommTransfer, BytesAreThoseOfTheGiving) {
    constexpr int kCount = 3000;
    World world(2);
    const auto errors = run_ranks(world, [&](Communicator& comm) {
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
                    comm.run(channel, in, take(got));
                    ASSERT_EQ(got, std::vector<float>(17, static_cast<float>(k + 10000 * channel)));
                }
                for (size_t k = 0; k < sent.size(); ++k) comm.await_transfer(channel, out);
            });
        }
        for (std::thread& t : threads) t.join();
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(CommTransfer, MoreThanFitWait) {
    World world(2);
    std::atomic<uint32_t> given = 0;
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<std::vector<float>> x(2 * kTransfersInFlight, std::vector<float>(1));
        for (size_t k = 0; k < x.size(); ++k) {
            if (comm.rank() == 0) {
                x[k] = {static_cast<float>(k)};
                comm.run(0, group, give(x[k]));
                ++given;
            } else {
                EXPECT_LE(given, kTransfersInFlight + k);
                comm.run(0, group, take(x[k]));
                EXPECT_EQ(x[k][0], static_cast<float>(k));
            }
        }
        for (size_t k = 0; k < x.size() && comm.rank() == 0; ++k) comm.await_transfer(0, group);
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(CommTransfer, AnotherSizeEndsBoth) {
    World world(2);
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<float> x(comm.rank() == 0 ? 4 : 5);
        comm.run(0, group, comm.rank() == 0 ? give(x) : take(x));
        if (comm.rank() == 0) comm.await_transfer(0, group);
    });
    for (const std::string& error : errors) {
        EXPECT_EQ(
            error,
            "ranks launched different collectives in group [0, 1] on channel 0: rank 0 transfer float32 [1, 4, 1] as request "
            "1 of 1, rank 1 transfer float32 [1, 5, 1] as request 1 of 1");
    }
}

TEST(CommTransfer, AnAbortWakesWhoeverWaits) {
    World world(3);
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        std::vector<float> x(4);
        if (comm.rank() == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            comm.abort("rank 2 is ill");
            return;
        }
        const GroupId pair = comm.add_group({0, 1});
        if (comm.rank() == 0) {  // waits for what rank 1 never takes
            comm.run(0, pair, give(x));
            comm.await_transfer(0, pair);
        } else {  // waits for what rank 0 never gives
            comm.run(1, pair, take(x));
        }
    });
    EXPECT_EQ(errors[0], "rank 2 is ill");
    EXPECT_EQ(errors[1], "rank 2 is ill");
}

TEST(CommTransfer, NothingGivenIsNotAwaited) {
    World world(2);
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        if (comm.rank() == 0) comm.await_transfer(0, group);
    });
    EXPECT_EQ(errors[0], "rank 0 awaits a transfer and has given none");
}

}  // namespace
}  // namespace lockstep::comm
