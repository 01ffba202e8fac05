#include "models/blocks.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::models {

using ir::Access;
using ir::PortKind;
using ir::TensorId;
using ops::Builder;

namespace {
constexpr int64_t kLargest = 1 << 30;  // of any number in a shape: products of two fit in 64 bits
}

int64_t integer(const ir::Attrs& shape, const char* key) { return std::get<int64_t>(shape.at(key)); }
double number(const ir::Attrs& shape, const char* key) { return std::get<double>(shape.at(key)); }

void refuse(const std::string& id, const std::string& key, const std::string& message) {
    throw UserError(id, "model." + key, message);
}

void check_range(const ir::Attrs& shape, std::initializer_list<const char*> positive) {
    for (const char* key : positive) {
        if (integer(shape, key) < 1)
            refuse("model.not_positive", key, fmt::format("model.{} = {}: must be at least 1", key, integer(shape, key)));
    }
    for (const auto& [key, value] : shape) {
        const auto* n = std::get_if<int64_t>(&value);
        if (n && (*n < 0 || *n > kLargest))
            refuse("model.out_of_range", key, fmt::format("model.{} = {}: must lie between 0 and {}", key, *n, kLargest));
    }
}

int64_t head_dim_of(const ir::Attrs& shape) {
    const int64_t dim = integer(shape, "dim"), heads = integer(shape, "n_heads");
    if (integer(shape, "head_dim") > 0) return integer(shape, "head_dim");
    if (dim % heads != 0) {
        refuse("model.head_dim", "n_heads",
               fmt::format("model.dim = {} is not a multiple of model.n_heads = {}: set model.head_dim, or choose a divisor", dim,
                           heads));
    }
    return dim / heads;
}

void check_norm_eps(const ir::Attrs& shape) {
    const double eps = number(shape, "norm_eps");
    if (!(eps >= 0 && eps < 1))
        refuse("model.norm_eps", "norm_eps", fmt::format("model.norm_eps = {}: must lie between 0 and 1", eps));
}

ir::Routine Blocks::start(const std::string& name, int64_t count) {
    model_.blocks.push_back({name, count});
    ir::Routine r;
    r.name = name + ".forward";
    r.block = name;
    r.dims = dims_;
    return r;
}

void Blocks::finish(ir::Routine r, TensorId result, const std::string& port) {
    r.tensors[result].port = static_cast<int>(r.ports.size());
    r.tensors[result].name = port;
    r.ports.push_back({port, PortKind::Value, Access::Write, "", -1});
    model_.routines.push_back(std::move(r));
}

TensorId Blocks::param(Builder& b, const std::string& key, const std::vector<std::string_view>& dims, const std::string& name,
                       const Init& init) {
    std::vector<ir::DimId> ids;
    for (std::string_view d : dims) ids.push_back(b.dims({d})[0]);
    bool known = false;
    for (const ir::Parameter& p : model_.params) known = known || p.key == key;
    if (!known) {
        ir::Parameter p{key, b.routine().block, name, Dtype::F32, {}, {}, init.decay, init.values};
        for (ir::DimId d : ids) p.dims.push_back(b.routine().dims[d]);
        model_.params.push_back(std::move(p));
    }
    return b.port_tensor("params", PortKind::Params, Access::Read, key, ids, key);
}

TensorId input(Builder& b, const std::string& name) {
    return b.port_tensor(name, PortKind::Input, Access::Read, name, b.dims({"batch", "seq"}), name, Dtype::I32);
}

TensorId as_keys(Builder& b, const std::string& name, TensorId x) {
    std::vector<ir::DimId> dims = b.dims(x);
    dims[1] = b.routine().dim("kv_seq");
    return b.op("rename", {x}, {{name, dims, b.tensor(x).dtype}})[0];
}

}  // namespace lockstep::models
