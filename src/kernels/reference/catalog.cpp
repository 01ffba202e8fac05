#include <map>

#include "kernels/reference/reference.h"

namespace lockstep::kernels {
namespace {

template <class T>
std::unique_ptr<Kernel> make_float(const KernelContext& c) {
    using namespace reference;
    using Make = Made (*)(const KernelContext&);
    static const std::map<std::string_view, Make> makers = {{"einsum", make_einsum<T>},
                                                            {"add", make_elementwise<T>},
                                                            {"scale", make_elementwise<T>},
                                                            {"unary", make_elementwise<T>},
                                                            {"gather", make_embedding<T>},
                                                            {"scatter", make_embedding<T>},
                                                            {"pick", make_embedding<T>},
                                                            {"unpick", make_embedding<T>},
                                                            {"rope", make_rope<T>},
                                                            {"attention", make_attention<T>},
                                                            {"attention_backward", make_attention<T>},
                                                            {"max", make_loss<T>},
                                                            {"exp_shifted", make_loss<T>},
                                                            {"mask_padding", make_loss<T>},
                                                            {"adamw", make_optimizer<T>},
                                                            {"zero_padding", make_optimizer<T>},
                                                            {"inverse_count", make_optimizer<T>}};
    const auto it = makers.find(c.op.kind);
    return it == makers.end() ? nullptr : it->second(c);
}

}  // namespace

ops::KernelCatalog reference_catalog() {
    ops::KernelCatalog catalog{"reference", {}};
    const auto add = [&](const char* op, Dtype dtype, int accumulates, bool in_place) {
        catalog.entries.push_back({op, dtype, std::string("reference.") + op, accumulates, in_place, {}, {}});
    };
    for (Dtype t : {Dtype::F32, Dtype::F64}) {
        for (const char* op : {"einsum", "scatter"}) add(op, t, 0, false);
        for (const char* op : {"add", "scale", "unary", "mask_padding"}) add(op, t, -1, true);
        for (const char* op : {"gather", "pick", "unpick", "rope", "attention", "attention_backward", "max", "exp_shifted",
                               "adamw", "zero_padding", "inverse_count"})
            add(op, t, -1, false);
    }
    for (Dtype t : {Dtype::F32, Dtype::F64, Dtype::I32}) {
        for (const char* op : {"rename", "copy", "slice", "accumulate"}) add(op, t, -1, false);
    }
    for (const char* op : {"sum_squares", "owned", "step_control"}) add(op, Dtype::F64, 0, false);
    return catalog;
}

std::unique_ptr<Kernel> make_reference_kernel(const KernelContext& c) {
    if (!c.op.kernel.starts_with("reference.")) return nullptr;
    const std::string& kind = c.op.kind;
    if (kind == "rename" || kind == "copy" || kind == "slice" || kind == "accumulate") return reference::make_movement(c);
    if (kind == "sum_squares" || kind == "owned" || kind == "step_control") return reference::make_scalars(c);
    return c.out(0).dtype == Dtype::F64 ? make_float<double>(c) : make_float<float>(c);
}

}  // namespace lockstep::kernels
