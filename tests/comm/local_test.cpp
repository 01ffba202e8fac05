// The local transport: the cases of every transport, and what it has alone.
#include "comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "tests/comm/jobs.h"

namespace lockstep::comm::test {
namespace {

const auto local_jobs = ::testing::Values(local_job(1), local_job(2), local_job(3), local_job(6));
INSTANTIATE_TEST_SUITE_P(Local, Comm, local_jobs, name_of_job);
INSTANTIATE_TEST_SUITE_P(Local, CommBits, local_jobs, name_of_job);
INSTANTIATE_TEST_SUITE_P(Local, CommFailure, ::testing::Values(local_job(2), local_job(4), local_job(6)), name_of_job);

TEST(CommLocal, LinkModelHoldsALaunchBack) {
    LocalTransport world(2, {{.bandwidth_bytes_per_s = 4e6, .latency_s = 0.01}});
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<float> block(10000, 1), whole(20000);  // 40 kB over the link: 10 ms and one step of 10 ms
        const auto began = std::chrono::steady_clock::now();
        comm.run(0, group, all_gather(Dtype::F32, block.data(), whole.data(), 1, 10000, 1));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        wrong += took.count() < 0.0199;
    });
    EXPECT_EQ(wrong, 0);
}

TEST(CommLocal, AbortFromOutsideTheRanks) {
    LocalTransport world(3);
    std::thread outside([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        world.abort("stopped on request");
    });
    const Errors errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId all = comm.add_group({0, 1, 2});
        while (true) comm.barrier(0, all);
    });
    outside.join();
    // A rank may still be adding its group when the others are stopped; it is told the same.
    expect_all(errors, "stopped on request");
}

TEST(CommLocal, GroupsAreOfDistinctRanksOfTheWorldAndHoldTheirOwn) {
    LocalTransport world(3);
    const auto comm = world.communicator(1);
    EXPECT_THROW(comm->add_group({0, 2}), InternalError);
    EXPECT_THROW(comm->add_group({1, 1}), InternalError);
    EXPECT_THROW(comm->add_group({1, 3}), InternalError);
    EXPECT_THROW(world.communicator(3), InternalError);
}

}  // namespace
}  // namespace lockstep::comm::test
