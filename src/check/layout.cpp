#include "check/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ir/sources.h"

namespace lockstep::check {

using ir::Access;
using ir::PortKind;

Bytes bytes_in_port(const ir::Program& p, const ir::Routine& r, const ir::Tensor& t) {
    return {t.offset_bytes, t.offset_bytes + ir::local_bytes(p.mesh, r, t)};
}

namespace {

bool is_flat(const ir::Routine& r, const ir::Tensor& t) {
    return t.dims.size() == 1 && r.dims[t.dims[0]].role == ir::DimRole::Flat;
}

// Routines add to gradients in place of their parameters; until the step's or the microbatch's reduction nothing else is
// there.
bool has_gaps(const ir::Program& p, const ir::Port& port) {
    if (port.access != Access::Update) return false;
    return port.kind == PortKind::Gradients || (p.has_role(port, ir::StateRole::Gradients) && p.unit_of(port)->gradients.empty());
}

struct Elements {
    int64_t begin, count;
};

// Of a flat tensor: its segment is that of its dim's number.
std::optional<Elements> segment_in_port(const ir::Program& p, const ir::Port& port, const ir::Unit& u, ir::DimId dim) {
    const auto i = static_cast<int>(dim);
    if (i >= static_cast<int>(u.segments.size())) return std::nullopt;
    const ir::Segment& segment = u.segments[static_cast<size_t>(i)];
    if (port.kind != PortKind::State) return Elements{segment.begin, segment.padded};
    const ir::State& s = p.state_of(port);
    if (!ir::Program::covers(s, i)) return std::nullopt;
    const int64_t ranks = p.mesh.size(s.split);
    return Elements{p.begin_in(s, i) / ranks, segment.padded / ranks};
}

// Of a parameter, or its gradient.
std::optional<Elements> parameter_in_unit(const ir::Unit& u, std::string_view key) {
    for (const ir::Segment& s : u.segments) {
        for (const ir::Member& m : s.members) {
            if (m.param == key) return Elements{s.begin + m.begin, m.count};
        }
    }
    return std::nullopt;
}

// Of several that are read as one they follow each other.
std::optional<Elements> parameters_in_unit(const ir::Unit& u, const ir::Tensor& t) {
    std::optional<Elements> all;
    for (const std::string_view key : ir::sources_of(t)) {
        const std::optional<Elements> one = parameter_in_unit(u, key);
        if (!one || (all && one->begin != all->begin + all->count)) return std::nullopt;
        all = {all ? all->begin : one->begin, (all ? all->count : 0) + one->count};
    }
    return all;
}

}  // namespace

std::vector<Bytes> arriving_bytes(const ir::Program& p, const ir::Routine& r, const ir::Tensor& t) {
    const ir::Port& port = r.ports[t.port];
    if (!has_gaps(p, port) || !is_flat(r, t)) return {bytes_in_port(p, r, t)};
    const int64_t size = ::lockstep::bytes_of(t.dtype);
    std::vector<Bytes> out;
    for (const ir::Member& m : p.unit_of(port)->segments[static_cast<size_t>(t.dims[0])].members)
        out.push_back({t.offset_bytes + m.begin * size, t.offset_bytes + (m.begin + m.count) * size});
    return out;
}

bool is_sliced(const ir::Routine& r, int port) {
    const PortKind kind = r.ports[port].kind;
    if (r.chunks <= 1 || (kind != PortKind::Value && kind != PortKind::Input)) return false;
    return std::any_of(r.tensors.begin(), r.tensors.end(), [&](const ir::Tensor& t) {
        return t.port == port &&
               std::any_of(t.dims.begin(), t.dims.end(), [&](ir::DimId d) { return r.dims[d].role == ir::DimRole::Batch; });
    });
}

std::string wrong_layout(const ir::Program& p, const ir::Routine& r) {
    std::vector<int> tensors(r.ports.size(), 0);
    for (const ir::Tensor& t : r.tensors) {
        if (t.port < 0) continue;
        const ir::Port& port = r.ports[t.port];
        const auto wrong = [&](const char* what) {
            return fmt::format("{}: {} of port {} {} (offset {})", r.name, t.name, port.name, what, t.offset_bytes);
        };
        if (t.view_of >= 0) return wrong("is a view, and a port's tensor has its own bytes");
        if (!is_inside(t.offset_bytes, ir::local_bytes(p.mesh, r, t), port.bytes)) return wrong("lies outside its port");
        if (t.offset_bytes % ::lockstep::bytes_of(t.dtype) != 0) return wrong("begins between two elements");
        if (port.kind == PortKind::Frame) continue;  // disagreement
        if (port.kind == PortKind::State && !p.state_of(port).block.empty()) continue;
        std::optional<Elements> place = Elements{0, ir::local_elements(p.mesh, r, t)};
        if (const ir::Unit* u = p.unit_of(port))
            place = is_flat(r, t) ? segment_in_port(p, port, *u, t.dims[0]) : parameters_in_unit(*u, t);
        else if (++tensors[t.port] > 1) return wrong("is a second one, and a port of its kind has one tensor");
        if (!place || place->begin * ::lockstep::bytes_of(t.dtype) != t.offset_bytes ||
            place->count != ir::local_elements(p.mesh, r, t))
            return wrong("does not lie where its unit, state or buffer has it");
    }
    for (size_t k = 0; k < r.ports.size(); ++k) {
        if (r.ports[k].kind != PortKind::State || p.state_of(r.ports[k]).block.empty()) continue;
        // The first that writes it has all of it.
        const auto writes = [&](const ir::Routine& o) {
            const int port = o.port_of_state(r.ports[k].state);
            return port >= 0 && o.ports[port].access != ir::Access::Read;
        };
        const auto first = std::find_if(p.routines.begin(), p.routines.end(), writes);
        if (first == p.routines.end()) return fmt::format("{}: nothing writes {}", r.name, r.ports[k].name);
        const std::string wrong = disagreement(p, r, static_cast<int>(k), *first, first->port_of_state(r.ports[k].state));
        if (!wrong.empty()) return wrong;
    }
    return "";
}

std::string disagreement(const ir::Program& p, const ir::Routine& reader, int reader_port, const ir::Routine& writer,
                         int writer_port) {
    for (const ir::Tensor& t : reader.tensors) {
        if (t.port != reader_port) continue;
        const auto same = std::find_if(writer.tensors.begin(), writer.tensors.end(), [&](const ir::Tensor& w) {
            return w.port == writer_port && w.source == t.source && w.dtype == t.dtype &&
                   bytes_in_port(p, writer, w) == bytes_in_port(p, reader, t);
        });
        if (same == writer.tensors.end())
            return fmt::format("{} of {} does not lie where {} has it", t.name, reader.name, writer.name);
    }
    return "";
}

}  // namespace lockstep::check
