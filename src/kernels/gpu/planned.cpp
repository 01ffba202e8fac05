#include "kernels/gpu/all_kernels.h"
#include "kernels/gpu/catalog.h"

namespace lockstep::kernels::gpu {
namespace {

struct Planned : Backend {
    static constexpr bool kPlansOnly = true;
};

}  // namespace

const std::vector<Registered>& planned_kernels() {
    static const std::vector<Registered> all = list_of_all<Planned>();
    return all;
}

}  // namespace lockstep::kernels::gpu
