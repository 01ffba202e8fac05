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
        c.is_of_unit = c.unit && c.unit->is_of(r);
        if (port.kind == PortKind::State) c.state = port.state;
        else if (c.unit)
            c.state = program_.state(port.kind == PortKind::Params ? read_role(*c.unit) : StateRole::Gradients, c.unit->name);
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
            c.state_bytes =
                s.unit.empty() ? r.ports[p].bytes : program_.elements(s) / program_.mesh.size(s.split) * bytes_of(s.dtype);
        }
        switch (port.kind) {
            case PortKind::Input: c.stem = stem("in", port.name); break;
            case PortKind::Value: c.stem = stem_of_value(port, r.block); break;
            case PortKind::Frame: c.stem = stem(port.name, r.block); break;
            case PortKind::Params: c.stem = stem("full", c.unit->name); break;
            case PortKind::Gradients: c.stem = stem("local", c.unit->name); break;
            case PortKind::State: break;
        }
        c.block = r.block.empty() ? nullptr : program_.block(r.block);
        if (port.kind == PortKind::Value && c.block && c.block != program_.blocks.data())
            c.stem_before = stem_of_value(port, (c.block - 1)->name);
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
    of_microbatches_.clear();
    windows_.clear();
    states_of_entry_.clear();
    states_.for_each([](Place& place) { place.added_to.clear(); });
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
        case PortKind::Input: return of_microbatch(stem, -1, at, MemoryKind::Input, true);
        case PortKind::Value: return value(at);
        case PortKind::Frame: return of_microbatch(stem, at.instance, at, MemoryKind::Activations, false);
        case PortKind::Params: return params(at);
        case PortKind::Gradients: return gradients(at);
        case PortKind::State: return state(at);
    }
    return {};
}

// A chunked routine's port is one slice of the buffer.
ir::Binding Bindings::of_microbatch(int stem, int64_t instance, const PortOfCall& at, MemoryKind kind, bool resident) {
    std::vector<int>& buffers = of_microbatches_.at(stem, instance);
    const auto number = static_cast<size_t>(at.microbatch);
    if (number >= buffers.size()) buffers.resize(std::max(number + 1, static_cast<size_t>(program_.microbatches)), -1);
    const bool sliced = at.routine.chunks > 1 && at.contents.has_batch && at.port.kind != PortKind::Frame;
    const int64_t bytes = at.port.bytes;
    make_or_check(buffers[number], {.stem = stem, .mark = '@', .instance = instance, .number = at.microbatch}, kind,
                  sliced ? bytes * at.routine.chunks : bytes, resident);
    return {buffers[number], sliced ? at.chunk * bytes : 0};
}

// An entry without a loss keeps its result for its caller.
ir::Binding Bindings::value(const PortOfCall& at) {
    const bool resident = at.port.role == PortRole::Logits;
    const bool incoming = at.port.role == PortRole::X || at.port.role == PortRole::DX;
    const Contents& c = at.contents;
    if (!incoming) return of_microbatch(c.stem, at.instance, at, MemoryKind::Activations, resident);
    if (c.block && at.instance > c.block->first)
        return of_microbatch(c.stem, at.instance - 1, at, MemoryKind::Activations, resident);
    const Maker maker = before(at.routine.block, at.instance);
    return of_microbatch(c.stem_before, maker.instance, at, MemoryKind::Activations, resident);
}

ir::Binding Bindings::params(const PortOfCall& at) {
    const ir::Unit& u = *at.contents.unit;
    const int64_t instance = at.contents.is_of_unit ? at.instance : 0;
    if (!u.is_gathered()) return {place_of_state(at, instance).buffer};
    Place& window = windows_.at(at.contents.stem, instance);
    if (at.routine.kind == RoutineKind::Gather) ++window.number, window.buffer = -1;
    make_or_check(window.buffer, {.stem = at.contents.stem, .mark = '#', .instance = instance, .number = window.number},
                  MemoryKind::Gathered, u.padded * bytes_of(u.compute), false);
    return {window.buffer};
}

// A window of local gradients opens with the first call that adds to them in a microbatch.
ir::Binding Bindings::gradients(const PortOfCall& at) {
    const ir::Unit& u = *at.contents.unit;
    const int64_t instance = at.contents.is_of_unit ? at.instance : 0;
    Place& place = u.gradients.empty() ? place_of_state(at, instance) : windows_.at(at.contents.stem, instance);
    if (!u.gradients.empty()) {
        const bool ends = at.routine.kind == RoutineKind::ReduceMicro;
        if (!ends && !place.open) ++place.number, place.buffer = -1, place.added_to.clear();
        place.open = !ends;
        make_or_check(place.buffer, {.stem = at.contents.stem, .mark = '#', .instance = instance, .number = place.number},
                      MemoryKind::Gradients, u.padded * bytes_of(at.contents.type), false);
    }
    ir::Binding out = {place.buffer};
    if (at.port.access == Access::Accumulate) out.fresh = first_write(at, place);
    return out;
}

ir::Binding Bindings::state(const PortOfCall& at) {
    Place& place = place_of_state(at, at.instance);
    ir::Binding out = {place.buffer};
    if (at.port.access == Access::Read || at.port.access == Access::Update) return out;
    const bool first = first_write(at, place);  // what is written is added to later
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
Bindings::Place& Bindings::place_of_state(const PortOfCall& at, int64_t instance) {
    const ir::State& s = program_.states[static_cast<size_t>(at.contents.state)];
    const bool is_of_program = s.unit.empty() && s.block.empty(), outlives_step = s.scope != ir::Scope::Step;
    const Name name = {
        .stem = at.contents.stem_of_state, .in_all_entries = outlives_step, .instance = is_of_program ? -1 : instance};
    Place& place = (outlives_step ? states_ : states_of_entry_).at(name.stem, name.instance);
    const bool is_new = place.buffer < 0;
    make_or_check(place.buffer, name, memory_of(s.role), at.contents.state_bytes, is_of_program || outlives_step);
    if (is_new) {
        ir::Buffer& made = program_.buffers[static_cast<size_t>(place.buffer)];
        made.state = at.contents.state, made.instance = is_of_program ? 0 : instance, made.place = s.place;
    }
    return place;
}

void Bindings::make_or_check(int& known, const Name& name, MemoryKind kind, int64_t bytes, bool resident) {
    if (known < 0) {
        known = static_cast<int>(program_.buffers.size());
        program_.buffers.push_back(
            {names_buffers_ ? text(name) : std::string(), kind, round_up(bytes, kAlignmentBytes), resident, -1});
    } else if (program_.buffers[static_cast<size_t>(known)].bytes < bytes) {
        throw InternalError("schedule: buffer " + text(name) + " is too small for a port");
    }
}

// Has nothing been added to these tensors of the buffer yet? Either all of them are new in the window or none.
bool Bindings::first_write(const PortOfCall& at, Place& place) {
    bool any_new = false, any_old = false;
    for (int64_t offset_bytes : at.contents.offsets_bytes) {
        const bool is_new = std::find(place.added_to.begin(), place.added_to.end(), offset_bytes) == place.added_to.end();
        if (is_new) place.added_to.push_back(offset_bytes);
        (is_new ? any_new : any_old) = true;
    }
    if (any_new && any_old)
        throw InternalError(fmt::format("schedule: {} would overwrite some gradients and add to others", at.routine.name));
    return any_new;
}

}  // namespace lockstep::passes
