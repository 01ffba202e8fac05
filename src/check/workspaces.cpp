#include "check/workspaces.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "ops/rule.h"

namespace lockstep::check {

std::string wrong_workspaces(const ir::Program& p, const ops::KernelCatalog& kernels) {
    std::multimap<std::string_view, const ops::KernelEntry*> by_name;
    for (const ops::KernelEntry& e : kernels.entries) by_name.emplace(e.kernel, &e);
    for (const ir::Routine& r : p.routines) {
        for (size_t i = 0; i < r.ops.size(); ++i) {
            const ir::Op& op = r.ops[i];
            if (ops::rule(op.kind).collective || op.kernel == ir::kDeviceCopy) continue;
            const ops::KernelEntry* kernel = nullptr;
            for (auto [at, end] = by_name.equal_range(op.kernel); at != end && !kernel; ++at) {
                const ops::KernelEntry& e = *at->second;
                const bool serves = e.op == op.kind && e.dtype == r.tensors[op.out[0]].dtype;
                if (serves && (!e.serves || e.serves(p.mesh, r, op))) kernel = &e;
            }
            if (!kernel)
                return fmt::format("{}, op {} {}: the catalog {} has no kernel {} for it", r.name, i, op.kind, kernels.name,
                                   op.kernel);
            const int64_t needed = kernel->workspace_bytes ? kernel->workspace_bytes(p.mesh, r, op) : 0;
            if (op.workspace_bytes < needed)
                return fmt::format("{}, op {} {}: the kernel {} needs {} bytes of workspace and has {}", r.name, i, op.kind,
                                   op.kernel, needed, op.workspace_bytes);
        }
    }
    return "";
}

}  // namespace lockstep::check
