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

INSTANTIATE_TEST_SUITE_P(Processes, Comm, ::testing::ValuesIn(jobs_of_processes()), name_of_job);
INSTANTIATE_TEST_SUITE_P(Processes, CommBits, ::testing::ValuesIn(jobs_of_processes()), name_of_job);
INSTANTIATE_TEST_SUITE_P(Processes, CommFailure,
                         ::testing::Values(memory_job("P2", 1, {0, 1}), memory_job("P4", 1, {0, 0, 1, 1}, kPieces),
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
    const auto reduce = [](processes::ProcessTransport& world, const mesh::CollectiveAlgorithm& algorithm) {
        try {
            const auto comm = world.communicator(world.first_rank());
            float in = 1, out = 0;
            Request q = all_reduce(Dtype::F32, &in, &out, 1);
            q.algorithm = algorithm;
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
    const auto expect = [&](const std::string& what, const mesh::CollectiveAlgorithm& algorithm) {
        const auto of_process = [&](processes::ProcessTransport& world) { EXPECT_EQ(reduce(world, algorithm), what); };
        two_processes(of_process, of_process);
    };
    expect(text, {mesh::GatherBy::Direct, mesh::ReduceBy::TwoLevel, 2});
    expect(
        "ranks launched all_reduce sum f32 [1, 1, 1] (gather ring, reduce library, level 1) in group [0, 1], reduced by a "
        "library, "
        "and there is none between these processes: the program was compiled for GPUs",
        {mesh::GatherBy::Ring, mesh::ReduceBy::Library});
}

// Bytes that each host sends to others for a collective of all ranks, or for a message from the first rank to the last; without
// what members tell each other to agree on a launch.
std::vector<double> sent_by_host(const std::vector<int>& host_of, int ranks_per_process, const Request& request) {
    const int n = static_cast<int>(host_of.size()) * ranks_per_process;
    const auto count = [&](int64_t dim) {
        Network network(host_of);
        std::vector<std::thread> threads;
        for (int process = 0; process < static_cast<int>(host_of.size()); ++process) {
            threads.emplace_back([&, process] {
                processes::ProcessTransport transport(std::make_unique<MemoryWire>(network, process), ranks_per_process);
                expect_all(run_ranks(transport, transport.first_rank(), ranks_per_process,
                                     [&](Communicator& comm) {
                                         Request r = request;
                                         r.dim = dim;
                                         std::vector<std::byte> in(static_cast<size_t>(r.block_bytes() * n)), out(in.size());
                                         r.in = in.data(), r.out = out.data();
                                         if (r.traits().symmetric) return comm.run(0, comm.add_group(all_ranks(n)), r);
                                         if (comm.rank() != 0 && comm.rank() != n - 1) return;
                                         const GroupId pair = comm.add_group({0, n - 1});
                                         r.kind = comm.rank() == 0 ? Collective::Send : Collective::Recv;
                                         comm.run(0, pair, r);
                                         if (comm.rank() == 0) comm.wait(0, pair);
                                     }),
                           "");
            });
        }
        for (std::thread& thread : threads) thread.join();
        std::vector<double> by_host(2);
        for (size_t p = 0; p < host_of.size(); ++p)
            by_host[static_cast<size_t>(host_of[p])] += static_cast<double>(network.left_host_bytes[p]);
        return by_host;
    };
    const std::vector<double> all = count(1024), agreement = count(0);
    return {all[0] - agreement[0], all[1] - agreement[1]};
}

// To the byte, for every row of the table, and every algorithm that fits.
TEST(CommProcesses, HostsSendWhatTheTableCounts) {
    int counted = 0;
    for (const int ranks_per_process : {1, 2}) {
        const std::vector<int> host_of = {0, 0, 1, 1};
        const int n = 4 * ranks_per_process;
        const mesh::Topology topology = mesh::even_hosts(n, n / 2, ranks_per_process);
        for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
            if (traits.kind == Collective::Recv || traits.kind == Collective::Wait) continue;  // of a send's
            const std::vector<int> ranks = traits.symmetric ? all_ranks(n) : std::vector{0, n - 1};
            const mesh::GroupLayout layout = mesh::group_layout(ranks, topology);
            Request r;
            r.kind = traits.kind;
            r.by = traits.kind == Collective::Permute ? 3 : 0;
            r.root = traits.kind == Collective::Broadcast ? 1 : 0;
            std::vector<std::optional<mesh::CollectiveAlgorithm>> algorithms;
            for (int gather = 0; gather < 3; ++gather) {
                for (int reduce = 0; reduce < 4; ++reduce) {
                    mesh::CollectiveAlgorithm a{static_cast<mesh::GatherBy>(gather), static_cast<mesh::ReduceBy>(reduce)};
                    if (traits.reduces && a.reduce == mesh::ReduceBy::TwoLevel) a.level = layout.level;
                    if (traits.has_algorithm() && mesh::unfit(layout, traits.kind, a).empty()) algorithms.emplace_back(a);
                }
            }
            if (!traits.has_algorithm()) algorithms.emplace_back();
            for (const auto& algorithm : algorithms) {
                r.algorithm = algorithm;
                const mesh::Sent expected = mesh::bytes_sent(layout, traits.kind, algorithm.value_or(mesh::CollectiveAlgorithm{}),
                                                             4096, std::max(r.by, r.root));
                EXPECT_EQ(sent_by_host(host_of, ranks_per_process, r), expected.by_host)
                    << describe(r) << ", " << ranks_per_process << " ranks a process";
                ++counted;
            }
        }
    }
    EXPECT_GE(counted, 2 * (3 + 3 + 6 + 4));
}

// Tags are counted before anything is sent.
TEST(CommProcesses, MoreGroupsThanTagsAreRefused) {
    Network network({0, 1});
    network.most_tag = 2 * kChannels;  // two groups, of all queues each
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
