#include "passes/set_precision.h"

namespace lockstep::passes {

ir::Program set_precision(ir::Program program, const PrecisionOptions& options) {
    for (ir::Parameter& p : program.params) p.dtype = options.compute;
    for (ir::Routine& r : program.routines) {
        for (ir::Tensor& t : r.tensors) {
            if (t.dtype == Dtype::F32) t.dtype = options.compute;
        }
    }
    return program;
}

}  // namespace lockstep::passes
