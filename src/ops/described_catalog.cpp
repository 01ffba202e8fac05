#include "ops/described_catalog.h"

#include <algorithm>
#include <cmath>

namespace lockstep::ops {
namespace {

constexpr std::string_view kColumns = "columns";

// Of the op's first dim with the role, on one rank; 1 if it has none.
int64_t local_size_of(const mesh::Mesh& mesh, const Routine& r, const Op& op, std::string_view role) {
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (const TensorId id : *list) {
            const ir::Tensor& t = r.tensors[id];
            for (size_t i = 0; i < t.dims.size(); ++i) {
                if (name_of(r.dims[t.dims[i]].role) == role) return ir::local_size(mesh, r, t, static_cast<int>(i));
            }
        }
    }
    return 1;
}

int64_t bytes_of(const WorkspaceTerm& term, const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    if (term.only_grouped && local_size_of(mesh, r, op, name_of(ir::DimRole::Group)) == 1) return 0;
    double bytes = term.bytes;
    for (const std::string& size : term.per) {
        bytes *= size == kColumns ? cost_key(mesh, r, op, 1).sizes.back() : static_cast<double>(local_size_of(mesh, r, op, size));
    }
    return static_cast<int64_t>(std::ceil(bytes));
}

KernelEntry entry_of(const DescribedKernel& k, const std::string& op, Dtype result) {
    KernelEntry e{op, result, k.kernel, k.accumulates, k.in_place, {}, {}};
    if (!k.types.empty() || k.only_products) {
        e.serves = [types = k.types, only_products = k.only_products](const mesh::Mesh& mesh, const Routine& r, const Op& op) {
            MatmulShape shape;
            if (only_products && !is_matmul(mesh, r, op, &shape)) return false;
            const std::optional<Dtype> stored = stored_as(r, op);
            return types.empty() || (stored && std::find(types.begin(), types.end(), *stored) != types.end());
        };
    }
    if (!k.workspace.empty()) {
        e.workspace_bytes = [terms = k.workspace](const mesh::Mesh& mesh, const Routine& r, const Op& op) {
            int64_t sum = 0;
            for (const WorkspaceTerm& term : terms) sum += bytes_of(term, mesh, r, op);
            return sum;
        };
    }
    return e;
}

}  // namespace

const std::vector<std::string>& workspace_sizes() {
    static const std::vector<std::string> names = [] {
        using enum ir::DimRole;
        std::vector<std::string> all;
        for (const ir::DimRole role : {Batch, Seq, KvSeq, Hidden, KvHeads, Group, HeadDim, Ffn, Vocab})
            all.emplace_back(name_of(role));
        all.emplace_back(kColumns);
        return all;
    }();
    return names;
}

std::optional<Dtype> stored_as(const Routine& r, const Op& op) {
    std::optional<Dtype> narrow, wide;  // the narrowest of the wide ones
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (const TensorId tensor : *list) {
            const Dtype t = r.tensors[tensor].dtype;
            if (!is_float(t)) continue;
            if (is_narrow(t) && narrow && *narrow != t) return std::nullopt;
            std::optional<Dtype>& found = is_narrow(t) ? narrow : wide;
            if (!found || bytes_of(t) < bytes_of(*found)) found = t;
        }
    }
    return narrow ? narrow : wide ? wide : Dtype::I32;
}

KernelCatalog described_catalog(const std::string& name, const std::string& origin, const std::vector<DescribedKernel>& kernels) {
    KernelCatalog catalog;
    catalog.name = name, catalog.origin = origin, catalog.gives_more = false;
    for (const DescribedKernel& k : kernels) {
        for (const std::string& op : k.ops) {
            for (const Dtype result : kDtypes) catalog.entries.push_back(entry_of(k, op, result));
        }
    }
    return catalog;
}

KernelRates rates_of(const std::vector<DescribedKernel>& kernels) {
    KernelRates out;
    for (const DescribedKernel& k : kernels) {
        for (const std::string& op : k.ops) out.try_emplace({op, k.kernel}, k.rate);
    }
    return out;
}

}  // namespace lockstep::ops
