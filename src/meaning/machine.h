// Carries out one small routine on all ranks of its mesh, op after op, by reference kernels; collectives as ops/collectives.cpp
// defines them. Every tensor has memory of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "device/queue.h"
#include "kernels/kernel.h"

namespace lockstep::meaning {

using Values = std::vector<double>;

class Machine {
public:
    // Composites that no reference kernel serves are expanded. Throws InternalError for an op that cannot be carried out.
    Machine(const mesh::Mesh& mesh, ir::Routine routine);
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    const ir::Routine& routine() const { return routine_; }
    int64_t ranks() const { return ranks_; }

    // The local elements of a tensor.
    Values get(ir::TensorId tensor, int64_t rank) const;
    void set(ir::TensorId tensor, int64_t rank, const Values& values);

    // fresh[port]: is the first sum into each tensor of the port its first write?
    void run(int64_t instance, const std::vector<bool>& fresh);

private:
    struct Step {
        std::vector<std::unique_ptr<kernels::Kernel>> kernels;  // by rank; none: a collective
        std::vector<ir::TensorId> overwrites, with;             // results that the kernel finds in these operands' bytes
        bool first_sum = false;                                 // of the routine into its result
        int64_t workspace_bytes = 0;
    };
    void prepare(size_t op);
    void communicate(const ir::Op& op);
    char* data(ir::TensorId tensor, int64_t rank) const { return data_[static_cast<size_t>(tensor * ranks_ + rank)]; }

    mesh::Mesh mesh_;
    ir::Routine routine_;
    int64_t ranks_;
    ThreadPool pool_{1};
    device::Queue queue_{QueueName::Compute, &pool_};
    std::vector<std::byte> memory_, workspace_;
    std::vector<char*> data_;  // by tensor and rank
    std::vector<Step> steps_;
};

}  // namespace lockstep::meaning
