#include "passes/parts.h"

#include "ops/builder.h"

namespace lockstep::passes {

using ir::Access;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

ir::Routine part_of(const Routine& without_ops, const std::vector<Op>& ops, const std::vector<int>& part_of_op, int part,
                    const std::string& prefix) {
    const size_t n = without_ops.tensors.size();
    std::vector<bool> made_here(n, false), made_before(n, false), made_elsewhere(n, false), read_here(n, false),
        read_elsewhere(n, false);
    for (size_t i = 0; i < part_of_op.size(); ++i) {
        const bool here = part_of_op[i] == part;
        for (TensorId t : ops[i].out) {
            (here ? made_here : made_elsewhere)[t] = true;
            if (part_of_op[i] < part) made_before[t] = true;
        }
        for (TensorId t : ops[i].in) (here ? read_here : read_elsewhere)[t] = true;
    }
    Routine r = without_ops;
    for (size_t i = 0; i < part_of_op.size(); ++i) {
        if (part_of_op[i] == part) r.ops.push_back(ops[i]);
    }
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        ir::Tensor& tensor = r.tensors[t];
        const auto cross = [&](Access access) {
            tensor.port = static_cast<int>(r.ports.size());
            r.ports.push_back({prefix + tensor.name, PortKind::Value, access});
        };
        if (tensor.port < 0 && made_here[t] && read_elsewhere[t]) cross(Access::Write);
        if (tensor.port < 0 && made_elsewhere[t] && read_here[t]) cross(made_here[t] ? Access::Update : Access::Read);
        if (tensor.port >= 0 && !made_here[t] && !read_here[t]) tensor.port = -1;
    }
    // A port that the whole routine only writes is read by parts behind the one that has written.
    for (size_t p = 0; p < r.ports.size(); ++p) {
        if (r.ports[p].access != Access::Write) continue;
        bool reads = false, writes = false;
        for (TensorId t : r.port_tensors(static_cast<int>(p))) {
            writes = writes || made_here[t];
            reads = reads || (read_here[t] && made_before[t]);
        }
        if (reads) r.ports[p].access = writes ? Access::Update : Access::Read;
    }
    std::erase_if(r.ops, [](const Op& op) { return op.out.empty(); });
    for (size_t p = 0; p < r.ports.size(); ++p) {
        if (!r.port_tensors(static_cast<int>(p)).empty()) continue;
        for (ir::Tensor& t : r.tensors) t.port -= t.port > static_cast<int>(p);
        r.ports.erase(r.ports.begin() + static_cast<long>(p--));
    }
    ops::renumber(r);
    return r;
}

}  // namespace lockstep::passes
