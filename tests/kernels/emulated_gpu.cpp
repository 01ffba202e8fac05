#include "tests/kernels/emulated_gpu.h"

#include "kernels/gpu/catalog.h"

namespace lockstep::testing {

ops::KernelCatalog emulated_gpu_catalog(const std::vector<kernels::Registered>& rest, int threads) {
    [[maybe_unused]] static const bool once = (kernels::add_backend(kernels::gpu::all_kernels()), true);
    ops::KernelCatalog catalog;
    catalog.name = "gpu", catalog.threads = threads;
    for (const std::vector<kernels::Registered>* backend : {&kernels::gpu::all_kernels(), &rest, &kernels::reference_kernels()})
        add_to(catalog, *backend);
    return catalog;
}

}  // namespace lockstep::testing
