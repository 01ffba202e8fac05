// Collectives in the queues of devices that run late: the cases of every transport. Bytes are moved and combined by the host, or
// by the kernels of GPUs on the emulator.
#include "comm/gpu/moves.h"
#include "tests/comm/queued_job.h"

namespace lockstep::comm::test {
namespace {

#if defined(__SANITIZE_THREAD__)  // knows no emulated threads of a GPU, and takes minutes where it is told of them
const auto queued_jobs = ::testing::Values(queued_job(1), queued_job(2), queued_job(3));
#else
const auto queued_jobs = ::testing::Values(queued_job(1), queued_job(2), queued_job(3), queued_job(3, gpu::moves()));
#endif
INSTANTIATE_TEST_SUITE_P(Queued, Comm, queued_jobs, name_of_job);
INSTANTIATE_TEST_SUITE_P(Queued, CommBits, queued_jobs, name_of_job);
INSTANTIATE_TEST_SUITE_P(Queued, CommFailure, ::testing::Values(queued_job(2), queued_job(4)), name_of_job);

}  // namespace
}  // namespace lockstep::comm::test
