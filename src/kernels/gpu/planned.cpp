#include "kernels/gpu/any_type_kernels.h"
#include "kernels/gpu/catalog.h"
#include "kernels/gpu/typed_kernels.h"

namespace lockstep::kernels::gpu {
namespace {

struct Planned : Backend {
    static constexpr bool kPlansOnly = true;
};

}  // namespace

const std::vector<Registered>& planned_kernels() {
    static const std::vector<Registered> all = [] {
        std::vector<Registered> r;
        add_typed<Planned>(r);
        any_type::add<Planned>(r);
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels::gpu
