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
                                                            {"cast", make_elementwise<T>},
                                                            {"unary", make_elementwise<T>},
                                                            {"dropout", make_dropout<T>},
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
                                                            {"adam", make_optimizer<T>},
                                                            {"sgd", make_optimizer<T>},
                                                            {"muon_momentum", make_optimizer<T>},
                                                            {"muon", make_optimizer<T>},
                                                            {"zero_padding", make_optimizer<T>},
                                                            {"inverse_count", make_optimizer<T>},
                                                            {"accumulate", make_accumulate<T>}};
    const auto it = makers.find(c.op.kind);
    return it == makers.end() ? nullptr : it->second(c);
}

}  // namespace

ops::KernelCatalog reference_catalog() {
    ops::KernelCatalog catalog;
    catalog.name = "reference";
    const auto entry = [&](const char* op, Dtype dtype, int accumulates, bool in_place) -> ops::KernelEntry& {
        catalog.entries.push_back({op, dtype, std::string("reference.") + op, accumulates, in_place, {}, {}});
        return catalog.entries.back();
    };
    // First all floats of one type, then any mixture of types and narrow ones.
    const auto add = [&](const char* op, int accumulates, bool in_place) {
        for (Dtype t : {Dtype::F32, Dtype::F64}) {
            entry(op, t, accumulates, in_place).serves = [t](const mesh::Mesh&, const ir::Routine& r, const ir::Op& o) {
                return reference::has_one_float_type(r, o, t);
            };
        }
        for (Dtype t : {Dtype::F32, Dtype::F64, Dtype::BF16, Dtype::F16})
            entry(op, t, accumulates, in_place).workspace_bytes = reference::converting_workspace_bytes;
    };
    for (const char* op : {"einsum", "scatter"}) add(op, 0, false);
    for (const char* op : {"add", "scale", "unary", "dropout", "mask_padding"}) add(op, -1, true);
    for (const char* op : {"cast", "gather", "pick", "unpick", "rope", "attention", "attention_backward", "max", "exp_shifted",
                           "adamw", "adam", "sgd", "muon_momentum", "muon", "zero_padding", "inverse_count", "accumulate"})
        add(op, -1, false);
    for (Dtype t : kDtypes) {
        for (const char* op : {"rename", "copy", "slice", "append", "reshape", "pack", "unpack"}) entry(op, t, -1, false);
    }
    for (const char* op : {"sum_squares", "owned", "step_control", "update_loss_scale"}) entry(op, Dtype::F64, 0, false);
    return catalog;
}

std::unique_ptr<Kernel> make_reference_kernel(const KernelContext& c) {
    if (!c.op.kernel.starts_with("reference.")) return nullptr;
    const std::string& kind = c.op.kind;
    if (kind == "rename" || kind == "copy" || kind == "slice" || kind == "append" || kind == "reshape" || kind == "pack" ||
        kind == "unpack")
        return reference::make_movement(c);
    if (kind == "sum_squares" || kind == "owned" || kind == "step_control" || kind == "update_loss_scale")
        return reference::make_scalars(c);
    if (reference::has_one_float_type(c.routine, c.op, Dtype::F64)) return make_float<double>(c);
    if (reference::has_one_float_type(c.routine, c.op, Dtype::F32)) return make_float<float>(c);
    return reference::make_converting(c, make_float<double>);
}

}  // namespace lockstep::kernels
