#include "comm/mpi/session.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::comm::mpi {
namespace {

TEST(CommMpiSession, ABuildWithoutMpiSaysSo) {
    if (is_built()) GTEST_SKIP() << "this build has MPI";
    try {
        const Session session(1);
        FAIL();
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), "mpi.not_built");
        EXPECT_STREQ(error.what(),
                     "this lockstep was built without MPI and runs in one process only: install MPI (Debian: libopenmpi-dev, "
                     "openmpi-bin) and build again, or start it without a launcher; ranks are then threads");
    }
}

}  // namespace
}  // namespace lockstep::comm::mpi
