// Random layouts with their ranks in several processes, here threads over a wire of memory, give the bits of ranks in one
// process: losses, norms, weights, checkpoints. Over MPI: mpi_main.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/base/from_environment.h"
#include "tests/base/scratch_folder.h"
#include "tests/comm/process_groups.h"
#include "tests/equivalence/process_group_run.h"

namespace lockstep::testing {
namespace {

void hold_to_threads(Dtype dtype, int64_t wanted, bool (*of)(const compile::Recipe&) = nullptr) {
    int hybrids = 0;
    for (uint64_t seed = 1; wanted > 0; ++seed) {
        const std::vector<int> host_of = seed % 3 == 0   ? std::vector{0, 0, 1, 1}
                                         : seed % 3 == 1 ? std::vector{0, 1}
                                                         : std::vector{0, 1, 1};
        const auto processes = static_cast<int>(host_of.size());
        const std::optional<Draw> d = draw_for(host_of, seed, dtype, of);
        if (!d) continue;
        --wanted;
        hybrids += d->compiled.layout.ranks > processes;
        const ScratchFolder scratch;
        comm::ProcessGroup alone;
        const Saved threads = train_and_save(*d, scratch.path("threads"), alone);
        std::vector<Saved> saved(host_of.size());
        std::vector<runtime::GlobalTensors> loaded(host_of.size());
        const auto errors = comm::test::in_process_groups(host_of, [&](comm::ProcessGroup& group) {
            const auto p = static_cast<size_t>(group.process());
            saved[p] = train_and_save(*d, scratch.path("processes"), group);
            loaded[p] = weights_of(*d, threads.checkpoint, group);
        });
        const std::string again = fmt::format("seed {} in {} processes\n{}", seed, processes, d->recipe.toml());
        for (const std::exception_ptr& e : errors) {
            try {
                if (e) std::rethrow_exception(e);
            } catch (const std::exception& error) {
                ADD_FAILURE() << error.what() << "\n" << again;
                return;
            }
        }
        const runtime::GlobalTensors kept = weights_of(*d, threads.checkpoint, alone);
        for (size_t p = 0; p < host_of.size(); ++p) {
            EXPECT_EQ(difference_of(threads, saved[p]), "") << "process " << p << ", " << again;
            EXPECT_EQ(loaded[p], kept) << "process " << p << ", " << again;
        }
    }
    EXPECT_GT(hybrids, 0);  // several ranks in a process
}

int64_t draws_of_processes() { return std::max<int64_t>(6, from_environment("LOCKSTEP_DRAWS", 80) / 8); }

TEST(EquivalenceProcesses, TheSameBitsAsThreadsFloat64) { hold_to_threads(Dtype::F64, draws_of_processes()); }
TEST(EquivalenceProcesses, TheSameBitsAsThreadsFloat32) {
    hold_to_threads(Dtype::F32, std::max<int64_t>(4, draws_of_processes() / 2));
}

TEST(EquivalenceProcesses, TheSameBitsOfRings) { hold_to_threads(Dtype::F32, draws_of_processes(), rings_beside_others); }

}  // namespace
}  // namespace lockstep::testing
