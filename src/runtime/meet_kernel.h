// The op `meet`, in which islands that are jobs of their own exchange their state.
#pragma once

#include <memory>

#include "comm/islands/member.h"
#include "kernels/kernel.h"

namespace lockstep::runtime {

// The kernel of `meet` on a rank: through the service, which the member knows. Both outlive it.
std::unique_ptr<kernels::Kernel> meet_through(comm::islands::Member& member, const kernels::KernelContext& context);

}  // namespace lockstep::runtime
