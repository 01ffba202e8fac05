#include "passes/select_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "ops/builder.h"
#include "ops/described_catalog.h"
#include "ops/expand.h"
#include "passes/fuse_ops.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

bool serves(const ops::KernelEntry& e, const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    return e.op == op.kind && e.dtype == r.tensors[op.out[0]].dtype && (!e.serves || e.serves(mesh, r, op));
}

// Seconds by the catalog's table, operands in memory; infinity where no row speaks of this kernel.
double table_s(const mesh::Mesh& mesh, const Routine& r, Op op, const std::string& kernel, const ops::KernelCatalog& catalog) {
    op.kernel = kernel;
    const ops::OpCost cost = ops::cost_of(*catalog.costs, ops::cost_key(mesh, r, op, catalog.threads), 1);
    return cost.measured ? cost.core_s : std::numeric_limits<double>::infinity();
}

const ops::KernelEntry* find_kernel(const mesh::Mesh& mesh, const Routine& r, const Op& op, const ops::KernelCatalog& catalog) {
    const ops::KernelEntry* best = nullptr;
    const bool measured = catalog.costs && !catalog.costs->rows.empty();
    double least_s = 0;
    for (const ops::KernelEntry& e : catalog.entries) {
        if (!serves(e, mesh, r, op)) continue;
        if (best && !measured) break;
        const double time_s = measured ? table_s(mesh, r, op, e.kernel, catalog) : 0;
        if (!best || (std::isfinite(least_s) && time_s < least_s)) best = &e, least_s = time_s;
    }
    return best;
}

// A catalog of a file or of a GPU may lack what this op needs; the host's does not.
[[noreturn]] void refuse(const ops::KernelCatalog& catalog, const Routine& r, const Op& op) {
    const std::optional<Dtype> stored = ops::stored_as(r, op);
    const std::string what = fmt::format("{} on {}", op.kind, stored ? name_of(*stored) : "bf16 and f16");
    ensure(!catalog.origin.empty(), fmt::format("select_kernels: catalog {} has no kernel for {}", catalog.name, what));
    constexpr std::string_view kOfFloat8[] = {ir::kAmax,        ir::kToFloat8,    ir::kToBlocks,   ir::kFromFloat8,
                                              ir::kFloat8Scale, ir::kApplyScales, ir::kMemberAmax, ir::kMemberFloat8};
    if (std::find(std::begin(kOfFloat8), std::end(kOfFloat8), op.kind) != std::end(kOfFloat8))
        throw UserError("catalog.no_kernel", "model.converters",
                        fmt::format("{}: none of the kernels of {} serves {}, which model.converters asks for: leave it out",
                                    catalog.origin, catalog.name, what));
    const bool is_file = std::string_view(catalog.key) == "cluster.file";
    throw UserError("catalog.no_kernel", catalog.key,
                    fmt::format("{}: none of the kernels of {} serves {} (in {}): {}, or train in a type that they serve "
                                "(training.mixed_precision_param)",
                                catalog.origin, catalog.name, what, r.name,
                                is_file ? "add the op to a [[catalog]] table" : "choose runtime.kernels = \"cpu\""));
}

// Expands until every op has a kernel.
void choose(const mesh::Mesh& mesh, Routine& r, const ops::KernelCatalog& catalog) {
    ops::expand_unserved(r, [&](Op& op) {
        if (op.kernel == ir::kDeviceCopy) return true;
        if (ops::rule(op.kind).collective) {
            op.kernel = "comm";
            return true;
        }
        const ops::KernelEntry* e = find_kernel(mesh, r, op, catalog);
        if (!e) {
            if (!ops::rule(op.kind).expand) refuse(catalog, r, op);
            return false;
        }
        op.kernel = e->kernel;
        op.workspace_bytes = e->workspace_bytes ? e->workspace_bytes(mesh, r, op) : 0;
        if (e->in_place && ops::rule(op.kind).memory.in_place >= 0) op.attrs["in_place"] = int64_t{1};
        return true;
    });
}

// grad += x, where x is made for nothing else: the op that makes x adds by itself.
void fold_accumulates(const mesh::Mesh& mesh, Routine& r, const ops::KernelCatalog& catalog) {
    std::vector<int> uses(r.tensors.size(), 0);
    for (const Op& op : r.ops) {
        for (TensorId t : op.in) ++uses[t];
    }
    std::vector<bool> folded(r.ops.size(), false);
    for (size_t i = 0; i < r.ops.size(); ++i) {
        if (!ops::rule(r.ops[i].kind).accumulates) continue;
        const TensorId x = r.ops[i].in[0], target = r.ops[i].out[0];
        if (uses[x] != 1 || r.tensors[x].dtype != r.tensors[target].dtype || r.tensors[x].port >= 0) continue;
        for (size_t k = 0; k < i; ++k) {
            Op& maker = r.ops[k];
            const auto at = std::find(maker.out.begin(), maker.out.end(), x);
            if (at == maker.out.end() || ops::rule(maker.kind).collective) continue;
            const ops::KernelEntry* e = find_kernel(mesh, r, maker, catalog);
            if (!e || e->accumulates != static_cast<int>(at - maker.out.begin())) continue;
            maker.accumulate.push_back(static_cast<int>(at - maker.out.begin()));
            *at = target;
            folded[i] = true;
        }
    }
    std::vector<Op> kept;
    for (size_t i = 0; i < r.ops.size(); ++i) {
        if (!folded[i]) kept.push_back(std::move(r.ops[i]));
    }
    r.ops = std::move(kept);
}

}  // namespace

void select_kernels(const mesh::Mesh& mesh, Routine& routine, const ops::KernelCatalog& catalog) {
    const auto serves = [&](const Routine& r, const Op& op) { return find_kernel(mesh, r, op, catalog) != nullptr; };
    fuse_ops(routine, serves, catalog.gives_more);
    choose(mesh, routine, catalog);
    fold_accumulates(mesh, routine, catalog);
    ops::renumber(routine);
}

void select_kernels(const ir::Program& program, Routine& routine, const ops::KernelCatalog& catalog) {
    for (Op& op : routine.ops) {
        if (ir::leaves_device(program, routine, op)) op.kernel = ir::kDeviceCopy;
    }
    select_kernels(program.mesh, routine, catalog);
}

ir::Program select_kernels(ir::Program program, const ops::KernelCatalog& catalog) {
    for (Routine& r : program.routines) select_kernels(program, r, catalog);
    return program;
}

double expected_s(const mesh::Mesh& mesh, const Routine& r, const Op& op, const ops::KernelCatalog& catalog) {
    if (ops::rule(op.kind).collective) return ops::collective_cost(*catalog.costs, mesh, r, op).time_s;
    Op chosen = op;
    if (const ops::KernelEntry* e = find_kernel(mesh, r, op, catalog)) chosen.kernel = e->kernel;
    return ops::cost_of(*catalog.costs, ops::cost_key(mesh, r, chosen, catalog.threads), 1).core_s;
}

}  // namespace lockstep::passes
