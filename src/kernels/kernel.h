// One op of a program, made ready for one rank: sizes, strides, coordinates and tables are worked out once; run() allocates
// nothing. Backends (reference/, cpu/) register their kernels, and the compiler gets a catalog of them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/instruction_sets.h"
#include "device/queue.h"
#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::kernels {

struct KernelContext {
    const mesh::Mesh& mesh;
    const ir::Routine& routine;
    const ir::Op& op;
    int64_t rank;
    int threads;  // of the queue that run() will get

    const ir::Tensor& in(size_t i) const { return routine.tensors[op.in[i]]; }
    const ir::Tensor& out(size_t i) const { return routine.tensors[op.out[i]]; }
    int64_t elements(const ir::Tensor& t) const { return ir::local_elements(mesh, routine, t); }
    int64_t size(const ir::Tensor& t, int position) const { return ir::local_size(mesh, routine, t, position); }
    // By the attribute count_if: is this rank's coordinate 0 on all of these sub-axes?
    bool counts() const {
        const auto& axes = std::get<std::vector<int64_t>>(op.attrs.at("count_if"));
        return std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return mesh.coordinate(rank, static_cast<int>(a)) == 0; });
    }
    // Global index of this rank's first element along a dim of the tensor.
    int64_t first_index(const ir::Tensor& t, int position) const {
        return mesh.index(rank, t.placement.dims[position]) * size(t, position);
    }
};

struct KernelArgs {
    void* const* in;
    void* const* out;
    bool fresh;       // accumulating results overwrite: this is the first write
    void* workspace;  // Op::workspace_bytes, aligned to a cache line
    device::Queue& queue;
    int64_t instance = 0;  // of the call: which layer
};

class Kernel {
public:
    virtual ~Kernel() = default;
    virtual void run(const KernelArgs& args) const = 0;
};

// A kernel as its backend registers it. Where a context is asked for, all but make() see rank 0.
struct Registered {
    std::string op, kernel;     // the kind of op that it serves; the name by which programs call it
    Dtype result = Dtype::F32;  // of the op's result 0
    int accumulates = -1;       // KernelEntry's
    bool in_place = false;
    bool (*takes)(const KernelContext&) = nullptr;               // the op's element types
    bool (*serves)(const KernelContext&) = nullptr;              // what it asks beyond them; nothing: no more
    int64_t (*workspace_bytes)(const KernelContext&) = nullptr;  // nothing: none
    std::unique_ptr<Kernel> (*make)(const KernelContext&) = nullptr;
    bool (*is_available)(const InstructionSets&) = nullptr;  // on such a processor; nothing: on any
    // There, than others for the same: the last choice where no times are known.
    bool (*is_slower)(const InstructionSets&) = nullptr;
};

// Plain loops, sums in double, for every primitive in every element type.
const std::vector<Registered>& reference_kernels();
// Vectorised; float32, bfloat16 and float16.
const std::vector<Registered>& cpu_kernels();

// Kernels of a device that this process has found; they outlive it. make_kernel knows them from now on. Before any kernel is
// made.
void add_backend(const std::vector<Registered>& kernels);

// By op.kernel, op.kind and element types. Throws InternalError where no backend has it.
std::unique_ptr<Kernel> make_kernel(const KernelContext& context);

// After those that the catalog has: of several for one op and types the first is taken.
void add_to(ops::KernelCatalog& catalog, const std::vector<Registered>& kernels);
ops::KernelCatalog reference_catalog();
// What the CPU kernels lack (float64, small scalars) the reference serves. `of`: the processor, which need not be this one;
// only kernels of this one can be made. Without it: this one, as kernels/cpu/isa.h says.
ops::KernelCatalog cpu_catalog(int threads_per_rank, const InstructionSets& of);
ops::KernelCatalog cpu_catalog(int threads_per_rank);

// A kernel from a callable void(const KernelArgs&).
template <class F>
std::unique_ptr<Kernel> kernel_from(F f) {
    struct Holder final : Kernel {
        explicit Holder(F g) : f(std::move(g)) {}
        void run(const KernelArgs& args) const override { f(args); }
        mutable F f;  // scratch that it owns may change; a kernel is run by one thread at a time
    };
    return std::make_unique<Holder>(std::move(f));
}

}  // namespace lockstep::kernels
