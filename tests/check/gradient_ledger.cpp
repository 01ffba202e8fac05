#include "gradient_ledger.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::check_test {
namespace {

using ir::Access;
using ir::PortKind;
using ir::RoutineKind;

int64_t block_count(const ir::Program& program, const std::string& name) {
    for (const ir::Block& b : program.blocks) {
        if (b.name == name) return b.count;
    }
    return 1;
}

// The routine of this kind for a unit, or none where the program has no call for it.
const ir::Routine* unit_routine(const ir::Program& program, RoutineKind kind, const std::string& unit) {
    for (const ir::Routine& r : program.routines) {
        if (r.kind == kind && r.unit == unit && !r.ops.empty()) return &r;
    }
    return nullptr;
}

const ir::Binding& bound(const ir::Program& program, const ir::Call& call, std::string_view port) {
    return call.bindings[static_cast<size_t>(program.routines[static_cast<size_t>(call.routine)].port(port))];
}

}  // namespace

std::vector<MemberRange> members_of(const ir::Program& program, const ir::Unit& unit) {
    std::vector<MemberRange> out;
    for (const ir::Segment& s : unit.segments) {
        for (const ir::Member& m : s.members) {
            const int64_t element_bytes = bytes_of(program.param(m.param)->dtype);
            out.push_back({(s.begin + m.begin) * element_bytes, (s.begin + m.begin + m.count) * element_bytes});
        }
    }
    return out;
}

GradientLedger::GradientLedger(const ir::Program& program) : program_(program) {
    for (const ir::Unit& u : program.units) {
        members_[u.name] = members_of(program, u);
        for (int64_t i : program_.block(u.block)->all()) whole_gradients_[{u.name, i}].resize(members_[u.name].size());
    }
    for (size_t k = 0; k < program.routines.size(); ++k) {
        const ir::Routine& r = program.routines[k];
        const int id = static_cast<int>(k);
        const bool per_unit = r.kind == RoutineKind::Stats;
        const int64_t instances = block_count(program, r.unit.empty() ? r.block : r.unit),
                      microbatches = per_unit ? 1 : program.microbatches;
        for (size_t p = 0; p < r.ports.size(); ++p) {
            const ir::Port& port = r.ports[p];
            if (port.access != Access::Accumulate) continue;
            for (int64_t i = 0; i < instances; ++i) {
                for (int64_t m = 0; m < microbatches; ++m) {
                    for (int64_t c = 0; c < r.chunks; ++c) {
                        const Contribution one = {id, i, m, c};
                        if (is_scalar(port)) whole_scalars_[{r.entry, port.name}].push_back(one);
                        if (port.kind != PortKind::Gradients || r.entry != ir::EntryKind::Train) continue;
                        const ir::Unit& u = *program.unit_of(port);
                        Contribution reduced = one;
                        reduced.micro = u.gradients.empty() ? 0 : 1;
                        reduced.step = unit_routine(program, RoutineKind::ReduceStep, u.name) ? 1 : 0;
                        for (ir::TensorId t : r.port_tensors(static_cast<int>(p))) {
                            const std::vector<MemberRange>& members = members_[u.name];
                            for (size_t j = 0; j < members.size(); ++j) {
                                if (members[j].begin_bytes != r.tensors[static_cast<size_t>(t)].offset_bytes) continue;
                                whole_gradients_[{u.name, r.block == u.name ? i : 0}][j].push_back(reduced);
                            }
                        }
                    }
                }
            }
        }
    }
    for (auto& [key, sums] : whole_gradients_) {
        for (Sum& s : sums) std::sort(s.begin(), s.end());
    }
    for (auto& [key, sum] : whole_scalars_) std::sort(sum.begin(), sum.end());
}

void GradientLedger::begin_step(const ir::Entry& entry) {
    entry_ = &entry;
    gradients_.clear();
    scalars_.clear();
    times_.clear();
    inv_n_read_ = false;
    for (const ir::Entry& e : program_.entries) {
        for (const ir::Call& c : e.calls) {
            const ir::Routine& r = program_.routines[static_cast<size_t>(c.routine)];
            for (size_t p = 0; p < r.ports.size(); ++p) {
                const ir::Port& port = r.ports[p];
                if (program_.has_role(port, ir::StateRole::Steps) || program_.has_role(port, ir::StateRole::LearningRate))
                    scalars_[c.bindings[p].buffer] = {port.name, {}};
            }
        }
    }
}

GradientLedger::Gradient& GradientLedger::gradient(int buffer, const std::string& unit) {
    Gradient& g = gradients_[buffer];
    if (g.members.empty()) g = {unit, std::vector<Sum>(members_.at(unit).size())};
    if (g.unit != unit) {
        throw Illegal(fmt::format("gradients of {} and {} in one buffer {}", g.unit, unit,
                                  program_.buffers[static_cast<size_t>(buffer)].name));
    }
    return g;
}

void GradientLedger::run(const ir::Call& call) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    expect_order(call);
    if (r.kind == RoutineKind::Stats || r.kind == RoutineKind::Update) expect_whole(call);
    for (size_t p = 0; p < r.ports.size(); ++p) {
        const int port = static_cast<int>(p);
        if (is_scalar(r.ports[p])) scalar(call, port);
        if (r.ports[p].kind == PortKind::Gradients && r.ports[p].access == Access::Accumulate) add_gradients(call, port);
    }
    if (r.kind == RoutineKind::ReduceMicro) reduce_micro(call);
    if (r.kind == RoutineKind::ReduceStep) reduce_step(call);
    count_once(call);
}

void GradientLedger::add_gradients(const ir::Call& call, int port) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    const ir::Binding& b = call.bindings[static_cast<size_t>(port)];
    const std::string& unit = r.ports[static_cast<size_t>(port)].unit;
    Gradient& g = gradient(b.buffer, unit);
    for (ir::TensorId t : r.port_tensors(port)) {
        for (size_t j = 0; j < g.members.size(); ++j) {
            if (members_.at(unit)[j].begin_bytes != r.tensors[static_cast<size_t>(t)].offset_bytes) continue;
            if (b.fresh) g.members[j].clear();
            const Contribution own{call.routine, call.instance, call.microbatch, call.chunk};
            for (Contribution c : g.members[j]) {
                c.micro = c.step = 0;
                if (c == own) throw Illegal(fmt::format("{}[{}] adds to a gradient of {} twice", r.name, call.instance, unit));
            }
            g.members[j].push_back(own);
        }
    }
}

void GradientLedger::reduce_micro(const ir::Call& call) {
    const std::string& unit = program_.routines[static_cast<size_t>(call.routine)].unit;
    const ir::Binding& to = bound(program_, call, "gradients");
    // What has been moved stays behind as used up: moved again, it would count as reduced twice.
    Gradient& local = gradient(bound(program_, call, "local").buffer, unit);
    for (Sum& s : local.members) {
        for (Contribution& c : s) ++c.micro;
    }
    const Gradient moved = local;
    Gradient& shard = gradient(to.buffer, unit);
    for (size_t j = 0; j < shard.members.size(); ++j) {
        if (to.fresh) shard.members[j].clear();
        shard.members[j].insert(shard.members[j].end(), moved.members[j].begin(), moved.members[j].end());
    }
}

void GradientLedger::reduce_step(const ir::Call& call) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    Gradient& from = gradient(bound(program_, call, "gradients").buffer, r.unit);
    for (Sum& s : from.members) {
        for (Contribution& c : s) ++c.step;
    }
    if (r.port("reduced") < 0) return;
    const Gradient copy = from;
    gradient(bound(program_, call, "reduced").buffer, r.unit) = copy;
}

// Stats and Update of a unit read the sum of everything, reduced.
void GradientLedger::expect_whole(const ir::Call& call) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    const char* port = r.port("reduced") >= 0 ? "reduced" : "gradients";
    if (r.port(port) < 0) return;
    Gradient& g = gradient(bound(program_, call, port).buffer, r.unit);
    const std::vector<Sum>& whole = whole_gradients_.at({r.unit, call.instance});
    for (size_t j = 0; j < whole.size(); ++j) {
        std::sort(g.members[j].begin(), g.members[j].end());
        if (g.members[j] != whole[j]) {
            throw Illegal(fmt::format("{}[{}] reads a gradient of {} contributions that are not the {} of the step", r.name,
                                      call.instance, g.members[j].size(), whole[j].size()));
        }
    }
}

bool GradientLedger::is_scalar(const ir::Port& port) const {
    return port.kind == PortKind::State && program_.unit_of(port) == nullptr && !program_.has_role(port, ir::StateRole::Cache);
}

void GradientLedger::scalar(const ir::Call& call, int port) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    const ir::Port& p = r.ports[static_cast<size_t>(port)];
    const ir::Binding& b = call.bindings[static_cast<size_t>(port)];
    Scalar& s = scalars_[b.buffer];
    const bool adds = p.access == Access::Accumulate && !b.fresh;
    const bool reads = p.access == Access::Read || p.access == Access::Update || adds;
    if (reads && s.port != p.name) throw Illegal(fmt::format("{} reads {} where {} stands", r.name, p.name, s.port));
    if (p.access == Access::Read && p.name == "inv_n") inv_n_read_ = true;
    if (p.access == Access::Write && p.name == "inv_n" && inv_n_read_) throw Illegal("inv_n is made again after it was read");
    if (p.access == Access::Read && whole_scalars_.contains({r.entry, p.name})) {
        std::sort(s.sum.begin(), s.sum.end());
        if (s.sum != whole_scalars_.at({r.entry, p.name}))
            throw Illegal(fmt::format("{} reads {} which is not the sum of the step", r.name, p.name));
    }
    if (p.access == Access::Write) s = {p.name, {}};
    if (p.access == Access::Accumulate) {
        if (b.fresh) s = {p.name, {}};
        s.sum.push_back({call.routine, call.instance, r.kind == RoutineKind::Stats ? 0 : call.microbatch, call.chunk});
    }
}

void GradientLedger::count_once(const ir::Call& call) {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    const bool once = r.kind == RoutineKind::ReduceStep || r.kind == RoutineKind::Stats || r.kind == RoutineKind::Update;
    if (once && ++times_[{r.kind, r.name, call.instance}] > 1)
        throw Illegal(fmt::format("{}[{}] runs twice in a step", r.name, call.instance));
}

// Update comes after the one call that has seen all norms and the loss.
void GradientLedger::expect_order(const ir::Call& call) const {
    const ir::Routine& r = program_.routines[static_cast<size_t>(call.routine)];
    if (r.kind != RoutineKind::Update) return;
    const bool done =
        std::any_of(times_.begin(), times_.end(), [](const auto& t) { return std::get<1>(t.first) == "stats.all"; });
    if (!done) throw Illegal(fmt::format("{}[{}] runs before stats.all", r.name, call.instance));
}

void GradientLedger::end_step() const {
    if (entry_->kind != ir::EntryKind::Train) return;
    const auto expect = [&](RoutineKind kind, const ir::Routine* r, int64_t instance) {
        if (r != nullptr && !times_.contains({kind, r->name, instance}))
            throw Illegal(fmt::format("{}[{}] does not run", r->name, instance));
    };
    for (const ir::Unit& u : program_.units) {
        for (RoutineKind kind : {RoutineKind::ReduceStep, RoutineKind::Stats, RoutineKind::Update}) {
            for (int64_t i : program_.block(u.block)->all()) expect(kind, unit_routine(program_, kind, u.name), i);
        }
    }
    expect(RoutineKind::Stats, program_.routine("stats.all"), 0);
}

}  // namespace lockstep::check_test
