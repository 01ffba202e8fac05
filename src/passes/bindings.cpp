#include "passes/bindings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/round.h"

namespace lockstep::passes {

using ir::Access;
using ir::MemoryKind;
using ir::PortKind;
using ir::PortRole;
using ir::Routine;
using ir::RoutineKind;
using ir::StateRole;

std::string Bindings::text(const Name& name) const {
    const Stem& stem = stems_[static_cast<size_t>(name.stem)];
    const std::string_view entry = name.in_all_entries ? "" : entry_;
    std::string out;
    out.reserve(entry.size() + stem.what.size() + stem.of.size() + 24);
    if (!entry.empty()) out.append(entry).append(".");
    out += stem.what;
    if (!stem.of.empty() || name.instance >= 0) out.append(".").append(stem.of);
    if (name.instance >= 0) out.append("[").append(std::to_string(name.instance)).append("]");
    if (name.mark != 0) out.append(1, name.mark).append(std::to_string(name.number));
    return out;
}

size_t Bindings::HashOfName::operator()(const Name& name) const {
    size_t out = 0;  // each part is mixed by itself: stem and instance are small numbers, whose xor is often the same
    for (const int64_t part : {static_cast<int64_t>(name.stem), name.instance, name.number})
        out = (out ^ static_cast<size_t>(part)) * 0x9e3779b97f4a7c15;
    return out ^ out >> 32;
}

int Bindings::stem(std::string_view what, std::string_view of) {
    const auto [at, is_new] = index_of_stem_.try_emplace({what, of}, static_cast<int>(stems_.size()));
    if (is_new) stems_.push_back({what, of});
    return at->second;
}

Bindings::Bindings(ir::Program& program, bool names_buffers) : program_(program), names_buffers_(names_buffers) {
    for (Routine& r : program_.routines) lay_out(r);
}

void Bindings::lay_out(Routine& r) {
    std::vector<Contents>& contents = contents_.emplace_back(r.ports.size());
    for (size_t p = 0; p < r.ports.size(); ++p) {
        Contents& c = contents[p];
        const ir::Port& port = r.ports[p];
        c.unit = program_.unit_of(port);
        if (port.kind == PortKind::State) c.state = port.state;
        else if (c.unit)
            c.state = program_.state(port.kind == PortKind::Params ? StateRole::Weights : StateRole::Gradients, c.unit->name);
        int64_t end = 0;
        for (ir::TensorId t : r.port_tensors(static_cast<int>(p))) {
            ir::Tensor& tensor = r.tensors[t];
            if (tensor.offset_bytes < 0) tensor.offset_bytes = round_up(end, kAlignmentBytes);
            end = std::max(end, tensor.offset_bytes + ir::local_bytes(program_.mesh, r, tensor));
            if (c.offsets_bytes.empty()) c.type = tensor.dtype;
            c.offsets_bytes.push_back(tensor.offset_bytes);
            c.has_batch |=
                std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](int d) { return r.dims[d].role == ir::DimRole::Batch; });
        }
        r.ports[p].bytes = std::max(r.ports[p].bytes, end);  // of a part of a routine: as of the whole
        if (c.state >= 0) {
            const ir::State& s = program_.states[static_cast<size_t>(c.state)];
            c.stem_of_state = stem(s.name, s.unit.empty() ? s.block : s.unit);
        }
        switch (port.kind) {
            case PortKind::Input: c.stem = stem("in", port.name); break;
            case PortKind::Value: c.stem = stem_of_value(port, r.block); break;
            case PortKind::Frame: c.stem = stem(port.name, r.block); break;
            case PortKind::Params: c.stem = stem("full", c.unit->name); break;
            case PortKind::Gradients: c.stem = stem("local", c.unit->name); break;
            case PortKind::State: break;
        }
        const ir::Block* block = r.block.empty() ? nullptr : program_.block(r.block);
        if (port.kind == PortKind::Value && block && block != program_.blocks.data())
            c.stem_before = stem_of_value(port, (block - 1)->name);
    }
}

// The activation between two blocks belongs to the one that makes it: x of a block is y of the one before.
int Bindings::stem_of_value(const ir::Port& port, std::string_view block) {
    switch (port.role) {
        case PortRole::X:
        case PortRole::Y: return stem("act", block);
        case PortRole::DX:
        case PortRole::DY: return stem("d.act", block);
        default: return stem(port.name, block);
    }
}

void Bindings::begin_entry(ir::EntryKind kind) {
    entry_ = kind == ir::EntryKind::Train ? "" : name_of(kind);
    buffers_of_entry_.clear();
    windows_.clear();
    accumulated_.clear();
}

std::vector<ir::Binding> Bindings::bind(const Routine& r, int64_t instance, int64_t microbatch, int64_t chunk) {
    const std::vector<Contents>& contents = contents_[static_cast<size_t>(&r - program_.routines.data())];
    std::vector<ir::Binding> out;
    out.reserve(r.ports.size());
    for (size_t i = 0; i < r.ports.size(); ++i) {
        out.push_back(bind({r, r.ports[i], contents[i], instance, microbatch, chunk}));
        if (out.back().buffer < 0)
            throw InternalError(fmt::format("schedule: nothing to bind to port {} of {}", r.ports[i].name, r.name));
    }
    return out;
}

Bindings::Maker Bindings::before(std::string_view block, int64_t instance) const {
    const std::vector<ir::Block>& blocks = program_.blocks;
    const auto at = std::find_if(blocks.begin(), blocks.end(), [&](const ir::Block& b) { return b.name == block; });
    if (at != blocks.end() && instance > at->first) return {block, instance - 1};
    if (at == blocks.begin() || at == blocks.end())
        throw InternalError(fmt::format("schedule: nothing comes before block {}", block));
    return {(at - 1)->name, (at - 1)->last()};
}

ir::Binding Bindings::bind(const PortOfCall& at) {
    const int stem = at.contents.stem;
    switch (at.port.kind) {
        case PortKind::Input: return of_microbatch({.stem = stem}, at, MemoryKind::Input, true);
        case PortKind::Value:  // an entry without a loss keeps its result for its caller
            return of_microbatch(value(at), at, MemoryKind::Activations, at.port.role == PortRole::Logits);
        case PortKind::Frame: return of_microbatch({.stem = stem, .instance = at.instance}, at, MemoryKind::Activations, false);
        case PortKind::Params: return {params(at)};
        case PortKind::Gradients: return gradients(at);
        case PortKind::State: return state(at);
    }
    return {};
}

// A chunked routine's port is one slice of the buffer.
ir::Binding Bindings::of_microbatch(Name name, const PortOfCall& at, MemoryKind kind, bool resident) {
    name.mark = '@', name.number = at.microbatch;
    const bool sliced = at.routine.chunks > 1 && at.contents.has_batch && at.port.kind != PortKind::Frame;
    const int64_t bytes = at.port.bytes;
    return {buffer(name, kind, sliced ? bytes * at.routine.chunks : bytes, resident), sliced ? at.chunk * bytes : 0};
}

Bindings::Name Bindings::value(const PortOfCall& at) const {
    const bool incoming = at.port.role == PortRole::X || at.port.role == PortRole::DX;
    if (!incoming) return {.stem = at.contents.stem, .instance = at.instance};
    const Maker maker = before(at.routine.block, at.instance);
    return {.stem = maker.block == at.routine.block ? at.contents.stem : at.contents.stem_before, .instance = maker.instance};
}

int Bindings::params(const PortOfCall& at) {
    const ir::Unit& u = *at.contents.unit;
    const int64_t instance = u.is_of(at.routine) ? at.instance : 0;
    if (!u.is_gathered()) return state_buffer(at, instance);
    Name name = {.stem = at.contents.stem, .instance = instance};
    Window& window = windows_[name];
    if (at.routine.kind == RoutineKind::Gather) ++window.number;
    name.mark = '#', name.number = window.number;
    return buffer(name, MemoryKind::Gathered, u.padded * bytes_of(u.compute), false);
}

// A window of local gradients opens with the first call that adds to them in a microbatch.
ir::Binding Bindings::gradients(const PortOfCall& at) {
    const ir::Unit& u = *at.contents.unit;
    const int64_t instance = u.is_of(at.routine) ? at.instance : 0;
    ir::Binding out;
    if (u.gradients.empty()) {
        out.buffer = state_buffer(at, instance);
    } else {
        Name name = {.stem = at.contents.stem, .instance = instance};
        Window& window = windows_[name];
        const bool ends = at.routine.kind == RoutineKind::ReduceMicro;
        if (!ends && !window.open) ++window.number;
        window.open = !ends;
        name.mark = '#', name.number = window.number;
        out.buffer = buffer(name, MemoryKind::Gradients, u.padded * bytes_of(at.contents.type), false);
    }
    if (at.port.access == Access::Accumulate) out.fresh = first_write(at, out.buffer);
    return out;
}

ir::Binding Bindings::state(const PortOfCall& at) {
    ir::Binding out = {state_buffer(at, at.instance)};
    if (at.port.access == Access::Read || at.port.access == Access::Update) return out;
    const bool first = first_write(at, out.buffer);  // what is written is added to later
    out.fresh = first && at.port.access == Access::Accumulate;
    return out;
}

namespace {

MemoryKind memory_of(StateRole role) {
    using enum StateRole;
    switch (role) {
        case Weights:
        case Secondary: return MemoryKind::Weights;
        case Master:
        case Moment:
        case Steps: return MemoryKind::Optimizer;
        case Gradients:
        case Reduced: return MemoryKind::Gradients;
        case Copy: return MemoryKind::Snapshot;
        case Cache: return MemoryKind::Activations;
        default: return MemoryKind::Workspace;
    }
}

}  // namespace

// One for each instance of its unit or block, or one for the program. Each entry has its own where it does not outlive a step.
int Bindings::state_buffer(const PortOfCall& at, int64_t instance) {
    const ir::State& s = program_.states[static_cast<size_t>(at.contents.state)];
    const std::string& of = s.unit.empty() ? s.block : s.unit;
    const int64_t bytes = s.unit.empty() ? at.port.bytes : program_.elements(s) / program_.mesh.size(s.split) * bytes_of(s.dtype);
    const int known = static_cast<int>(program_.buffers.size());
    const Name name = {
        .stem = at.contents.stem_of_state, .in_all_entries = s.scope != ir::Scope::Step, .instance = of.empty() ? -1 : instance};
    const int b = buffer(name, memory_of(s.role), bytes, of.empty() || s.scope != ir::Scope::Step);
    if (b == known) {
        ir::Buffer& made = program_.buffers[b];
        made.state = at.contents.state, made.instance = of.empty() ? 0 : instance, made.place = s.place;
    }
    return b;
}

int Bindings::buffer(const Name& name, MemoryKind kind, int64_t bytes, bool resident) {
    auto& buffers = name.in_all_entries ? buffers_ : buffers_of_entry_;
    const auto [known, is_new] = buffers.try_emplace(name, static_cast<int>(program_.buffers.size()));
    if (is_new)
        program_.buffers.push_back(
            {names_buffers_ ? text(name) : std::string(), kind, round_up(bytes, kAlignmentBytes), resident, -1});
    else if (program_.buffers[static_cast<size_t>(*known)].bytes < bytes)
        throw InternalError("schedule: buffer " + text(name) + " is too small for a port");
    return *known;
}

// Has nothing been added to these tensors of the buffer yet? Either all of them are new in the window or none.
bool Bindings::first_write(const PortOfCall& at, int buffer) {
    bool any_new = false, any_old = false;
    if (accumulated_.size() <= static_cast<size_t>(buffer)) accumulated_.resize(static_cast<size_t>(buffer) + 1);
    std::vector<int64_t>& added_to = accumulated_[static_cast<size_t>(buffer)];
    for (int64_t offset_bytes : at.contents.offsets_bytes) {
        const bool is_new = std::find(added_to.begin(), added_to.end(), offset_bytes) == added_to.end();
        if (is_new) added_to.push_back(offset_bytes);
        (is_new ? any_new : any_old) = true;
    }
    if (any_new && any_old)
        throw InternalError(fmt::format("schedule: {} would overwrite some gradients and add to others", at.routine.name));
    return any_new;
}

}  // namespace lockstep::passes
