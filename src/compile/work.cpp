#include "compile/work.h"

#include <algorithm>
#include <numeric>

#include "ops/cost.h"
#include "ops/rule.h"

namespace lockstep::compile {
namespace {

// How often a step of the entry train calls each routine.
std::vector<double> calls_of(const ir::Program& p) {
    std::vector<double> calls(p.routines.size(), 0);
    if (const ir::Entry* train = p.entry(ir::EntryKind::Train)) {
        for (const ir::Call& c : train->calls) ++calls[static_cast<size_t>(c.routine)];
        return calls;
    }
    for (size_t i = 0; i < calls.size(); ++i) {
        const ir::Routine& r = p.routines[i];
        if (r.entry != ir::EntryKind::Train) continue;
        const bool each_microbatch = ir::is_forward(r.kind) || ir::is_backward(r.kind) || r.kind == ir::RoutineKind::Transfer;
        calls[i] = each_microbatch ? static_cast<double>(p.microbatches * r.chunks) : 1;
        if (const ir::Block* block = p.block(r.block)) {
            const std::vector<int64_t> held = block->instances();
            calls[i] *= static_cast<double>(std::count_if(held.begin(), held.end(), [&](int64_t k) { return r.serves(k); }));
        }
    }
    return calls;
}

}  // namespace

Work work_of(const std::vector<ir::Program>& programs) {
    Work work;
    for (const ir::Program& p : programs) {
        const std::vector<double> calls = calls_of(p);
        for (size_t i = 0; i < p.routines.size(); ++i) {
            const ir::Routine& r = p.routines[i];
            work.ops += static_cast<int64_t>(r.ops.size());
            for (const ir::Op& op : r.ops) {
                if (calls[i] == 0) break;
                work.flops += calls[i] * ops::flops_of(p.mesh, r, op).executed;
                for (const ir::TensorId t : op.out)
                    work.bytes += calls[i] * static_cast<double>(ir::local_bytes(p.mesh, r, r.tensors[static_cast<size_t>(t)]));
            }
        }
        work.arena_bytes = std::max(work.arena_bytes, std::accumulate(p.arena_bytes.begin(), p.arena_bytes.end(), int64_t{0}));
    }
    return work;
}

bool runs_as_graph(const Config& config, const std::vector<ir::Program>& programs, double microbatches_for_each) {
    constexpr double kShort = 5e13;  // FLOPs
    switch (config.runtime.cuda_graph) {
        case CudaGraph::True: return true;
        case CudaGraph::False: return false;
        case CudaGraph::Auto: break;
    }
    return config.on_gpu() && microbatches_for_each * work_of(programs).flops < kShort * static_cast<double>(programs.size());
}

}  // namespace lockstep::compile
