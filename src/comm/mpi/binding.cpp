#include "comm/mpi/binding.h"

#include <fmt/format.h>
#include <sched.h>

#include <cstring>

namespace lockstep::comm::mpi {
namespace {

// A machine may have more processors than a cpu_set_t.
constexpr size_t kSets = 16;

struct Processors {
    cpu_set_t sets[kSets];
    int count() const { return CPU_COUNT_S(sizeof sets, sets); }
    bool read() { return sched_getaffinity(0, sizeof sets, sets) == 0; }
};

}  // namespace

std::string undo_binding(int threads) {
    Processors bound{}, all{};
    if (!bound.read() || bound.count() >= threads) return "";
    std::memset(&all, 0xff, sizeof all);  // the kernel takes from this what the cpuset holds
    if (sched_setaffinity(0, sizeof all.sets, all.sets) != 0 || !all.read() || all.count() <= bound.count()) return "";
    return fmt::format(
        "the launcher bound this process to {} of {} processors, and it has {} threads: it uses all of them now "
        "(mpirun --bind-to none leaves it free)",
        bound.count(), all.count(), threads);
}

}  // namespace lockstep::comm::mpi
