#include "planning/slower_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/cuda/gpu_kind.h"
#include "kernels/cuda/planned.h"

namespace lockstep::planning {
namespace {

// Small ops take no time by any kernel.
constexpr int64_t kElements = 4096;

const ops::KernelEntry* entry_of(const ops::KernelCatalog& catalog, const ir::Op& op, Dtype result) {
    const auto at = std::find_if(catalog.entries.begin(), catalog.entries.end(), [&](const ops::KernelEntry& e) {
        return e.op == op.kind && e.kernel == op.kernel && e.dtype == result;
    });
    return at == catalog.entries.end() ? nullptr : &*at;
}

class Finder {
public:
    Finder(const Machine& machine, const mesh::Mesh& mesh) : machine_(machine), mesh_(mesh) {}

    std::optional<SlowerKernel> slower(const ir::Routine& r, const ir::Op& op) const {
        const ops::KernelCatalog& catalog = machine_.options.catalog;
        const ir::Tensor& result = r.tensors[op.out[0]];
        const ops::KernelEntry* own = entry_of(catalog, op, result.dtype);
        if (!own || ir::local_elements(mesh_, r, result) < kElements) return std::nullopt;
        if (std::string reason = why_parts(op); !reason.empty())
            return SlowerKernel{std::string(ir::kScaledEinsum), op.kernel, "cublaslt.scaled_matmul", reason};
        for (const ops::KernelEntry* e = catalog.entries.data(); e != own; ++e) {
            if (e->op != op.kind || e->kernel == own->kernel) continue;
            const bool is_of_another_type = e->dtype != result.dtype;
            if (is_of_another_type ? !own->is_reference || e->is_reference : !e->serves || e->serves(mesh_, r, op)) continue;
            // A kernel that says nothing of itself is not made for such an op at all: a library's product, of a sum of rows.
            const std::string reason = why(r, op, is_of_another_type);
            if (!reason.empty()) return SlowerKernel{op.kind, op.kernel, e->kernel, reason};
        }
        return std::nullopt;
    }

private:
    std::string why(const ir::Routine& r, const ir::Op& op, bool is_of_another_type) const {
        if (machine_.cluster && machine_.cluster->runs_module()) {
            std::string of_cudnn = kernels::cuda::why_not_cudnn(mesh_, r, op, machine_.cluster->module.compute_capability);
            if (!of_cudnn.empty()) return of_cudnn;
        }
        return is_of_another_type ? fmt::format("it has no {}", name_of(r.tensors[op.out[0]].dtype)) : "";
    }

    // Of a part of a product of float8 on a GPU; not where the recipe asks for parts.
    std::string why_parts(const ir::Op& op) const {
        if (!machine_.cluster || !machine_.cluster->runs_module()) return "";
        const int capability = machine_.cluster->module.compute_capability;
        const std::vector<ops::KernelEntry>& all = machine_.options.catalog.entries;
        const bool has_whole = std::any_of(all.begin(), all.end(), [](const auto& e) { return e.op == ir::kScaledEinsum; });
        return has_whole || !kernels::cuda::has_float8(capability) ? kernels::cuda::why_not_float8(op, capability) : "";
    }

    const Machine& machine_;
    const mesh::Mesh& mesh_;
};

}  // namespace

std::vector<SlowerKernel> slower_kernels(const Plan& plan) {
    std::vector<SlowerKernel> out;
    if (!plan.cluster.stack.name.empty()) return out;
    std::set<std::tuple<std::string, std::string, std::string>> seen;
    for (const ir::Program& p : plan.compiled.programs) {
        const Finder finder(plan.machine, p.mesh);
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (op.out.empty()) continue;
                std::optional<SlowerKernel> found = finder.slower(r, op);
                if (found && seen.insert({found->op, found->kernel, found->why}).second) out.push_back(std::move(*found));
            }
        }
    }
    return out;
}

std::string text_of(const SlowerKernel& k) {
    return fmt::format("{} serves in place of {}, which is faster: {}", k.kernel, k.faster, k.why);
}

}  // namespace lockstep::planning
