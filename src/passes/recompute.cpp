#include "passes/recompute.h"

#include <algorithm>

#include "base/error.h"
#include "ops/builder.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;

struct Pair {
    Routine forward, backward;
};

// The pair in which backward reads of `values` what it needs, and no other saved value.
Pair with_saved(const Pair& original, const std::set<std::string>& values) {
    Pair out = original;
    out.backward = join_forward_and_backward(original.forward, original.backward, Results::Drop, true, values);
    std::set<std::string> read;
    for (const ir::Tensor& t : out.backward.tensors) {
        if (in_frame(out.backward, t)) read.insert(t.source);
    }
    Routine& f = out.forward;
    int frame = port_of(f, PortKind::Frame);
    if (frame < 0 && !read.empty()) {
        f.ports.push_back({"frame", PortKind::Frame, ir::Access::Write});
        frame = static_cast<int>(f.ports.size()) - 1;
    }
    for (ir::Tensor& t : f.tensors) {
        if (t.port >= 0 && !in_frame(f, t)) continue;
        const std::string source = saved_as(t);
        const bool keep = values.contains(t.name) && read.contains(source);
        t.port = keep ? frame : -1;
        t.source = keep ? source : "";
    }
    f.ops = ops::live_ops(f, f.ops, {});
    ops::renumber(f);
    return out;
}

void name_variant(Pair& pair, std::vector<int64_t> instances, int variant) {
    for (Routine* r : {&pair.forward, &pair.backward}) {
        r->instances = instances;
        if (variant > 1) r->name += "." + std::to_string(variant);
    }
}

// The pairs that take the place of a block's one pair, and share its instances.
std::vector<Pair> variants_of(const Pair& original, const ir::Block& block, const std::vector<SaveList>& lists) {
    std::vector<Pair> out;
    std::vector<int64_t> rest = block.all();
    for (const SaveList& list : lists) {
        if (list.block != block.name) continue;
        std::erase_if(rest, [&](int64_t i) {
            return list.instances.empty() || std::binary_search(list.instances.begin(), list.instances.end(), i);
        });
        out.push_back(with_saved(original, list.values));
        name_variant(out.back(), list.instances, static_cast<int>(out.size()));
    }
    if (rest.empty()) return out;
    out.push_back(original);
    name_variant(out.back(), out.size() == 1 ? std::vector<int64_t>{} : rest, static_cast<int>(out.size()));
    return out;
}

}  // namespace

ir::Program recompute(ir::Program program, const std::vector<SaveList>& lists) {
    for (const ir::Block& block : program.blocks) {
        const Routine *forward = program.routine(RoutineKind::Forward, block.name),
                      *backward = program.routine(RoutineKind::Backward, block.name);
        if (!forward || !backward) continue;
        const std::vector<Pair> pairs = variants_of({*forward, *backward}, block, lists);
        std::vector<Routine> out;
        for (Routine& r : program.routines) {
            if (&r != forward && &r != backward) {
                out.push_back(std::move(r));
                continue;
            }
            for (const Pair& pair : pairs) out.push_back(&r == forward ? pair.forward : pair.backward);
        }
        program.routines = std::move(out);
    }
    return program;
}

}  // namespace lockstep::passes
