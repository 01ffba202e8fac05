#include "rank_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::check_test {
namespace {

using ir::Access;
using ir::PortKind;
using ir::RoutineKind;

struct ByteTouch {
    int buffer, port;
    bool reads, writes;
    int64_t begin, end;  // of the arenas, the host's behind the device's
};

int64_t begin_of(const ir::Program& program, int buffer) {
    const ir::Buffer& b = program.buffers[static_cast<size_t>(buffer)];
    return b.offset_bytes + (b.place == Place::Host ? program.arena_bytes[Place::Device] : 0);
}

// Gradients are tensors with gaps that nobody writes before they are cleared: a reduction reads the tensors, then overwrites all.
bool reads_members(const ir::Program& program, const ir::Routine& r, const ir::Port& p) {
    if (p.access != Access::Update) return false;
    return r.kind == RoutineKind::ReduceMicro ||
           (r.kind == RoutineKind::ReduceStep && program.has_role(p, ir::StateRole::Gradients) &&
            program.unit_of(p)->gradients.empty());
}

std::vector<ByteTouch> byte_touches(const ir::Program& program, const ir::Call& call) {
    const ir::Routine& r = program.routines[static_cast<size_t>(call.routine)];
    std::vector<ByteTouch> out;
    for (size_t i = 0; i < r.ports.size(); ++i) {
        const ir::Port& p = r.ports[i];
        const ir::Binding& b = call.bindings[i];
        const int port = static_cast<int>(i);
        const int64_t base = begin_of(program, b.buffer) + b.offset_bytes;
        const bool reads = p.access == Access::Read || p.access == Access::Update || (p.access == Access::Accumulate && !b.fresh);
        const bool writes = p.access != Access::Read;
        if (p.kind == PortKind::Gradients && p.access == Access::Accumulate) {
            for (ir::TensorId t : r.port_tensors(port)) {
                const ir::Tensor& tensor = r.tensors[static_cast<size_t>(t)];
                const int64_t begin = base + tensor.offset_bytes;
                out.push_back({b.buffer, port, reads, writes, begin, begin + ir::local_bytes(program.mesh, r, tensor)});
            }
        } else if (reads_members(program, r, p)) {
            for (const MemberRange& m : members_of(program, *program.unit_of(p))) {
                out.push_back({b.buffer, port, true, false, base + m.begin_bytes, base + m.end_bytes});
            }
            out.push_back({b.buffer, port, false, true, base, base + p.bytes});
        } else {
            out.push_back({b.buffer, port, reads, writes, base, base + p.bytes});
        }
    }
    if (call.scratch >= 0) {
        const int64_t base = begin_of(program, call.scratch);
        out.push_back({call.scratch, -1, false, true, base, base + r.scratch_bytes});
    }
    return out;
}

bool outlives_steps(const ir::Program& program, const ir::Port& p) {
    using enum ir::StateRole;
    constexpr ir::StateRole kept[] = {Weights, Moment, Steps, LearningRate};
    if (p.kind == PortKind::State) return std::find(std::begin(kept), std::end(kept), program.state_of(p).role) != std::end(kept);
    return p.kind == PortKind::Input;
}

}  // namespace

AccessTable::AccessTable(const ir::Program& program) : persistent_(program.buffers.size(), false) {
    std::map<ir::EntryKind, std::vector<std::vector<ByteTouch>>> bytes;
    for (const ir::Entry& e : program.entries) {
        for (const ir::Call& c : e.calls) {
            bytes[e.kind].push_back(byte_touches(program, c));
            for (const ByteTouch& t : bytes[e.kind].back()) {
                borders_.push_back(t.begin);
                borders_.push_back(t.end);
            }
            const ir::Routine& r = program.routines[static_cast<size_t>(c.routine)];
            for (size_t p = 0; p < r.ports.size(); ++p) {
                if (!outlives_steps(program, r.ports[p])) continue;
                const ir::Buffer& b = program.buffers[static_cast<size_t>(c.bindings[p].buffer)];
                persistent_[static_cast<size_t>(c.bindings[p].buffer)] = true;
                const int64_t begin = begin_of(program, c.bindings[p].buffer);
                borders_.push_back(begin);
                borders_.push_back(begin + b.bytes);
            }
        }
    }
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
    for (const auto& [entry, calls] : bytes) {
        for (const std::vector<ByteTouch>& call : calls) {
            std::vector<Touch>& out = touches_[entry].emplace_back();
            for (const ByteTouch& t : call) {
                const auto [begin, end] = cells_of(t.begin, t.end);
                out.push_back({t.buffer, t.port, t.reads, t.writes, begin, end});
            }
        }
    }
}

std::pair<size_t, size_t> AccessTable::cells_of(int64_t begin_bytes, int64_t end_bytes) const {
    const auto cell = [&](int64_t at) {
        return static_cast<size_t>(std::lower_bound(borders_.begin(), borders_.end(), at) - borders_.begin());
    };
    return {cell(begin_bytes), cell(end_bytes)};
}

RankMemory::RankMemory(const ir::Program& program, const AccessTable& table)
    : program_(program), table_(table), cells_(table.cells()), ledger_(program) {
    for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (!table.persistent(static_cast<int>(b))) continue;
        const int64_t at = begin_of(program, static_cast<int>(b));
        const auto [begin, end] = table.cells_of(at, at + program.buffers[b].bytes);
        for (size_t i = begin; i < end; ++i) cells_[i].owner = static_cast<int>(b);
    }
}

void RankMemory::begin_step(const ir::Entry& entry) {
    entry_ = &entry;
    ++step_;
    for (Cell& c : cells_) c.read = c.wrote = ByStepQueue<int>(-1);
    written_.clear();
    gathered_.clear();
    ledger_.begin_step(entry);
}

void RankMemory::refuse(const std::string& why, int buffer) const {
    const std::string& name = program_.buffers[static_cast<size_t>(buffer)].name;
    throw Illegal(
        fmt::format("call {} {}[{}]@{}: {} {}", call_index_, routine_->name, call_->instance, call_->microbatch, why, name));
}

void RankMemory::run(int call, const Moment& moment) {
    call_index_ = call;
    call_ = &entry_->calls[static_cast<size_t>(call)];
    routine_ = &program_.routines[static_cast<size_t>(call_->routine)];
    const std::vector<Touch>& touches = table_.of(*entry_, call);
    for (size_t i = 0; i < touches.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {  // within a call nothing says which comes first
            const Touch &a = touches[i], &b = touches[j];
            if (a.port != b.port && (a.writes || b.writes) && a.begin < b.end && b.begin < a.end)
                refuse("two ports share bytes of", a.buffer);
        }
        refuse_races(touches[i], moment);
        if (touches[i].reads) refuse_stale_read(touches[i]);
    }
    for (const Touch& t : touches) {
        refuse_second_write(t);
        open_or_free(t);
        refuse_foreign_states(t);
        touch_weights(t);
    }
    ledger_.run(*call_);
    for (const Touch& t : touches) leave(t, moment);
}

void RankMemory::refuse_races(const Touch& touch, const Moment& moment) const {
    for (size_t i = touch.begin; i < touch.end; ++i) {
        for (QueueName other : kQueuesOfSteps) {
            if (other == moment.queue) continue;
            if (cells_[i].wrote[other] >= moment.seen[other])
                refuse("races with a write of another queue in the bytes of", touch.buffer);
            if (touch.writes && cells_[i].read[other] >= moment.seen[other])
                refuse("races with a read of another queue in the bytes of", touch.buffer);
        }
    }
}

void RankMemory::refuse_stale_read(const Touch& touch) const {
    for (size_t i = touch.begin; i < touch.end; ++i) {
        const Cell& c = cells_[i];
        if (c.owner != touch.buffer || c.garbage) refuse("reads bytes that do not hold", touch.buffer);
        if (c.step != step_ && !table_.persistent(touch.buffer)) refuse("reads bytes not written in this step of", touch.buffer);
    }
}

void RankMemory::refuse_second_write(const Touch& touch) {
    if (touch.port < 0) return;
    const ir::Port& p = routine_->ports[static_cast<size_t>(touch.port)];
    if (p.access != Access::Write || (p.kind != PortKind::Value && p.kind != PortKind::Frame)) return;
    auto& written = written_[touch.buffer];
    for (const auto& [begin, end] : written) {
        if (touch.begin < end && begin < touch.end) refuse("writes a second time in this step", touch.buffer);
    }
    written.emplace_back(touch.begin, touch.end);
}

void RankMemory::open_or_free(const Touch& touch) {
    if (touch.port < 0 || routine_->ports[static_cast<size_t>(touch.port)].kind != PortKind::Params) return;
    if (routine_->kind == RoutineKind::Gather) {
        if (gathered_[touch.buffer]) refuse("gathers again into", touch.buffer);
        gathered_[touch.buffer] = true;
    } else if (routine_->kind == RoutineKind::Free) {
        if (!gathered_[touch.buffer]) refuse("frees what is not gathered:", touch.buffer);
        gathered_[touch.buffer] = false;
    }
}

// A buffer of weights or moments belongs to one instance of one unit; a gathered one to that which was gathered last.
void RankMemory::refuse_foreign_states(const Touch& touch) {
    if (touch.port < 0) return;
    const ir::Port& p = routine_->ports[static_cast<size_t>(touch.port)];
    const ir::Unit* unit = program_.unit_of(p);
    const bool state = p.kind == PortKind::State && unit && outlives_steps(program_, p);
    refuse_foreign_data(touch);
    if (!state && p.kind != PortKind::Params) return;
    const int64_t instance = unit->name == (routine_->unit.empty() ? routine_->block : routine_->unit) ? call_->instance : 0;
    const std::string whose = fmt::format("{} of {}[{}]", state ? p.name : "weights", unit->name, instance);
    if (p.kind == PortKind::Params && routine_->kind == RoutineKind::Gather) holds_[touch.buffer] = whose;
    const std::string& holds = holds_.emplace(touch.buffer, whose).first->second;
    if (holds != whose) refuse(fmt::format("takes for {} what holds {}:", whose, holds), touch.buffer);
}

// The place of the call's block instance in the model, or of one some places on.
int64_t RankMemory::place_of(int64_t further) const {
    int64_t place = further;
    for (const ir::Block& b : program_.blocks) {
        if (b.name == routine_->block) return place + call_->instance;
        place += b.count;
    }
    return -1;
}

// Activations and inputs are of the microbatch that the call says, activations and frames of its block too; an input is where it
// was before.
void RankMemory::refuse_foreign_data(const Touch& touch) {
    const ir::Port& p = routine_->ports[static_cast<size_t>(touch.port)];
    if (p.kind != PortKind::Value && p.kind != PortKind::Frame && p.kind != PortKind::Input) return;
    const std::string whose = fmt::format("{}/{}/{}", name_of(entry_->kind), call_->microbatch,
                                          p.kind == PortKind::Input    ? p.name
                                          : p.kind == PortKind::Frame  ? fmt::format("frame of {}", place_of(0))
                                          : p.role == ir::PortRole::X  ? fmt::format("y of {}", place_of(-1))
                                          : p.role == ir::PortRole::DX ? fmt::format("d.y of {}", place_of(-1))
                                                                       : fmt::format("{} of {}", p.name, place_of(0)));
    if (holds_.emplace(touch.buffer, whose).first->second != whose) refuse("takes for " + whose + " another's", touch.buffer);
    if (p.kind == PortKind::Input && inputs_.emplace(whose, touch.buffer).first->second != touch.buffer)
        refuse("a second place for " + whose + ":", touch.buffer);
}

// Weights are read before the update of the step, and updated once.
void RankMemory::touch_weights(const Touch& touch) {
    if (const auto it = updated_.find(touch.buffer); it != updated_.end() && it->second == step_)
        refuse("comes after the update of", touch.buffer);
    if (touch.port < 0 || routine_->kind != RoutineKind::Update) return;
    if (program_.has_role(routine_->ports[static_cast<size_t>(touch.port)], ir::StateRole::Weights))
        updated_[touch.buffer] = step_;
}

void RankMemory::leave(const Touch& touch, const Moment& moment) {
    const QueueName queue = moment.queue;
    const bool frees = routine_->kind == RoutineKind::Free;
    for (size_t i = touch.begin; i < touch.end; ++i) {
        Cell& c = cells_[i];
        if (touch.reads) c.read[queue] = moment.position;
        if (!touch.writes) continue;
        c.wrote[queue] = moment.position;
        c.owner = frees ? -1 : touch.buffer;
        c.step = step_;
        c.garbage = touch.port < 0;
    }
}

void RankMemory::end_step() {
    for (const auto& [buffer, alive] : gathered_) {
        if (alive) throw Illegal("the step ends before a free of " + program_.buffers[static_cast<size_t>(buffer)].name);
    }
    ledger_.end_step();
}

}  // namespace lockstep::check_test
