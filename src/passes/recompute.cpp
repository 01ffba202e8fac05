#include "passes/recompute.h"

#include "ops/builder.h"
#include "passes/splice.h"

namespace lockstep::passes {

ir::Program recompute(ir::Program program, const RecomputeOptions& options) {
    if (!options.full) return program;
    for (const ir::Block& block : program.blocks) {
        const int forward = program.routine_index(block.name + ".forward"),
                  backward = program.routine_index(block.name + ".backward");
        if (block.count < 2 || forward < 0 || backward < 0) continue;
        ir::Routine& f = program.routines[forward];
        program.routines[backward] = join_forward_and_backward(f, program.routines[backward], Results::Drop, true);
        for (ir::Tensor& t : f.tensors) {  // nothing is saved any more
            if (t.port >= 0 && f.ports[t.port].kind == ir::PortKind::Frame) t.port = -1, t.source.clear();
        }
        f.ops = ops::live_ops(f, f.ops, {});
        ops::renumber(f);
    }
    return program;
}

}  // namespace lockstep::passes
