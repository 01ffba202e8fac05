// Random layouts with their ranks in the processes of mpirun, held to the same bits as ranks in one process, in float64 and
// float32 by turns. The first process makes both and compares. LOCKSTEP_DRAWS, LOCKSTEP_SEED: as for Equivalence; a thirtieth is
// drawn here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/base/from_environment.h"
#include "tests/base/scratch_folder.h"
#include "tests/comm/mpi/start.h"
#include "tests/equivalence/process_group_run.h"

namespace lockstep::testing {
namespace {

void hold_to_threads(int64_t wanted, bool (*of)(const compile::Recipe&) = nullptr) {
    comm::ProcessGroup group([] { return comm::test::session().wire(); });
    group.guard([&] {
        auto seed = static_cast<uint64_t>(from_environment("LOCKSTEP_SEED", 1));
        const uint64_t first = seed;
        std::vector<int> host_of;
        for (int p = 0; p < group.processes(); ++p) host_of.push_back(group.host_of(p));
        for (int64_t counted = 0; counted < wanted; ++seed) {
            const Dtype dtype = seed % 2 == 0 ? Dtype::F64 : Dtype::F32;
            const std::optional<Draw> d = draw_for(host_of, seed, dtype, of);
            if (!d) continue;
            ++counted;
            const ScratchFolder scratch;  // the first process's is everybody's
            const std::string root = group.exchange(scratch.path("processes"))[0];
            const Saved saved = train_and_save(*d, root, group);
            const std::string own = std::to_string(saved.outcome.losses.back());
            for (const std::string& theirs : group.exchange(own)) EXPECT_EQ(theirs, own);
            std::string why;
            if (group.is_first()) {
                comm::ProcessGroup alone;
                why = difference_of(train_and_save(*d, scratch.path("threads"), alone), saved);
            }
            EXPECT_EQ(group.exchange(why)[0], "") << "seed " << seed << " in " << group.processes() << " processes\n"
                                                  << d->recipe.toml();
        }
        if (group.is_first())
            fmt::print("{} layouts of the seeds {} to {} in {} processes: the same bits as in one\n", wanted, first, seed - 1,
                       group.processes());
    });
}

int64_t draws() { return from_environment("LOCKSTEP_DRAWS", 210); }

TEST(EquivalenceMpi, TheSameBitsAsThreads) { hold_to_threads(std::max<int64_t>(1, draws() / 30)); }
TEST(EquivalenceMpi, TheSameBitsOfRings) { hold_to_threads(std::max<int64_t>(1, draws() / 50), rings_beside_others); }

}  // namespace
}  // namespace lockstep::testing
