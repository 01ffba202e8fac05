// Runs the ops of one routine on one rank, every tensor in memory of its own. For tests of rules and kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/queue.h"
#include "kernels/kernel.h"

namespace lockstep::testing {

class Interpreter {
public:
    // Every op must have a kernel; collectives are not run. `routine` outlives the interpreter.
    Interpreter(const mesh::Mesh& mesh, const ir::Routine& routine, int64_t rank = 0, int threads = 1);

    bool has(const std::string& tensor) const { return routine_.find(tensor) >= 0; }
    void set(const std::string& tensor, const std::vector<double>& values);
    std::vector<double> get(const std::string& tensor) const;
    // `fresh`: accumulating results overwrite what stands there. `instance`: which layer it is.
    void run(bool fresh = false, int64_t instance = 0);

private:
    const mesh::Mesh& mesh_;
    const ir::Routine& routine_;
    ThreadPool pool_;
    device::Queue queue_;
    std::vector<std::vector<std::byte>> bytes_;  // of each tensor, with room to align
    std::vector<char*> data_;
    std::vector<std::unique_ptr<kernels::Kernel>> kernels_;
    std::vector<std::vector<std::byte>> workspaces_;
};

}  // namespace lockstep::testing
