#include "models/blocks.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::models {

using ir::Access;
using ir::PortKind;
using ir::TensorId;
using ops::Builder;

int64_t integer(const ir::Attrs& shape, const char* key) { return std::get<int64_t>(shape.at(key)); }
double number(const ir::Attrs& shape, const char* key) { return std::get<double>(shape.at(key)); }

void refuse(const std::string& id, const std::string& key, const std::string& message) {
    throw UserError(id, "model." + key, message);
}

std::vector<ModelKey> common_keys(const CommonShape& d) {
    return {{"dim", d.dim, "width of the residual stream", from_to(1, kLargest)},
            {"n_layers", d.layers, "number of transformer layers", from_to(1, kMostLayers)},
            {"n_heads", d.heads, "query heads", from_to(1, kLargest)},
            {"head_dim", d.head_dim, "width of a head; 0: dim / n_heads", from_to(0, kLargest)},
            {"vocab_size", d.vocab, "size of the vocabulary; set by the tokenizer of the data where one is given",
             from_to(2, kLargest)},
            {"norm_eps", d.norm_eps, "epsilon of every norm", from_below(0, 1)},
            {"tie_embeddings", int64_t{d.tied}, "1: the output projection is the embedding table", from_to(0, 1)}};
}

CommonShape read_common(const ir::Attrs& a) {
    CommonShape s{integer(a, "dim"),
                  integer(a, "n_layers"),
                  integer(a, "n_heads"),
                  integer(a, "head_dim"),
                  integer(a, "vocab_size"),
                  number(a, "norm_eps"),
                  integer(a, "tie_embeddings") != 0};
    if (s.head_dim > 0) return s;
    if (s.dim % s.heads != 0) {
        refuse("model.head_dim", "n_heads",
               fmt::format("model.dim = {} is not a multiple of model.n_heads = {}: set model.head_dim, or choose a divisor",
                           s.dim, s.heads));
    }
    s.head_dim = s.dim / s.heads;
    return s;
}

ir::Routine Blocks::start(const std::string& name, int64_t count, int64_t first) {
    model_.blocks.push_back({name, count, first, {}});
    ir::Routine r;
    r.name = name + ".forward";
    r.block = name;
    r.dims = dims_;
    return r;
}

void Blocks::finish(Builder& b, TensorId result, ir::PortRole port) {
    const std::string name(name_of(port));
    b.routine().tensors[result].name = name;
    b.leave(result, {name, PortKind::Value, Access::Write, port});
    model_.routines.push_back(std::move(b.routine()));
}

TensorId Blocks::param(Builder& b, const std::string& key, const std::vector<std::string_view>& dims, const std::string& name,
                       const Init& init) {
    std::vector<ir::DimId> ids;
    for (std::string_view d : dims) ids.push_back(b.dims({d})[0]);
    bool known = false;
    for (const ir::Parameter& p : model_.params) known = known || p.key == key;
    if (!known) {
        ir::Parameter p{key, b.routine().block, name, Dtype::F32, {}, {}, init.decay, init.values, false, false, {}};
        for (ir::DimId d : ids) p.dims.push_back(b.routine().dims[d]);
        model_.params.push_back(std::move(p));
    }
    return b.port_tensor("params", PortKind::Params, Access::Read, key, ids, key);
}

TensorId input(Builder& b, ir::PortRole role) {
    return b.port(role, PortKind::Input, Access::Read, b.dims({ir::DimRole::Batch, ir::DimRole::Seq}), Dtype::I32);
}

TensorId as_keys(Builder& b, const std::string& name, TensorId x) {
    std::vector<ir::DimId> dims = b.dims(x);
    dims[1] = b.routine().dim(ir::DimRole::KvSeq);
    return b.op("rename", {x}, {{name, dims, b.tensor(x).dtype}})[0];
}

}  // namespace lockstep::models
