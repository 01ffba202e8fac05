#include "passes/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/round.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::Call;
using ir::MemoryKind;
using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;

int64_t flat_bytes(const ir::Program& p, const ir::Unit& u, const ir::AxisList& split, Dtype type) {
    return u.padded / p.mesh.size(split) * bytes_of(type);
}

// Lays the tensors of a port one behind the other, where partition_parameters has not placed them, and sets the port's size.
void lay_out_ports(const ir::Program& program, Routine& r) {
    for (size_t p = 0; p < r.ports.size(); ++p) {
        int64_t end = 0;
        for (ir::TensorId t : r.port_tensors(static_cast<int>(p))) {
            ir::Tensor& tensor = r.tensors[t];
            if (tensor.offset_bytes < 0) tensor.offset_bytes = round_up(end, kAlignmentBytes);
            end = std::max(end, tensor.offset_bytes + ir::local_bytes(program.mesh, r, tensor));
        }
        r.ports[p].bytes = end;
    }
}

class Scheduler {
public:
    explicit Scheduler(ir::Program& program) : p_(program) {
        for (Routine& r : p_.routines) lay_out_ports(p_, r);
    }

    void run() {
        for (const std::string& entry : entries()) {
            entry_ = {entry, {}};
            windows_.clear();
            accumulated_.clear();
            counting();
            for (int64_t m = 0; m < p_.microbatches; ++m) microbatch(m);
            if (is_train()) finish();
            else totals();
            p_.entries.push_back(std::move(entry_));
        }
        snapshot();
    }

private:
    // Those that have forwards, in the order in which they stand.
    std::vector<std::string> entries() const {
        std::vector<std::string> out;
        for (const Routine& r : p_.routines) {
            if (r.kind == RoutineKind::Forward && std::find(out.begin(), out.end(), r.entry) == out.end()) out.push_back(r.entry);
        }
        return out;
    }
    bool is_train() const { return entry_.name == "train"; }

    int buffer(const std::string& name, MemoryKind kind, int64_t bytes, bool resident) {
        if (const auto it = buffers_.find(name); it != buffers_.end()) {
            ensure(p_.buffers[it->second].bytes >= bytes, "schedule: buffer " + name + " is too small for a port");
            return it->second;
        }
        p_.buffers.push_back({name, kind, round_up(bytes, kAlignmentBytes), resident, -1});
        return buffers_[name] = static_cast<int>(p_.buffers.size()) - 1;
    }

    // A transient buffer of a unit: a new one for each window between its first use and its end.
    int window(const std::string& name, MemoryKind kind, int64_t bytes, bool opens) {
        int& number = windows_[name];
        if (opens) ++number;
        return buffer(fmt::format("{}{}#{}", prefix(), name, number), kind, bytes, false);
    }
    std::string prefix() const { return is_train() ? "" : entry_.name + "."; }

    // Calls `routine` for block instance or unit instance i; binds every port by its kind and name.
    void call(const Routine& r, int64_t instance, int64_t microbatch, int64_t chunk = 0) {
        if (r.ops.empty() && r.kind != RoutineKind::Free) return;
        Call c;
        c.routine = p_.routine_index(r.name);
        c.instance = instance;
        c.microbatch = microbatch;
        c.chunk = chunk;
        for (size_t i = 0; i < r.ports.size(); ++i)
            c.bindings.push_back(bind(r, static_cast<int>(i), instance, microbatch, chunk));
        entry_.calls.push_back(std::move(c));
    }

    int64_t instances(const std::string& block) const {
        for (const ir::Block& b : p_.blocks) {
            if (b.name == block) return b.count;
        }
        return 1;
    }

    // The activation between two blocks belongs to the one that makes it: x of a block is y of the one before.
    std::string edge(const std::string& block, int64_t instance, bool incoming) const {
        std::string b = block;
        int64_t i = instance;
        if (incoming && --i < 0) {
            for (size_t k = 1; k < p_.blocks.size(); ++k) {
                if (p_.blocks[k].name == block) b = p_.blocks[k - 1].name;
            }
            i = instances(b) - 1;
        }
        return fmt::format("{}[{}]", b, i);
    }

    ir::Binding bind(const Routine& r, int port, int64_t instance, int64_t microbatch, int64_t chunk) {
        const ir::Port& p = r.ports[port];
        ir::Binding b;
        const auto slice = [&](int64_t whole) {  // a chunked routine's port is one slice of the buffer
            const bool cut = r.chunks > 1 && sliced(r, port);
            b.offset_bytes = cut ? chunk * p.bytes : 0;
            return cut ? p.bytes * r.chunks : whole;
        };
        switch (p.kind) {
            case PortKind::Input:
                b.buffer =
                    buffer(fmt::format("{}in.{}@{}", prefix(), p.name, microbatch), MemoryKind::Input, slice(p.bytes), true);
                break;
            case PortKind::Scalar:
                b.buffer = buffer(fmt::format("{}{}", p.name == "steps" || p.name == "lr" ? "" : prefix(), p.name),
                                  p.name == "steps" ? MemoryKind::Optimizer : MemoryKind::Workspace, p.bytes, true);
                if (p.access == Access::Accumulate) b.fresh = accumulated_.insert(p.name).second;
                break;
            case PortKind::Value: {
                std::string name = fmt::format("{}.{}[{}]", p.name, r.block, instance);
                if (p.name == "y") name = "act." + edge(r.block, instance, false);
                if (p.name == "x") name = "act." + edge(r.block, instance, true);
                if (p.name == "d.y") name = "d.act." + edge(r.block, instance, false);
                if (p.name == "d.x") name = "d.act." + edge(r.block, instance, true);
                b.buffer = buffer(fmt::format("{}{}@{}", prefix(), name, microbatch), MemoryKind::Activations, slice(p.bytes),
                                  p.name == "logits");  // the result of an entry without a loss stays for whoever ran it
                break;
            }
            case PortKind::Frame:
                b.buffer = buffer(fmt::format("{}frame.{}[{}]@{}", prefix(), r.block, instance, microbatch),
                                  MemoryKind::Activations, p.bytes, false);
                break;
            case PortKind::Params: {
                const ir::Unit& u = *p_.unit(p.unit);
                const int64_t which = u.name == r.block ? instance : 0;
                if (!u.is_gathered()) {
                    b.buffer = state("weights", MemoryKind::Weights, u, which, u.weights, u.storage);
                } else {
                    b.buffer = window(fmt::format("full.{}[{}]", u.name, which), MemoryKind::Gathered,
                                      flat_bytes(p_, u, {}, u.compute), r.kind == RoutineKind::Gather);
                }
                break;
            }
            case PortKind::Gradients: {
                const ir::Unit& u = *p_.unit(p.unit);
                const int64_t which = u.name == r.block ? instance : 0;
                if (u.gradients.empty()) {
                    b.buffer = gradients(r, port, u, which);
                } else {
                    // A window of local gradients opens with the first call that adds to them in a microbatch.
                    const std::string name = fmt::format("local.{}[{}]", u.name, which);
                    const bool opens = r.kind != RoutineKind::ReduceMicro && open_.insert(name).second;
                    b.buffer = window(name, MemoryKind::Gradients, flat_bytes(p_, u, {}, type_of(r, port)), opens);
                    if (r.kind == RoutineKind::ReduceMicro) open_.erase(name);
                }
                if (p.access == Access::Accumulate) b.fresh = first_write(r, port, b.buffer);
                break;
            }
            case PortKind::State: {
                if (p.unit.empty()) {  // keys and values of a block's instance, shared by entries
                    b.buffer =
                        buffer(fmt::format("{}.{}[{}]", p.name, r.block, instance), MemoryKind::Activations, p.bytes, true);
                    break;
                }
                const ir::Unit& u = *p_.unit(p.unit);
                if (p.name == "weights") b.buffer = state(p.name, MemoryKind::Weights, u, instance, u.weights, u.storage);
                if (p.name == "master" || p.name == "moment1" || p.name == "moment2")
                    b.buffer = state(p.name, MemoryKind::Optimizer, u, instance, u.optimizer, u.master);
                if (p.name == "gradients") {
                    b.buffer = gradients(r, port, u, instance);
                    if (p.access == Access::Accumulate) b.fresh = first_write(r, port, b.buffer);
                }
                if (r.kind == RoutineKind::Snapshot && p.access == Access::Write) {  // the copy of the port before it
                    const ir::Buffer original = p_.buffers[bind(r, port - 1, instance, microbatch, chunk).buffer];
                    b.buffer = buffer("snapshot." + original.name, MemoryKind::Snapshot, original.bytes, true);
                }
                if (p.name == "reduced") {
                    b.buffer = buffer(fmt::format("reduced.{}[{}]", u.name, instance), MemoryKind::Gradients,
                                      flat_bytes(p_, u, u.optimizer, type_of(r, port)), false);
                }
                break;
            }
        }
        ensure(b.buffer >= 0, fmt::format("schedule: nothing to bind to port {} of {}", p.name, r.name));
        return b;
    }

    int state(const std::string& what, MemoryKind kind, const ir::Unit& u, int64_t instance, const ir::AxisList& split,
              Dtype type) {
        return buffer(fmt::format("{}.{}[{}]", what, u.name, instance), kind, flat_bytes(p_, u, split, type), true);
    }
    int gradients(const Routine& r, int port, const ir::Unit& u, int64_t instance) {
        return buffer(fmt::format("gradients.{}[{}]", u.name, instance), MemoryKind::Gradients,
                      flat_bytes(p_, u, u.gradients, type_of(r, port)), false);
    }
    static Dtype type_of(const Routine& r, int port) { return r.tensors[r.port_tensors(port)[0]].dtype; }

    // Has nothing been added to these tensors of the buffer yet? Either all of them are new in the window or none.
    bool first_write(const Routine& r, int port, int buffer) {
        bool any_new = false, any_old = false;
        for (ir::TensorId t : r.port_tensors(port)) {
            const bool is_new = accumulated_.insert(fmt::format("{}:{}", buffer, r.tensors[t].offset_bytes)).second;
            (is_new ? any_new : any_old) = true;
        }
        ensure(!(any_new && any_old), fmt::format("schedule: {} would overwrite some gradients and add to others", r.name));
        return any_new;
    }

    bool sliced(const Routine& r, int port) const {
        for (ir::TensorId t : r.port_tensors(port)) {
            for (ir::DimId d : r.tensors[t].dims) {
                if (r.dims[d].name == "batch") return true;
            }
        }
        return false;
    }

    void counting() {
        for (const Routine& r : p_.routines) {
            if (r.kind != RoutineKind::Begin || r.entry != entry_.name) continue;
            const bool per_microbatch =
                std::any_of(r.ports.begin(), r.ports.end(), [](const ir::Port& p) { return p.kind == PortKind::Input; });
            for (int64_t m = 0; m < (per_microbatch ? p_.microbatches : 1); ++m) call(r, 0, m);
        }
    }

    // The units whose parameters, or gradients, a routine binds.
    std::vector<const ir::Unit*> units(const Routine& r, PortKind kind) const {
        std::vector<const ir::Unit*> out;
        for (const ir::Port& p : r.ports) {
            if (p.kind == kind) out.push_back(p_.unit(p.unit));
        }
        return out;
    }

    void compute(const Routine& r, int64_t instance, int64_t m) {
        const auto which = [&](const ir::Unit* u) { return u->name == r.block ? instance : 0; };
        for (const ir::Unit* u : units(r, PortKind::Params)) {
            if (u->is_gathered() && !still_gathered(*u, which(u))) call(*p_.routine("gather." + u->name), which(u), m);
        }
        for (int64_t chunk = 0; chunk < r.chunks; ++chunk) call(r, instance, m, chunk);
        for (const ir::Unit* u : units(r, PortKind::Params)) {
            if (u->is_gathered()) call(*p_.routine("free." + u->name), which(u), m);
        }
    }

    // A unit that was freed by the call just before is kept instead.
    bool still_gathered(const ir::Unit& u, int64_t instance) {
        for (size_t k = entry_.calls.size(); k-- > 0 && p_.routines[entry_.calls[k].routine].kind == RoutineKind::Free;) {
            if (p_.routines[entry_.calls[k].routine].block != u.name || entry_.calls[k].instance != instance) continue;
            entry_.calls.erase(entry_.calls.begin() + static_cast<long>(k));
            return true;
        }
        return false;
    }

    void microbatch(int64_t m) {
        // In the order in which routines stand: forwards (and what fuse_loss cut from them) block by block, then backwards.
        std::vector<std::pair<const Routine*, int64_t>> order;
        for (const ir::Block& block : p_.blocks) {
            for (int64_t i = 0; i < block.count; ++i) {
                for (const Routine& r : p_.routines) {
                    const bool forward = r.kind == RoutineKind::Forward || r.kind == RoutineKind::Loss;
                    if (r.block == block.name && r.entry == entry_.name && forward && r.serves(i)) order.emplace_back(&r, i);
                }
            }
        }
        for (auto block = p_.blocks.rbegin(); block != p_.blocks.rend(); ++block) {
            for (int64_t i = block->count - 1; i >= 0; --i) {
                for (const Routine& r : p_.routines) {
                    if (r.block == block->name && r.entry == entry_.name && r.kind == RoutineKind::Backward && r.serves(i))
                        order.emplace_back(&r, i);
                }
            }
        }
        // The last routine of this microbatch that adds to each unit: its reductions stand behind it.
        std::map<std::pair<std::string, int64_t>, size_t> last;
        for (size_t k = 0; k < order.size(); ++k) {
            const auto [r, i] = order[k];
            for (const ir::Unit* u : units(*r, PortKind::Gradients)) last[{u->name, u->name == r->block ? i : 0}] = k;
        }
        for (size_t k = 0; k < order.size(); ++k) {
            const auto [r, i] = order[k];
            compute(*r, i, m);
            for (const auto& [unit, at] : last) {
                if (at != k) continue;
                const ir::Unit& u = *p_.unit(unit.first);
                if (!u.gradients.empty()) call(*p_.routine("reduce_micro." + u.name), unit.second, m);
                if (m == p_.microbatches - 1) call(*p_.routine("reduce_step." + u.name), unit.second, m);
            }
        }
    }

    // The copies of all states, an entry of its own: it runs between steps, or beside one until its first update.
    void snapshot() {
        entry_ = {"snapshot", {}};
        for (const ir::Unit& u : p_.units) {
            const Routine* r = p_.routine("snapshot." + u.name);
            for (int64_t i = 0; r && i < u.count; ++i) call(*r, i, 0);
        }
        if (!entry_.calls.empty()) p_.entries.push_back(std::move(entry_));
    }

    void totals() {
        for (const Routine& r : p_.routines) {
            if (r.entry == entry_.name && r.kind == RoutineKind::Stats) call(r, 0, p_.microbatches - 1);
        }
    }

    void finish() {
        const int64_t m = p_.microbatches - 1;
        for (const ir::Unit& u : p_.units) {
            for (int64_t i = 0; i < u.count; ++i) call(*p_.routine("stats." + u.name), i, m);
        }
        call(*p_.routine("stats.all"), 0, m);
        for (const ir::Unit& u : p_.units) {
            for (int64_t i = 0; i < u.count; ++i) call(*p_.routine("update." + u.name), i, m);
        }
    }

    ir::Program& p_;
    ir::Entry entry_;
    std::map<std::string, int> buffers_;
    std::map<std::string, int> windows_;
    std::set<std::string> open_;         // windows of local gradients that are open
    std::set<std::string> accumulated_;  // what has been added to in this window
};

}  // namespace

ir::Program schedule(ir::Program program) {
    Scheduler(program).run();
    return program;
}

}  // namespace lockstep::passes
