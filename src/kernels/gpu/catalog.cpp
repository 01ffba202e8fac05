#include "kernels/gpu/catalog.h"

#include "kernels/gpu/all_kernels.h"

namespace lockstep::kernels::gpu {

const std::vector<Registered>& all_kernels() {
    static const std::vector<Registered> all = list_of_all<Backend>();
    return all;
}

}  // namespace lockstep::kernels::gpu
