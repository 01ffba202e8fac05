#include "ops/verify_qkv.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/rule.h"

namespace lockstep::ops {
namespace {

using ir::DimRole;

// Where the dims of a list of rows begin, or -1.
int rows_of(const Routine& r, const ir::Tensor& t) {
    for (size_t i = 0; i < t.dims.size(); ++i) {
        if (r.dims[t.dims[i]].role == DimRole::Qkv) return static_cast<int>(i);
    }
    return -1;
}

// A list of rows, whole on its rank but for the rank's own heads.
std::string wrong_list(const Routine& r, const ir::Tensor& t, int first) {
    const auto at = static_cast<size_t>(first);
    const auto has = [&](size_t i, DimRole role) {  // or groups of such
        if (i >= t.dims.size()) return false;
        const ir::Dim& dim = r.dims[t.dims[i]];
        return (dim.of < 0 ? dim : r.dims[dim.of]).role == role;
    };
    if (!has(at + 1, DimRole::KvHeads) || !has(at + 2, DimRole::HeadDim))
        return fmt::format("{} has the dim qkv without kv_heads and head_dim behind it", t.name);
    if (t.placement.dims.size() != t.dims.size()) return "";  // not placed yet
    const bool cut = !t.placement.dims[at].empty() || !t.placement.dims[at + 2].empty();
    return cut ? fmt::format("{} is cut within its list of queries, keys and values", t.name) : "";
}

}  // namespace

std::string wrong_use_of_qkv(const Routine& r, const Op& op) {
    const OpRule& k = rule(op.kind);
    bool any = false;
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (const TensorId id : *list) {
            const ir::Tensor& t = r.tensors[id];
            const int first = rows_of(r, t);
            if (first < 0) continue;
            any = true;
            if (const std::string wrong = wrong_list(r, t, first); !wrong.empty()) return wrong;
            for (const char* attr : {"dim", "from", "to"}) {
                const auto dim = op.attrs.find(attr);
                if (dim == op.attrs.end() || !std::holds_alternative<int64_t>(dim->second)) continue;
                if (std::get<int64_t>(dim->second) >= first && std::get<int64_t>(dim->second) < first + 3)
                    return fmt::format("it joins or cuts {} along its list of queries, keys and values", t.name);
            }
        }
    }
    if (!any || k.sharding.takes_qkv_apart) return "";
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (const TensorId id : *list) {
            const ir::Tensor& t = r.tensors[id];
            const bool of_heads = std::any_of(t.dims.begin(), t.dims.end(), [&](DimId d) { return is_of_heads(r.dims[d].role); });
            if (of_heads && rows_of(r, t) < 0) return fmt::format("it reads queries, keys and values as the heads of {}", t.name);
        }
    }
    for (const DimId d : k.sharding.unsplit ? k.sharding.unsplit(r, op) : std::vector<DimId>{}) {
        if (d >= 0 && is_of_heads(r.dims[d].role))
            return fmt::format("it reads queries, keys and values along {}", r.dims[d].name);
    }
    return "";
}

}  // namespace lockstep::ops
