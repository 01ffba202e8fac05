// One op of a program, made ready for one rank: sizes, strides, coordinates and tables are worked out once; run() allocates
// nothing. Backends (reference/, cpu/) give a catalog for the compiler and a factory by kernel name.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::kernels {

struct KernelContext {
    const mesh::Mesh& mesh;
    const ir::Routine& routine;
    const ir::Op& op;
    int64_t rank;
    int threads;  // of the pool that run() will get

    const ir::Tensor& in(size_t i) const { return routine.tensors[op.in[i]]; }
    const ir::Tensor& out(size_t i) const { return routine.tensors[op.out[i]]; }
    int64_t elements(const ir::Tensor& t) const { return ir::local_elements(mesh, routine, t); }
    int64_t size(const ir::Tensor& t, int position) const { return ir::local_size(mesh, routine, t, position); }
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
    ThreadPool& pool;
    int64_t instance = 0;  // of the call: which layer
};

class Kernel {
public:
    virtual ~Kernel() = default;
    virtual void run(const KernelArgs& args) const = 0;
};

// By op.kernel. Throws InternalError for a name that no backend has.
std::unique_ptr<Kernel> make_kernel(const KernelContext& context);

// "reference": plain loops, sums in double, for every primitive in float32 and float64.
ops::KernelCatalog reference_catalog();
// "cpu": vectorised float32 kernels; what it lacks (float64, small scalars) the reference serves.
ops::KernelCatalog cpu_catalog(int threads_per_rank);

// A backend's factory; nullptr where it has no kernel of that name.
std::unique_ptr<Kernel> make_reference_kernel(const KernelContext& context);
std::unique_ptr<Kernel> make_cpu_kernel(const KernelContext& context);

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
