// The kernels that a backend has. The caller hands a catalog to the compiler, which includes no backend. The pass
// select_kernels chooses among the entries and writes the names that it chose into the program.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cost.h"

namespace lockstep::ops {

struct KernelEntry {
    std::string op;         // op kind
    Dtype dtype;            // of the op's result 0
    std::string kernel;     // its name, e.g. "cpu.matmul"
    int accumulates = -1;   // the result that may add into a port's tensor of the same dtype; -1: none
    bool in_place = false;  // result 0 may be in the bytes of the operand that the op's rule names
    // Both may be empty: serves every op of the kind; needs no workspace.
    std::function<bool(const mesh::Mesh&, const Routine&, const Op&)> serves;
    std::function<int64_t(const mesh::Mesh&, const Routine&, const Op&)> workspace_bytes;
    bool is_reference = false;  // right and slow: nobody measures it
};

struct KernelCatalog {
    std::string name;
    std::string origin = {};           // the cluster file or key that asked for it; empty: kernels of this build serve every op
    const char* key = "cluster.file";  // of messages about an op that none of the kernels serves
    // The first that serves is taken; where `costs` has rows of it and of others that serve, the one of least time.
    std::vector<KernelEntry> entries;
    // Its kernels may give a result that another op would make of the same operands: swiglu_backward, adamw.
    bool gives_more = true;
    // Of the loss at once, where the recipe leaves it open: shorter products leave a GPU idle.
    int64_t loss_chunk_tokens = 512;
    int threads = 1;                                   // of a rank, for whom the kernels are made
    std::shared_ptr<const CostTable> costs = nullptr;  // may be empty. From a file, never from timing at start
};

}  // namespace lockstep::ops
