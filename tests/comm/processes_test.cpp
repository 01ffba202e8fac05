// Ranks in several processes, over a wire of memory: the cases of every transport, and what this one has alone.
#include "comm/processes/process_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "tests/comm/jobs.h"

namespace lockstep::comm::test {
namespace {

// Small pieces and nothing small: long paths for few bytes.
const processes::Options kPieces = {.piece_bytes = 1500, .message_bytes = 4000, .small_bytes = 0};
const processes::Options kLong = {.piece_bytes = 1 << 14, .message_bytes = 1 << 15, .small_bytes = 0};

std::vector<Job> jobs_of_processes() {
    return {memory_job("P2", 1, {0, 1}),
            memory_job("P2x2", 2, {0, 1}),
            memory_job("P2x3TwoHosts", 3, {0, 1}, kPieces),
            memory_job("P4x1TwoHosts", 1, {0, 0, 1, 1}, kPieces),
            memory_job("P6x1ScatteredHosts", 1, {0, 1, 2, 0, 1, 2}, kPieces),
            memory_job("P5x1UnequalHosts", 1, {7, 7, 7, 5, 5}, kPieces),
            memory_job("P4x2TwoHosts", 2, {0, 0, 1, 1}, kLong)};
}

INSTANTIATE_TEST_SUITE_P(Processes, Comm, testing::ValuesIn(jobs_of_processes()), name_of_job);
INSTANTIATE_TEST_SUITE_P(Processes, CommFailure,
                         testing::Values(memory_job("P2", 1, {0, 1}), memory_job("P4", 1, {0, 0, 1, 1}, kPieces),
                                         memory_job("P2x2", 2, {0, 1}), memory_job("P3x2", 2, {0, 1, 2}, kLong)),
                         name_of_job);

// Two processes of one rank; `body` gets the world of each.
template <class Body0, class Body1>
void two_processes(Body0 body0, Body1 body1, int ranks_per_process1 = 1) {
    Network network({0, 1});
    std::thread other([&] {
        processes::ProcessTransport world(std::make_unique<MemoryWire>(network, 1), ranks_per_process1);
        body1(world);
    });
    {
        processes::ProcessTransport world(std::make_unique<MemoryWire>(network, 0), 1);
        body0(world);
    }
    other.join();
}

std::string barriers_until_the_end(processes::ProcessTransport& world, std::vector<int> ranks) {
    try {
        const auto comm = world.communicator(world.first_rank());
        const GroupId group = comm->add_group(std::move(ranks));
        while (true) comm->barrier(0, group);
    } catch (const Aborted& aborted) {
        return aborted.what();
    }
}

TEST(CommProcesses, AbortFromOutsideTheRanks) {
    two_processes(
        [](processes::ProcessTransport& world) {
            std::thread outside([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                world.abort("stopped on request");
            });
            EXPECT_EQ(barriers_until_the_end(world, {0, 1}), "stopped on request");
            outside.join();
        },
        [](processes::ProcessTransport& world) {
            EXPECT_EQ(barriers_until_the_end(world, {0, 1}), "stopped on request");
        });
}

TEST(CommProcesses, AProcessThatAnExceptionEndsStopsTheOthers) {
    Network network({0, 1});
    std::thread other([&] {
        EXPECT_THROW(
            {
                processes::ProcessTransport world(std::make_unique<MemoryWire>(network, 1), 1);
                throw std::runtime_error("no space left");
            },
            std::runtime_error);
    });
    {
        processes::ProcessTransport world(std::make_unique<MemoryWire>(network, 0), 1);
        EXPECT_EQ(barriers_until_the_end(world, {0, 1}), "process 1 ended early");
    }
    other.join();
}

TEST(CommProcesses, ProcessesStartedDifferentlyStop) {
    const std::string text =
        "processes must be started alike: process 0 has 1 ranks a process, messages of 1073741824 bytes, pieces of 57344, "
        "small "
        "up to 65536, process 1 has 2 ranks a process, messages of 1073741824 bytes, pieces of 57344, small up to 65536";
    two_processes(
        [&](processes::ProcessTransport& world) {
            EXPECT_EQ(barriers_until_the_end(world, {0, 1}), text);
        },
        [&](processes::ProcessTransport& world) {
            EXPECT_EQ(barriers_until_the_end(world, {2, 0}), text);
        },
        2);
}

TEST(CommProcesses, AnAlgorithmThatDoesNotFitTheHostsIsRefused) {
    const auto reduce = [](processes::ProcessTransport& world) {
        try {
            const auto comm = world.communicator(world.first_rank());
            float in = 1, out = 0;
            Request q = all_reduce(Dtype::F32, &in, &out, 1);
            q.algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Direct, mesh::ReduceBy::TwoLevel, 2};
            comm->run(0, comm->add_group({0, 1}), q);
            return std::string();
        } catch (const Aborted& aborted) {
            return std::string(aborted.what());
        }
    };
    const std::string text =
        "ranks launched all_reduce sum f32 [1, 1, 1] (gather direct, reduce two_level, level 2) in group [0, 1], but it is "
        "reduced by 2 ranks of a host, and hosts have one, or unequal numbers, or ranks of a host do not follow each other: the "
        "program was compiled for other hosts";
    const auto expect = [&](processes::ProcessTransport& world) { EXPECT_EQ(reduce(world), text); };
    two_processes(expect, expect);
}

// Tags are counted before anything is sent.
TEST(CommProcesses, MoreGroupsThanTagsAreRefused) {
    Network network({0, 1});
    network.most_tag = 4;  // two groups, of two queues each
    std::vector<std::string> said(2);
    std::vector<std::thread> threads;
    for (int process = 0; process < 2; ++process) {
        threads.emplace_back([&, process] {
            processes::ProcessTransport transport(std::make_unique<MemoryWire>(network, process), 2);
            try {
                const auto comm = transport.communicator(transport.first_rank());
                for (int other : {0, 1}) comm->barrier(1, comm->add_group({2 * other, 2 * (1 - other)}));
                comm->add_group(process == 0 ? std::vector{0, 2, 3} : std::vector{2, 0, 3});
            } catch (const Aborted& aborted) {
                said[static_cast<size_t>(process)] = aborted.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : said)
        EXPECT_EQ(text, "ranks communicate in more than 2 groups, for which messages between processes have no tags");
}

TEST(CommProcesses, RanksKnowTheirHosts) {
    Network network({8, 3, 8});
    std::vector<std::thread> threads;
    for (int process = 0; process < 3; ++process) {
        threads.emplace_back([&, process] {
            processes::ProcessTransport world(std::make_unique<MemoryWire>(network, process), 2);
            EXPECT_EQ(world.topology().host_of_rank, (std::vector<int>{0, 0, 1, 1, 0, 0}));
            EXPECT_EQ(world.first_rank(), 2 * process);
            EXPECT_THROW(world.communicator((2 * process + 2) % 6), InternalError);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep::comm::test
