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
template <int compute_capability>
const std::vector<Registered>& attention() {
    static const std::vector<Registered> all = list_of_attention<Attention<compute_capability>>();
    return all;
}
const std::vector<Registered>& attention_of(int compute_capability) {
    return compute_capability >= 100 ? attention<100>() : compute_capability >= 90 ? attention<90>() : attention<80>();
}

}  // namespace

ops::KernelCatalog catalog_of(const std::vector<const std::vector<Registered>*>& kernels) {
    ops::KernelCatalog catalog;
    catalog.name = "gpu", catalog.loss_chunk_tokens = 4096;
    for (const std::vector<Registered>* list : kernels) add_to(catalog, *list);
    return catalog;
}

ops::KernelCatalog planned_catalog(const std::string& origin, int compute_capability) {
    static const std::vector<Registered> products = list_of_products<Products>();
    ops::KernelCatalog catalog = catalog_of({&products, &attention_of(compute_capability), &gpu::planned_kernels()});
    catalog.origin = origin;
    return catalog;
}

}  // namespace lockstep::kernels::cuda
