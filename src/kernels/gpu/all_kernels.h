// Which kernel of kernels/gpu serves which op.
#pragma once

#include "kernels/gpu/amax_kernels.h"
#include "kernels/gpu/any_type_kernels.h"
#include "kernels/gpu/float8_kernels.h"
#include "kernels/gpu/typed_kernels.h"

namespace lockstep::kernels::gpu {

// B: Backend, or one that plans only.
template <class B>
std::vector<Registered> list_of_all() {
    std::vector<Registered> r;
    add_typed<B>(r);
    any_type::add<B>(r);
    float8::add<B>(r);
    with_amax::add<B>(r);
    return r;
}

}  // namespace lockstep::kernels::gpu
