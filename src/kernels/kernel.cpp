#include "kernels/kernel.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::kernels {

std::unique_ptr<Kernel> make_kernel(const KernelContext& context) {
    for (auto make : {make_reference_kernel, make_cpu_kernel}) {
        if (std::unique_ptr<Kernel> kernel = make(context)) return kernel;
    }
    throw InternalError(
        fmt::format("no backend has the kernel {} of {} in {}", context.op.kernel, context.op.kind, context.routine.name));
}

}  // namespace lockstep::kernels
