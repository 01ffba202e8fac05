// mpirun .. lockstep_mpi_tests RANKS_PER_PROCESS [gtest's options]: the cases of every transport between processes. Every process
// runs the same tests in the same order; each checks its own ranks.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "comm/mpi/binding.h"
#include "tests/comm/jobs.h"
#include "tests/comm/mpi/start.h"

namespace lockstep::comm::test {
namespace {

mpi::Session* own_session;
int processes = 1, ranks_per_process = 1;

Job mpi_job(const std::string& name, lockstep::comm::processes::Options options) {
    const mesh::Topology topology = {std::vector<int>(static_cast<size_t>(processes * ranks_per_process), 0), ranks_per_process};
    return {name, topology, [options](const Body& body) {
                lockstep::comm::processes::ProcessTransport world(session().wire(), ranks_per_process, options);
                return run_ranks(world, world.first_rank(), ranks_per_process, body);
            }};
}

// Made by InitGoogleTest(), when main() knows the ranks of a process.
std::vector<Job> mpi_jobs() {
    return {mpi_job("Whole", {}), mpi_job("Pieces", {.piece_bytes = 1500, .message_bytes = 4000, .small_bytes = 0})};
}

INSTANTIATE_TEST_SUITE_P(Mpi, Comm, ::testing::ValuesIn(mpi_jobs()), name_of_job);
INSTANTIATE_TEST_SUITE_P(Mpi, CommBits, ::testing::ValuesIn(mpi_jobs()), name_of_job);
INSTANTIATE_TEST_SUITE_P(Mpi, CommFailure, ::testing::ValuesIn(mpi_jobs()), name_of_job);

TEST(Mpi, AnMpiWithoutThreadsIsRefused) {
    mpi::require_threads(3);
    try {
        mpi::require_threads(1);
        FAIL();
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), "mpi.no_threads");
        EXPECT_STREQ(error.what(),
                     "this MPI grants thread level 1, but several ranks of a process call it at the same time, which needs level "
                     "3: use an "
                     "MPI that was built with MPI_THREAD_MULTIPLE, such as Debian's Open MPI");
    }
}

TEST(Mpi, ABindingToOneProcessorIsUndone) {
    cpu_set_t before, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const int count = CPU_COUNT(&before);
    if (count < 2) GTEST_SKIP() << "one processor only";
    int first = 0;
    while (!CPU_ISSET(static_cast<size_t>(first), &before)) ++first;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(first), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(mpi::undo_binding(1), "");  // enough for one thread
    const std::string text = mpi::undo_binding(2);
    EXPECT_EQ(text.substr(0, text.find(" of ")), "the launcher bound this process to 1") << text;
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_GE(CPU_COUNT(&after), count);
    EXPECT_EQ(mpi::undo_binding(2), "");
    sched_setaffinity(0, sizeof before, &before);
}

TEST(Mpi, RanksOfAHostAreThoseThatTheLauncherPutThere) {
    lockstep::comm::processes::ProcessTransport world(session().wire(), ranks_per_process);
    const std::vector<int>& hosts = world.topology().host_of_rank;
    const int here = std::atoi(std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE")) * ranks_per_process;
    EXPECT_EQ(std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(world.first_rank())]), here);
}

}  // namespace

mpi::Session& session() { return *own_session; }

}  // namespace lockstep::comm::test

int main(int argc, char** argv) {
    using namespace lockstep::comm::test;
    if (argc > 1) ranks_per_process = std::atoi(argv[1]);
    setenv("OMPI_MCA_opal_signal", "64", 0);  // as lockstep does: a crash ends the process
    lockstep::comm::mpi::Session own(ranks_per_process + 1);
    if (!own.notice().empty()) std::fprintf(stderr, "%s\n", own.notice().c_str());
    own_session = &own;
    processes = own.wire()->processes();
    if (processes < 2) {
        std::fprintf(stderr, "start this with mpirun and two or more processes\n");
        return 2;
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
