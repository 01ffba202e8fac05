#include "models/layers.h"

#include <cmath>

#include "models/blocks.h"
#include "ops/dropout.h"

namespace lockstep::models {

using ir::DimId;
using ir::PortRole;
using ir::TensorId;
using ops::Builder;

TensorId rms_norm(Builder& b, const std::string& name, TensorId x, TensorId weight, const char* over, double eps) {
    return b.op("rmsnorm", {x, weight}, {{name, b.dims(x)}, {name + ".rstd", Builder::without(b.dims(x), b.routine().dim(over))}},
                {{"eps", eps}, {"over", std::string(over)}})[0];
}

TensorId project(Builder& b, const std::string& name, TensorId x, const std::vector<std::string_view>& to, TensorId weight,
                 std::optional<TensorId> bias) {
    std::vector<DimId> rows = b.dims({"batch", "seq"});
    for (std::string_view d : to) rows.push_back(b.routine().dim(d));
    const TensorId product = b.einsum(bias ? name + "_product" : name, rows, {x, weight});
    return bias ? b.op("bias", {product, *bias}, {{name, rows}})[0] : product;
}

TensorId rope(Builder& b, const std::string& name, TensorId x, TensorId positions, ir::Attrs waves) {
    waves["sign"] = int64_t{1};
    return b.op("rope", {x, positions}, {{name, b.dims(x)}}, waves)[0];
}

TensorId attend(Builder& b, const Attention& a) {
    const TensorId k = as_keys(b, "k_all", a.k), v = as_keys(b, "v_all", a.v);
    const TensorId positions = as_keys(b, "pos_all", a.positions), documents = as_keys(b, "doc_all", a.documents);
    std::vector<TensorId> in = {a.q, k, v, a.positions, positions, a.documents, documents};
    ir::Attrs attrs = {{"scale", 1 / std::sqrt(static_cast<double>(a.head_dim))}, {"window", a.window}};
    if (a.dropout > 0) {
        in.push_back(input(b, PortRole::Noise));
        attrs.merge(ops::dropout_attrs(a.dropout, "attention"));
    }
    return b.op("attention", in, {{"o", b.dims(a.q)}, {"lse", b.dims({"batch", "seq", "kv_heads", "group"})}}, attrs)[0];
}

TensorId swiglu(Builder& b, const std::string& name, TensorId x, const SwigluWeights& w) {
    const std::vector<DimId> ffn = b.dims({"batch", "seq", "ffn"});
    const TensorId gate = b.einsum("gate", ffn, {x, w.gate}), up = b.einsum("up", ffn, {x, w.up});
    const TensorId act = b.op("swiglu", {gate, up}, {{"act", ffn}})[0];
    return b.einsum(name, b.dims({"batch", "seq", "hidden"}), {act, w.down});
}

}  // namespace lockstep::models
