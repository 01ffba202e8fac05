#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"

namespace lockstep::ir {
namespace {

std::string slashed(const mesh::Mesh& mesh, const AxisList& list) {
    std::string text = mesh.text(list);
    std::replace(text.begin(), text.end(), ',', '/');
    return text.empty() ? "" : "/" + text;
}

std::string print_attr(const Attr& attr) {
    struct Visitor {
        std::string operator()(int64_t v) const { return fmt::format("{}", v); }
        std::string operator()(double v) const {
            std::string s = fmt::format("{}", v);
            return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
        }
        std::string operator()(const std::string& v) const { return "'" + v + "'"; }
        std::string operator()(const std::vector<int64_t>& v) const { return fmt::format("[{}]", fmt::join(v, " ")); }
    };
    return std::visit(Visitor{}, attr);
}

std::string print_placement_tail(const mesh::Mesh& mesh, const Placement& p) {
    if (p.partial.empty()) return "";
    return fmt::format(" partial {} {}", name_of(p.reduce), mesh.text(p.partial));
}

// "name: f32[batch/dp_shard, seq] partial sum tp from source &offset"; "?" for a placement that is not made yet.
std::string print_tensor(const mesh::Mesh& mesh, const Routine& r, const Tensor& t) {
    std::vector<std::string> dims;
    const bool placed = t.placement.dims.size() == t.dims.size();
    for (size_t i = 0; i < t.dims.size(); ++i) {
        dims.push_back(r.dims[t.dims[i]].name + (placed ? slashed(mesh, t.placement.dims[i]) : ""));
    }
    std::string text = fmt::format("{}: {}[{}]{}", t.name, name_of(t.dtype), fmt::join(dims, ", "),
                                   placed ? print_placement_tail(mesh, t.placement) : "?");
    if (!t.source.empty()) text += " from " + t.source;
    if (t.offset_bytes >= 0) text += fmt::format(" &{}", t.offset_bytes);
    if (t.view_of >= 0) text += " view " + r.tensors[t.view_of].name;
    return text;
}

std::string print_op(const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    std::vector<std::string> outs, ins, attrs;
    for (size_t i = 0; i < op.out.size(); ++i) {
        const Tensor& t = r.tensors[op.out[i]];
        // A port's tensor is declared with its port, and one that is rewritten where it is first made; here they are only named.
        const bool is_declared = t.port >= 0 || std::find(op.in.begin(), op.in.end(), op.out[i]) != op.in.end();
        const std::string text = is_declared ? t.name : print_tensor(mesh, r, t);
        outs.push_back((op.accumulates(static_cast<int>(i)) ? "+" : "") + text);
    }
    for (TensorId t : op.in) ins.push_back(r.tensors[t].name);
    for (const auto& [key, value] : op.attrs) attrs.push_back(key + "=" + print_attr(value));
    std::string text = fmt::format("{} = {}({})", fmt::join(outs, "; "), op.kind, fmt::join(ins, ", "));
    if (!attrs.empty()) text += fmt::format(" {{{}}}", fmt::join(attrs, ", "));
    if (!op.group.empty()) text += " over " + mesh.text(op.group);
    if (!op.kernel.empty()) text += " kernel " + op.kernel;
    if (op.workspace_bytes > 0) text += fmt::format(" workspace {}", op.workspace_bytes);
    if (op.workspace_offset_bytes >= 0) text += fmt::format(" at {}", op.workspace_offset_bytes);
    if (!op.note.empty()) text += "  # " + op.note;
    return text;
}

// A role is in the text where the name alone would say another: see dim_role_called in text.h.
std::string print_dim(const std::vector<Dim>& dims, const Dim& d) {
    const std::string role = dim_role_called(d.name) == d.role ? "" : fmt::format("@{}", name_of(d.role));
    const std::string valid = d.valid == d.size ? "" : fmt::format(":{}", d.valid);
    const std::string of = d.of < 0 ? "" : fmt::format("({}/{})", dims[static_cast<size_t>(d.of)].name, d.each);
    return fmt::format("{}{}={}{}{}", d.name, role, d.size, valid, of);
}

std::string print_param(const mesh::Mesh& mesh, const Parameter& p) {
    std::vector<std::string> dims;
    const bool placed = p.placement.dims.size() == p.dims.size();
    for (size_t i = 0; i < p.dims.size(); ++i)
        dims.push_back(print_dim(p.dims, p.dims[i]) + (placed ? slashed(mesh, p.placement.dims[i]) : ""));
    return fmt::format("param {}: {}[{}]{} block {} name {} decay {} init {} {} {}{}{}{}\n", p.key, name_of(p.dtype),
                       fmt::join(dims, ", "), placed ? "" : "?", p.block, p.name, int(p.decay), name_of(p.init.kind),
                       print_attr(p.init.std), int(p.init.depth_scaled), p.shared ? " shared" : "",
                       p.converted ? " converted" : "",
                       p.holders.empty() ? "" : fmt::format(" holders {}", fmt::join(p.holders, " ")));
}

std::string print_block(const Block& b) {
    const std::string first = b.first == 0 ? "" : fmt::format(" first {}", b.first);
    const std::string held = b.held ? fmt::format(" held {}", fmt::join(*b.held, " ")) : "";
    return fmt::format("block {} x{}{}{}\n", b.name, b.count, first, held);
}

std::string print_stage(const Stage& s) {
    std::string text = fmt::format("stage {}", s.index);
    for (const BlockInstance& b : s.blocks) text += fmt::format(" {} {}", b.block, b.instance);
    return text + "\n";
}

std::string axes(const mesh::Mesh& mesh, const AxisList& list) { return list.empty() ? "-" : mesh.text(list); }

std::string print_unit(const mesh::Mesh& mesh, const Unit& u) {
    const std::string secondary = u.is_fetched() ? fmt::format(" secondary {}", axes(mesh, u.secondary)) : "";
    const auto bits = [](const char* what, int64_t n) { return n == 0 ? "" : fmt::format(" {} {}", what, n); };
    std::string text = fmt::format("unit {}{} padded {} weights {}{} gradients {} optimizer {} types {} {} {} {}{}{}{}\n", u.name,
                                   u.block == u.name ? "" : " of " + u.block, u.padded, axes(mesh, u.weights), secondary,
                                   axes(mesh, u.gradients), axes(mesh, u.optimizer), name_of(u.compute), name_of(u.storage),
                                   name_of(u.master), name_of(u.reduce), bits("quantized_weights", u.quantized_weights),
                                   bits("quantized_gradients", u.quantized_gradients), u.mirror ? " mirror" : "");
    for (const Segment& s : u.segments) {
        std::vector<std::string> members;
        for (const Member& m : s.members) members.push_back(fmt::format("{}+{}={}", m.param, m.begin, m.count));
        text += fmt::format("  segment begin {} padded {} decay {}{} gradients partial {} sharded {} : {}\n", s.begin, s.padded,
                            int(s.decay), s.rule == 0 ? "" : fmt::format(" rule {}", s.rule), axes(mesh, s.grad_partial),
                            axes(mesh, s.shards), fmt::join(members, " "));
    }
    return text;
}

std::string print_state(const Program& p, const State& s) {
    std::string text = "state " + s.name;
    if (!s.unit.empty()) text += " unit " + s.unit;
    if (!s.block.empty()) text += " block " + s.block;
    text += fmt::format(" role {} scope {} {}", name_of(s.role), name_of(s.scope), name_of(s.dtype));
    if (!s.split.empty()) text += " split " + p.mesh.text(s.split);
    if (!s.segments.empty()) text += fmt::format(" segments {}", fmt::join(s.segments, ","));
    if (s.owner != 0) text += fmt::format(" owner {}", s.owner);
    if (s.writer) text += fmt::format(" writer {}", name_of(*s.writer));
    text += " init " + (s.init ? print_attr(*s.init) : "parameters");
    if (!s.saved.empty()) text += " saved " + s.saved;
    if (s.copy_of >= 0) text += " copy_of " + p.states[static_cast<size_t>(s.copy_of)].full_name();
    if (s.place != usual_place(s.role)) text += fmt::format(" place {}", name_of(s.place));
    return text + "\n";
}

std::string print_port(const Program& program, const Port& p) {
    std::string text = fmt::format("  port {} {} {}", p.name, name_of(p.kind), name_of(p.access));
    if (p.role != port_role_called(p.name, p.kind)) text += fmt::format(" role {}", name_of(p.role));
    if (!p.unit.empty()) text += " unit " + p.unit;
    if (p.state >= 0) text += " of " + program.state_of(p).full_name();
    if (p.bytes >= 0) text += fmt::format(" bytes {}", p.bytes);
    return text + "\n";
}

std::string print_call(const Program& p, const Call& c) {
    const Routine& r = p.routines[c.routine];
    std::string text = fmt::format("  call {} instance {} microbatch {} chunk {} stream {}", r.name, c.instance, c.microbatch,
                                   c.chunk, name_of(c.queue));
    if (!c.waits.empty()) text += fmt::format(" waits {}", fmt::join(c.waits, ","));
    if (c.scratch >= 0) text += fmt::format(" scratch {}", p.buffers[c.scratch].name);
    text += " :";
    for (size_t i = 0; i < c.bindings.size(); ++i) {
        const Binding& b = c.bindings[i];
        text.append(" ").append(r.ports[i].name).append("=").append(p.buffers[b.buffer].name);  // most of a long program's text
        if (b.offset_bytes != 0) text.append("+").append(std::to_string(b.offset_bytes));
        if (b.fresh) text += "!";
    }
    return text + "\n";
}

}  // namespace

std::string print(const Program& p, const Routine& r) {
    std::string text =
        fmt::format("routine {} block {}{} kind {} entry {}{} chunks {} scratch {}\n", r.name, r.block.empty() ? "-" : r.block,
                    r.unit.empty() ? "" : " unit " + r.unit, name_of(r.kind), name_of(r.entry),
                    r.part == 0 ? "" : fmt::format(" part {}", r.part), r.chunks, r.scratch_bytes);
    if (!r.instances.empty()) text += fmt::format("  instances {}\n", fmt::join(r.instances, " "));
    if (!r.dims.empty()) {
        text += "  dims";
        for (const Dim& d : r.dims) text += " " + print_dim(r.dims, d);
        text += "\n";
    }
    for (size_t i = 0; i < r.ports.size(); ++i) {
        text += print_port(p, r.ports[i]);
        for (TensorId t : r.port_tensors(static_cast<int>(i))) text += "    " + print_tensor(p.mesh, r, r.tensors[t]) + "\n";
    }
    for (const Op& op : r.ops) text += "  " + print_op(p.mesh, r, op) + "\n";
    return text;
}

std::string print(const Program& p) {
    std::string text = "mesh";
    for (mesh::Axis a : mesh::kAxes) {
        if ((a != mesh::Axis::island && a != mesh::Axis::pp) || p.mesh.degree(a) > 1)
            text += fmt::format(" {}={}", mesh::name_of(a), p.mesh.degree(a));
    }
    for (const mesh::SubAxis& s : p.mesh.sub_axes) text += fmt::format(" {}:({}){}", mesh::name_of(s.axis), s.pre, s.size);
    text += fmt::format("\nmicrobatches {}\n", p.microbatches);
    if (p.head_tail != 1) text += fmt::format("head_tail {}\n", p.head_tail);
    text += fmt::format("arena {}\n", p.arena_bytes[Place::Device]);
    if (const int64_t bytes = p.arena_bytes[Place::Host]; bytes != 0) text += fmt::format("host_arena {}\n", bytes);
    for (const Block& b : p.blocks) text += print_block(b);
    if (!p.stages.empty()) text += fmt::format("pipeline_rank {}\n", p.pipeline_rank);
    for (const Stage& s : p.stages) text += print_stage(s);
    for (const Parameter& x : p.params) text += print_param(p.mesh, x);
    for (const Unit& u : p.units) text += print_unit(p.mesh, u);
    for (const State& s : p.states) text += print_state(p, s);
    for (const Routine& r : p.routines) text += print(p, r);
    for (const Buffer& b : p.buffers) {
        text += fmt::format("buffer {} {} bytes {} resident {} at {}", b.name, name_of(b.kind), b.bytes, int(b.resident),
                            b.offset_bytes);
        if (b.state >= 0) text += fmt::format(" of {} {}", p.states[static_cast<size_t>(b.state)].full_name(), b.instance);
        if (b.place != usual_place(b.kind)) text += fmt::format(" place {}", name_of(b.place));
        text += "\n";
    }
    for (const Entry& e : p.entries) {
        text += fmt::format("entry {}{}\n", name_of(e.kind), e.fragment > 0 ? fmt::format(" fragment {}", e.fragment) : "");
        for (const Call& c : e.calls) text += print_call(p, c);
    }
    return text;
}

}  // namespace lockstep::ir
