// Ops whose tensors are of several float types, or of a narrow one: operands are brought to double in the op's workspace, the
// kernel for double runs there, and each result is rounded once, when it is stored.
#include <memory>

#include "base/elements.h"
#include "base/error.h"
#include "base/round.h"
#include "kernels/reference/reference.h"
#include "ops/rule.h"

namespace lockstep::kernels::reference {
namespace {

void to_double(Dtype type, const void* from, void* to, int64_t n) { convert(file_type(type), from, "F64", to, n); }
void from_double(Dtype type, const void* from, void* to, int64_t n) { convert("F64", from, file_type(type), to, n); }

// One tensor of the op that has a copy in double, at an offset of the workspace.
struct Copy {
    ir::TensorId tensor;
    Dtype type;
    int64_t elements, offset_bytes;
};

std::vector<Copy> copies(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
    std::vector<Copy> out;
    int64_t end = 0;
    for (const std::vector<ir::TensorId>* list : {&op.in, &op.out}) {
        for (ir::TensorId t : *list) {
            const Dtype type = r.tensors[t].dtype;
            const bool known = std::any_of(out.begin(), out.end(), [&](const Copy& c) { return c.tensor == t; });
            if (!is_float(type) || type == Dtype::F64 || known) continue;
            const int64_t n = ir::local_elements(mesh, r, r.tensors[t]);
            out.push_back({t, type, n, end});
            end += round_up(n * 8, kAlignmentBytes);
        }
    }
    return out;
}

}  // namespace

bool has_one_float_type(const ir::Routine& r, const ir::Op& op, Dtype type) {
    for (size_t i = 0; i < op.in.size() - (ops::rule(op.kind).step_end.obeys_control ? 1 : 0); ++i) {
        const Dtype t = r.tensors[op.in[i]].dtype;
        if (is_float(t) && t != type) return false;
    }
    return std::all_of(op.out.begin(), op.out.end(),
                       [&](ir::TensorId t) { return !is_float(r.tensors[t].dtype) || r.tensors[t].dtype == type; });
}

int64_t converting_workspace_bytes(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
    int64_t bytes = 0;
    for (const Copy& c : copies(mesh, r, op)) bytes = c.offset_bytes + round_up(c.elements * 8, kAlignmentBytes);
    return bytes;
}

Made make_converting(const KernelContext& c, Made (*make)(const KernelContext&)) {
    const std::vector<Copy> all = copies(c.mesh, c.routine, c.op);
    const auto wide = std::make_shared<ir::Routine>(c.routine);
    for (const Copy& copy : all) wide->tensors[copy.tensor].dtype = Dtype::F64;
    std::shared_ptr<Kernel> kernel = make({c.mesh, *wide, c.op, c.rank, c.threads});
    const auto places = [&](const std::vector<ir::TensorId>& tensors) {  // index into `all`, or -1
        std::vector<int> at;
        for (ir::TensorId t : tensors) {
            const auto it = std::find_if(all.begin(), all.end(), [&](const Copy& x) { return x.tensor == t; });
            at.push_back(it == all.end() ? -1 : static_cast<int>(it - all.begin()));
        }
        return at;
    };
    return kernel_from([all, wide, kernel, in = places(c.op.in), out = places(c.op.out), op = c.op](const KernelArgs& a) {
        constexpr size_t kMost = 64;
        void *inputs[kMost], *outputs[kMost];
        ensure(in.size() <= kMost && out.size() <= kMost, "reference: too many operands");
        const auto copy_of = [&](int i) { return static_cast<char*>(a.workspace) + all[static_cast<size_t>(i)].offset_bytes; };
        for (size_t i = 0; i < in.size(); ++i) {
            inputs[i] = in[i] < 0 ? a.in[i] : copy_of(in[i]);
            if (in[i] >= 0) to_double(all[in[i]].type, a.in[i], inputs[i], all[in[i]].elements);
        }
        for (size_t i = 0; i < out.size(); ++i) {
            outputs[i] = out[i] < 0 ? a.out[i] : copy_of(out[i]);
            const bool adds = op.accumulates(static_cast<int>(i)) && !a.fresh;
            if (out[i] >= 0 && adds) to_double(all[out[i]].type, a.out[i], outputs[i], all[out[i]].elements);
        }
        kernel->run({inputs, outputs, a.fresh, nullptr, a.queue, a.instance});
        for (size_t i = 0; i < out.size(); ++i) {
            if (out[i] >= 0) from_double(all[out[i]].type, outputs[i], a.out[i], all[out[i]].elements);
        }
    });
}

}  // namespace lockstep::kernels::reference
