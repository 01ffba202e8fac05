// What stops all ranks: abort, mismatched launches, requests that cannot run. Nobody hangs, and all say the same.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "comm/local.h"
#include "ranks.h"

namespace lockstep::comm {
namespace {

using test::all_ranks;
using test::run_ranks;

TEST(CommLocalFailure, AbortReleasesWaitersAndRefusesLaterLaunches) {
    World world(4);
    std::atomic<int> later = 0;
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId all = comm.add_group(all_ranks(4)), self = comm.add_group({comm.rank()});
        comm.barrier(0, all);
        if (comm.rank() == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others are asleep by then
            comm.abort("rank 2: loss is not finite");
            comm.abort("a second reason");
        }
        try {
            comm.barrier(1, all);
        } catch (const Aborted&) {
            ++later;
        }
        comm.barrier(0, self);
    });
    EXPECT_EQ(later, 4);
    EXPECT_EQ(errors, std::vector<std::string>(4, "rank 2: loss is not finite"));
    EXPECT_THROW(world.communicator(0)->add_group({0, 1}), Aborted);
}

// Buffers die with their ranks' threads: under ASan and TSan this shows that no one leaves a launch that others are in.
TEST(CommLocalFailure, AbortAtAnyMomentStopsEveryRank) {
    for (int attempt = 0; attempt < 100; ++attempt) {
        World world(4);
        const auto errors = run_ranks(world, [&](Communicator& comm) {
            const GroupId all = comm.add_group(all_ranks(4));
            const GroupId pair = comm.add_group(comm.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
            std::vector<float> value(5000, 1);
            for (int round = 0;; ++round) {
                comm.run(0, all, all_reduce(Type::Float32, value.data(), value.data(), 5000, ReduceOp::Max));
                comm.run(1, pair, all_reduce(Type::Float32, value.data(), value.data(), 5000, ReduceOp::Max));
                if (comm.rank() == attempt % 4 && round == attempt % 9) comm.abort("stop");
            }
        });
        EXPECT_EQ(errors, std::vector<std::string>(4, "stop"));
    }
}

TEST(CommLocalFailure, AbortFromOutsideTheRanks) {
    World world(3);
    std::thread outside([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        world.abort("stopped on request");
    });
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId all = comm.add_group({0, 1, 2});
        while (true) comm.barrier(0, all);
    });
    outside.join();
    // A rank may still be adding its group when the others are stopped; it is told the same.
    EXPECT_EQ(errors, std::vector<std::string>(3, "stopped on request"));
}

std::vector<std::string> launch_different(const std::function<std::vector<Request>(int rank, float* in, float* out)>& requests) {
    World world(6);
    return run_ranks(world, [&](Communicator& comm) {
        if (comm.rank() % 2) return;
        const GroupId group = comm.add_group({0, 2, 4});
        std::vector<float> in(64), out(64);
        comm.run(1, group, requests(comm.rank(), in.data(), out.data()));
        ADD_FAILURE() << "the launch returned";
    });
}

std::vector<std::string> on_even_ranks(const std::string& text) { return {text, "", text, "", text, ""}; }

TEST(CommLocalFailure, DifferentShapesStopAllMembersWithOneMessage) {
    const auto errors = launch_different([](int rank, float* in, float* out) -> std::vector<Request> {
        const int64_t dim = rank == 4 ? 4 : 3;
        return {all_reduce(Type::Float32, in, out, 8), all_gather(Type::Float32, in, out, 2, dim, 1)};
    });
    EXPECT_EQ(errors, on_even_ranks("ranks launched different collectives in group [0, 2, 4] on channel 1: "
                                    "rank 0 all_gather float32 [2, 3, 1] as request 2 of 2, "
                                    "rank 4 all_gather float32 [2, 4, 1] as request 2 of 2"));
}

TEST(CommLocalFailure, DifferentKindsTypesAndOpsAreNamed) {
    const auto kinds = launch_different([](int rank, float* in, float* out) -> std::vector<Request> {
        if (rank == 2) return {reduce_scatter(Type::Float32, in, out, 1, 4, 2, ReduceOp::Max)};
        return {all_gather(Type::Float32, in, out, 1, 4, 2)};
    });
    EXPECT_EQ(kinds, on_even_ranks("ranks launched different collectives in group [0, 2, 4] on channel 1: "
                                   "rank 0 all_gather float32 [1, 4, 2] as request 1 of 1, "
                                   "rank 2 reduce_scatter max float32 [1, 4, 2] as request 1 of 1"));
    const auto types = launch_different([](int rank, float* in, float* out) -> std::vector<Request> {
        return {all_reduce(rank == 0 ? Type::Int32 : Type::Float64, in, out, 4)};
    });
    EXPECT_EQ(types, on_even_ranks("ranks launched different collectives in group [0, 2, 4] on channel 1: "
                                   "rank 0 all_reduce sum int32 [1, 4, 1] as request 1 of 1, "
                                   "rank 2 all_reduce sum float64 [1, 4, 1] as request 1 of 1"));
}

TEST(CommLocalFailure, DifferentNumbersOfRequestsAreNamed) {
    const auto errors = launch_different([](int rank, float* in, float* out) -> std::vector<Request> {
        std::vector<Request> requests = {all_reduce(Type::Float32, in, out, 8)};
        if (rank != 2) requests.push_back(all_reduce(Type::Float32, in + 8, out + 8, 8));
        return requests;
    });
    EXPECT_EQ(errors, on_even_ranks("ranks launched different collectives in group [0, 2, 4] on channel 1: "
                                    "rank 0 all_reduce sum float32 [1, 8, 1] as request 2 of 2, rank 2 1 requests only"));
    const auto barrier = launch_different([](int rank, float* in, float* out) -> std::vector<Request> {
        if (rank == 0) return {};
        return {all_reduce(Type::Float32, in, out, 8)};
    });
    EXPECT_EQ(barrier, on_even_ranks("ranks launched different collectives in group [0, 2, 4] on channel 1: "
                                     "rank 0 a barrier, rank 2 all_reduce sum float32 [1, 8, 1] as request 1 of 1"));
}

TEST(CommLocalFailure, ARequestThatCannotRunStopsAllRanks) {
    World world(2);
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const GroupId all = comm.add_group({0, 1});
        std::vector<float> data(16);
        float* out = comm.rank() == 1 ? data.data() + 2 : data.data();
        comm.run(0, all, all_reduce(Type::Float32, data.data(), out, 8));
    });
    const std::string text =
        "rank 1 launched a collective that cannot run: all_reduce sum float32 [1, 8, 1]: in and out overlap other than in place";
    EXPECT_EQ(errors, std::vector<std::string>(2, text));
}

TEST(CommLocalFailure, RefusalNamesWhatIsWrong) {
    float data[64] = {};
    EXPECT_EQ(refusal(all_reduce(Type::Float32, data, data, -1), 0, 2), "a negative extent");
    EXPECT_EQ(refusal(all_reduce(Type::Float32, nullptr, data, 1), 0, 2), "a null buffer");
    EXPECT_EQ(refusal(all_reduce(Type::Float32, nullptr, nullptr, 0), 0, 2), "");
    EXPECT_EQ(refusal(all_gather(Type::Float32, data + 4, data, 1, 4, 1), 1, 2), "");
    EXPECT_EQ(refusal(all_gather(Type::Float32, data + 4, data, 1, 4, 1), 0, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(all_gather(Type::Float32, data + 4, data, 2, 2, 1), 1, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(reduce_scatter(Type::Float64, data, data + 16, 1, 8, 1), 1, 2), "");
    Request request = all_reduce(Type::Float32, data, data, 4);
    request.accumulate = true;
    EXPECT_EQ(refusal(request, 0, 2), "accumulate outside of reduce_scatter");
}

TEST(CommLocalFailure, GroupsAreOfDistinctRanksOfTheWorldAndHoldTheirOwn) {
    World world(3);
    const auto comm = world.communicator(1);
    EXPECT_THROW(comm->add_group({0, 2}), InternalError);
    EXPECT_THROW(comm->add_group({1, 1}), InternalError);
    EXPECT_THROW(comm->add_group({1, 3}), InternalError);
    EXPECT_THROW(world.communicator(3), InternalError);
}

}  // namespace
}  // namespace lockstep::comm
