#include "kernels/cuda/planned.h"

#include <fmt/format.h>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/product_kernels.h"
#include "kernels/gpu/catalog.h"
#include "ops/rule.h"

namespace lockstep::kernels::cuda {
namespace {

struct Products {
    static constexpr const char* kName = kProductsName;
    static constexpr bool kPlansOnly = true;
};
template <GpuKind kind>
struct Attention {
    static constexpr const char* kName = kAttentionName;
    static constexpr bool kPlansOnly = true;
    static std::optional<int64_t> workspace_bytes(const AttentionProblem& p) {
        return attention_bytes_of_cudnn(p, compute_capability_of(kind));
    }
};
// What depends on the GPU.
struct Libraries {
    std::vector<Registered> products, attention;
};
// f.operator()<kind>(), of the GPU.
template <class F>
auto of_kind(int compute_capability, F f) {
    switch (kind_of(compute_capability)) {
        case GpuKind::Ampere: return f.template operator()<GpuKind::Ampere>();
        case GpuKind::Ada: return f.template operator()<GpuKind::Ada>();
        case GpuKind::Hopper: return f.template operator()<GpuKind::Hopper>();
        case GpuKind::Blackwell: return f.template operator()<GpuKind::Blackwell>();
        case GpuKind::Consumer: break;
    }
    return f.template operator()<GpuKind::Consumer>();
}
template <GpuKind kind>
const Libraries& libraries() {
    static const Libraries all = {list_of_products<Products>(compute_capability_of(kind)), list_of_attention<Attention<kind>>()};
    return all;
}

template <GpuKind kind, class T>
std::string text_of(const KernelContext& c, size_t query) {
    using Planned = Attention<kind>;
    const AttentionShape shape = problem_of<T>(c, query).shape;
    switch (why_not_cudnn<Planned, T>(c, query)) {
        case NotByCudnn::Served: return "";
        case NotByCudnn::SeveralDocuments: return "a sequence has several documents (training.document_mask)";
        case NotByCudnn::Dropout: return "attention has dropout (model.attn_pdrop)";
        case NotByCudnn::Window: return "context ranks divide attention in a window (model.sliding_window)";
        case NotByCudnn::Divided: return "context ranks divide its tokens in a way that cuDNN is not asked for";
        case NotByCudnn::Length:
            if (c.mesh.size(c.in(query).placement.dims[1]) > 1)
                return fmt::format(
                    "{} tokens of a sequence on each context rank, or half of them, are no multiple of {}, or fewer than {}",
                    shape.seq, kSeqMultiple, kLeastSeq);
            return fmt::format("sequences of {} tokens are no multiple of {}, or fewer than {}", shape.seq, kSeqMultiple,
                               kLeastSeq);
        case NotByCudnn::HeadDim:
            return fmt::format("heads of {} elements are no multiple of {}, or more than {}", shape.head_dim, kHeadDimMultiple,
                               kMostHeadDim);
        case NotByCudnn::NoPlan:
            return fmt::format("on this GPU cuDNN has no backward for heads of more than {} elements", kMostHeadDimBackward);
        case NotByCudnn::Workspace: break;
    }
    constexpr double kGib = 1 << 30;
    const DividedAttention divided = divided_attention<T>(c, query).value();
    const auto needed = static_cast<double>(most_bytes(divided, Planned::workspace_bytes, divides(c)).value());
    return fmt::format(
        "cuDNN would need {:.1f} GiB of workspace for one key head and {} tokens, and its limit is {:.0f} GiB. Shorter sequences "
        "need less (training.seq_len), and so do fewer query heads for each key head (model.n_kv_heads)",
        needed / kGib, shape.seq, static_cast<double>(kAttentionWorkspaceBytes) / kGib);
}
template <GpuKind kind>
std::string text_of(const KernelContext& c, size_t query) {
    switch (c.in(query).dtype) {
        case Dtype::BF16: return text_of<kind, Bf16>(c, query);
        case Dtype::F16: return text_of<kind, F16>(c, query);
        default: return fmt::format("cuDNN has no attention in {}", name_of(c.in(query).dtype));
    }
}

}  // namespace

std::string why_not_cudnn(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op, int compute_capability) {
    const int queries = ops::rule(op.kind).queries;
    if (queries < 0) return "";
    const KernelContext c{mesh, routine, op, 0, 1};
    const auto query = static_cast<size_t>(queries);
    return of_kind(compute_capability, [&]<GpuKind kind>() { return text_of<kind>(c, query); });
}

std::string why_not_float8(const ir::Op& op, int compute_capability) {
    if (op.kind != ir::kEinsum || op.note != "from scaled_einsum") return "";
    if (!has_float8(compute_capability))
        return fmt::format("GPUs of compute capability {}.{} have no products of float8", compute_capability / 10,
                           compute_capability % 10);
    const char* scales = "one scale each";
    if (kind_of(compute_capability) == GpuKind::Hopper)
        scales = "a scale for all, each row, each 128 elements of a row or each 128 x 128";
    if (kind_of(compute_capability) == GpuKind::Blackwell)
        scales = "a scale for all or each row, or a power of two for each 32 elements of a row";
    return fmt::format("it takes factors with {}, and sizes that are multiples of {}", scales, kFloat8Block);
}

ops::KernelCatalog catalog_of(const std::vector<const std::vector<Registered>*>& kernels) {
    ops::KernelCatalog catalog;
    catalog.name = "gpu", catalog.loss_chunk_tokens = 8192;
    for (const std::vector<Registered>* list : kernels) add_to(catalog, *list);
    return catalog;
}

ops::KernelCatalog planned_catalog(const std::string& origin, int compute_capability) {
    const Libraries& vendor = *of_kind(compute_capability, []<GpuKind kind>() { return &libraries<kind>(); });
    ops::KernelCatalog catalog = catalog_of({&vendor.products, &vendor.attention, &gpu::planned_kernels()});
    catalog.origin = origin;
    return catalog;
}

}  // namespace lockstep::kernels::cuda
