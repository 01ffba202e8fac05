#include "kernels/gpu/catalog.h"

#include "kernels/gpu/any_type_kernels.h"
#include "kernels/gpu/typed_kernels.h"

namespace lockstep::kernels::gpu {

const std::vector<Registered>& all_kernels() {
    static const std::vector<Registered> all = [] {
        std::vector<Registered> r;
        add_typed<Backend>(r);
        any_type::add<Backend>(r);
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels::gpu
