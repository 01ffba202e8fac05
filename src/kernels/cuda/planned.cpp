#include "kernels/cuda/planned.h"

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/product_kernels.h"
#include "kernels/gpu/catalog.h"

namespace lockstep::kernels::cuda {
namespace {

struct Products {
    static constexpr const char* kName = kProductsName;
    static constexpr bool kPlansOnly = true;
};
template <int compute_capability>
struct Attention {
    static constexpr const char* kName = kAttentionName;
    static constexpr bool kPlansOnly = true;
    static std::optional<int64_t> workspace_bytes(const AttentionProblem& p) {
        return attention_bytes_of_cudnn(p, compute_capability);
    }
};
// What depends on the GPU.
struct Libraries {
    std::vector<Registered> products, attention;
};
template <int compute_capability>
const Libraries& libraries() {
    static const Libraries all = {list_of_products<Products>(compute_capability),
                                  list_of_attention<Attention<compute_capability>>()};
    return all;
}
const Libraries& libraries_of(int compute_capability) {
    return compute_capability >= 100 ? libraries<100>() : compute_capability >= 90 ? libraries<90>() : libraries<80>();
}

}  // namespace

ops::KernelCatalog catalog_of(const std::vector<const std::vector<Registered>*>& kernels) {
    ops::KernelCatalog catalog;
    catalog.name = "gpu", catalog.loss_chunk_tokens = 4096;
    for (const std::vector<Registered>* list : kernels) add_to(catalog, *list);
    return catalog;
}

ops::KernelCatalog planned_catalog(const std::string& origin, int compute_capability) {
    const Libraries& vendor = libraries_of(compute_capability);
    ops::KernelCatalog catalog = catalog_of({&vendor.products, &vendor.attention, &gpu::planned_kernels()});
    catalog.origin = origin;
    return catalog;
}

}  // namespace lockstep::kernels::cuda
