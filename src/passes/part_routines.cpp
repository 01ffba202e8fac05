#include "passes/part_routines.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/round.h"
#include "passes/parts.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::Routine;
using ir::TensorId;

// A routine, and the part of each of its ops; empty: it stays whole.
struct Parted {
    Routine routine;
    std::vector<int> part_of_op;
};

// Each run of ops on one side is a part. A call waits before its first op, so another begins where the first result that has
// come from the other side is read. Removes the marks.
std::vector<int> take_parts(Routine& r) {
    const auto is_aside = [](const ir::Op& op) { return op.attrs.contains("aside"); };
    if (std::none_of(r.ops.begin(), r.ops.end(), is_aside)) return {};
    std::vector<bool> arrives(r.tensors.size(), false);  // made on the other side, and not read yet
    std::vector<int> out(r.ops.size());
    bool was_aside = false;
    for (size_t i = 0; i < out.size(); ++i) {
        ir::Op& op = r.ops[i];
        const bool aside = op.attrs.erase("aside") > 0;
        bool waits = false;
        for (TensorId t : op.in) waits = waits || arrives[static_cast<size_t>(t)], arrives[static_cast<size_t>(t)] = false;
        for (TensorId t : op.out) arrives[static_cast<size_t>(t)] = aside;
        if (i > 0) out[i] = out[i - 1] + (waits || aside != was_aside ? 1 : 0);
        was_aside = aside;
    }
    return out;
}

// The parts that write a value, one after the other in its place.
struct Writers {
    int first, last;
    auto operator<=>(const Writers&) const = default;
    std::string text() const { return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last); }
};
// By a frame's name and the source of a value in it.
using SavedBy = std::map<std::pair<std::string, std::string>, Writers>;

SavedBy saved_by(const Parted& p) {
    SavedBy out;
    const Routine& r = p.routine;
    for (size_t i = 0; i < p.part_of_op.size(); ++i) {
        for (TensorId t : r.ops[i].out) {
            if (!in_frame(r, r.tensors[t])) continue;
            const int part = p.part_of_op[i];
            out.try_emplace({r.ports[r.tensors[t].port].name, r.tensors[t].source}, Writers{part, part}).first->second.last =
                part;
        }
    }
    return out;
}

// One frame for each part that saves values, so that no part reads one value of it and writes another.
void divide_frames(Routine& r, const SavedBy& saved_by) {
    const size_t ports = r.ports.size();
    for (size_t p = 0; p < ports; ++p) {
        if (r.ports[p].kind != ir::PortKind::Frame) continue;
        const ir::Port frame = r.ports[p];
        const auto first = saved_by.lower_bound({frame.name, ""});
        if (first == saved_by.end() || first->first.first != frame.name) continue;  // another routine's
        std::map<Writers, int> port_of;
        for (TensorId t : r.port_tensors(static_cast<int>(p))) {
            const Writers& parts = saved_by.at({frame.name, r.tensors[t].source});
            const auto [at, is_new] = port_of.try_emplace(parts, static_cast<int>(port_of.empty() ? p : r.ports.size()));
            if (is_new) {
                if (port_of.size() > 1) r.ports.push_back(frame);
                r.ports[static_cast<size_t>(at->second)].name = fmt::format("{}@{}", frame.name, parts.text());
            }
            r.tensors[t].port = at->second;
        }
    }
}

// Where saved values lie does not depend on which part reads which of them.
void lay_out_frames(const mesh::Mesh& mesh, Routine& r) {
    for (size_t p = 0; p < r.ports.size(); ++p) {
        if (r.ports[p].kind != ir::PortKind::Frame) continue;
        int64_t end = 0;
        for (TensorId t : r.port_tensors(static_cast<int>(p))) {
            r.tensors[t].offset_bytes = round_up(end, kAlignmentBytes);
            end = r.tensors[t].offset_bytes + ir::local_bytes(mesh, r, r.tensors[t]);
        }
        r.ports[p].bytes = end;
    }
}

}  // namespace

ir::Program part_routines(ir::Program program) {
    std::vector<Parted> all;
    for (Routine& r : program.routines) {
        std::vector<int> parts = take_parts(r);
        all.push_back({std::move(r), std::move(parts)});
    }
    for (const Parted& saving : all) {
        const SavedBy parts = saved_by(saving);
        for (Parted& other : all) {
            const Routine &s = saving.routine, &o = other.routine;
            if (o.block == s.block && o.entry == s.entry && o.instances == s.instances) divide_frames(other.routine, parts);
        }
    }
    std::vector<Routine> out;
    for (Parted& p : all) {
        if (p.part_of_op.empty()) {
            out.push_back(std::move(p.routine));
            continue;
        }
        const std::string name = p.routine.name, prefix = fmt::format("{}.", name_of(p.routine.kind));
        lay_out_frames(program.mesh, p.routine);
        const std::vector<ir::Op> ops = std::exchange(p.routine.ops, {});
        for (int part = 0; part <= p.part_of_op.back(); ++part) {
            Routine& r = out.emplace_back(part_of(p.routine, ops, p.part_of_op, part, prefix));
            r.part = part;
            if (part > 0) r.name = fmt::format("{}@{}", name, part);
        }
    }
    program.routines = std::move(out);
    return program;
}

}  // namespace lockstep::passes
