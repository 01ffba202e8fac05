#include "kernels/kernel.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "kernels/cpu/isa.h"

namespace lockstep::kernels {
namespace {

ops::KernelEntry entry_of(const Registered& r, int threads) {
    ops::KernelEntry e{r.op, r.result, r.kernel, r.accumulates, r.in_place, {}, {}};
    e.serves = [&r, threads](const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op) {
        const KernelContext c{mesh, routine, op, 0, threads};
        return r.takes(c) && (!r.serves || r.serves(c));
    };
    if (r.workspace_bytes) {
        e.workspace_bytes = [&r, threads](const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op) {
            return r.workspace_bytes({mesh, routine, op, 0, threads});
        };
    }
    return e;
}

std::vector<const std::vector<Registered>*>& backends() {
    static std::vector<const std::vector<Registered>*> all = {&cpu_kernels(), &reference_kernels()};
    return all;
}

void add(const std::vector<Registered>& kernels, const InstructionSets& has, bool slower, ops::KernelCatalog& catalog) {
    for (const Registered& r : kernels) {
        const bool is_slower = r.is_slower && r.is_slower(has), is_available = !r.is_available || r.is_available(has);
        if (!is_available || is_slower != slower) continue;
        catalog.entries.push_back(entry_of(r, catalog.threads));
        catalog.entries.back().is_reference = &kernels == &reference_kernels();
    }
}

}  // namespace

void add_to(ops::KernelCatalog& catalog, const std::vector<Registered>& kernels) { add(kernels, {}, false, catalog); }

void add_backend(const std::vector<Registered>& kernels) { backends().push_back(&kernels); }

ops::KernelCatalog reference_catalog() {
    ops::KernelCatalog catalog;
    catalog.name = "reference";
    add_to(catalog, reference_kernels());
    return catalog;
}

ops::KernelCatalog cpu_catalog(int threads, const InstructionSets& of) {
    ops::KernelCatalog catalog;
    catalog.name = "cpu";
    catalog.threads = threads;
    for (const bool slower : {false, true}) add(cpu_kernels(), of, slower, catalog);
    add_to(catalog, reference_kernels());
    return catalog;
}

ops::KernelCatalog cpu_catalog(int threads) { return cpu_catalog(threads, cpu::instruction_sets_here()); }

std::unique_ptr<Kernel> make_kernel(const KernelContext& context) {
    const std::string_view kernel = context.op.kernel, name = kernel.substr(0, kernel.find('@'));
    for (const std::vector<Registered>* backend : backends()) {
        for (const Registered& r : *backend) {
            if (name == r.kernel && context.op.kind == r.op && r.takes(context)) return r.make(context);
        }
    }
    throw InternalError(
        fmt::format("no backend has the kernel {} of {} in {}", context.op.kernel, context.op.kind, context.routine.name));
}

}  // namespace lockstep::kernels
