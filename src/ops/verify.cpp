#include "ops/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/round.h"
#include "ops/rule.h"
#include "ops/verify_float8.h"
#include "ops/verify_placements.h"
#include "ops/verify_qkv.h"
#include "ops/verify_ring.h"
#include "ops/verify_states.h"

namespace lockstep::ops {
namespace {

using ir::Access;
using ir::PortKind;

// Collects the first violation; later checks are skipped once one is found.
class Verifier {
public:
    explicit Verifier(const ir::Program& program) : p_(program) {}

    std::optional<Violation> run() {
        for (const Routine& r : p_.routines) {
            routine(r);
            if (found_) return found_;
        }
        take(wrong_ring(p_));
        for (const ir::Unit& u : p_.units) unit(u);
        if (const std::string wrong = wrong_states(p_); !wrong.empty()) fail(Invariant::State, wrong);
        if (found_) return found_;
        const BoundStates bound(p_);
        entry_of_.assign(p_.buffers.size(), nullptr);
        for (const ir::Entry& e : p_.entries) calls(e, bound);
        arena();
        return found_;
    }

private:
    void fail(Invariant invariant, std::string message) {
        if (!found_) found_ = Violation{invariant, std::move(message)};
    }

    void take(std::optional<Violation> found) {
        if (!found_) found_ = std::move(found);
    }

    void routine(const Routine& r) {
        names(r);
        if (found_) return;
        placements(r);
        if (found_) return;
        ssa(r);
        instances(r);
        kernels_and_views(r);
        sums_are_wide(r);
        parameters_are_their_units(r);
        if (const std::string wrong = wrong_ports_of_states(p_, r); !wrong.empty()) return fail(Invariant::State, wrong);
        for (const Op& op : r.ops) {
            if (found_) return;
            const std::string wrong = shape(r, op);
            if (!wrong.empty()) return fail(Invariant::Shape, fmt::format("{}, op {}: {}", r.name, op.kind, wrong));
            stays_wide(r, op);
            if (const std::string qkv = wrong_use_of_qkv(r, op); !qkv.empty())
                return fail(Invariant::Qkv, fmt::format("{}, op {}: {}", r.name, op.kind, qkv));
            if (placed(r)) take(wrong_placement(p_, r, op));
        }
        take(blocks_that_meet(p_, r));
        if (!found_) take(wrong_float8(p_, r));
        if (!found_ && !r.unit.empty()) types_of_unit(r);
    }

    std::string shape(const Routine& r, const Op& op) const {
        const OpRule* known = find_rule(op.kind);
        if (!known) return "no op kind is called so";
        if (known->collective && op.in.size() > 1) {  // a grouped launch: every member by itself
            if (op.in.size() != op.out.size()) return "a grouped launch has one result an operand";
            for (size_t i = 0; i < op.in.size(); ++i) {
                Op one = op;
                one.in = {op.in[i]};
                one.out = {op.out[i]};
                if (const std::string wrong = check_op(r, one); !wrong.empty()) return wrong;
            }
            return "";
        }
        return check_op(r, op);
    }

    void names(const Routine& r) {
        std::vector<std::string_view> names;
        for (const ir::Tensor& t : r.tensors) names.push_back(t.name);
        std::sort(names.begin(), names.end());
        if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
            return fail(Invariant::Names, fmt::format("{}: two tensors are called {}", r.name, *twice));
        for (const ir::Tensor& t : r.tensors) {
            if (t.port >= static_cast<int>(r.ports.size()))
                return fail(Invariant::Names, fmt::format("{}: {} belongs to no port", r.name, t.name));
            for (DimId d : t.dims) {
                if (d < 0 || d >= static_cast<int>(r.dims.size()))
                    return fail(Invariant::Names, fmt::format("{}: {} has an unknown dim", r.name, t.name));
            }
        }
        std::set<std::string> ports;
        for (const ir::Port& p : r.ports) {
            if (!ports.insert(p.name).second)
                return fail(Invariant::Names, fmt::format("{}: two ports are called {}", r.name, p.name));
            const bool has_state = p.state >= 0 && p.state < static_cast<int>(p_.states.size());
            if ((p.kind == PortKind::State) != has_state)
                return fail(Invariant::State,
                            fmt::format("{}: port {} binds no state, or is not of a state's kind", r.name, p.name));
        }
        aligned(r);
        const int n = static_cast<int>(r.tensors.size());
        for (const Op& op : r.ops) {
            for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
                for (TensorId t : *list) {
                    if (t < 0 || t >= n)
                        return fail(Invariant::Names,
                                    fmt::format("{}, op {}: an operand or result that is no tensor", r.name, op.kind));
                }
            }
        }
    }

    // An aligned dim has its share of the elements of a dim that is aligned with none.
    void aligned(const Routine& r) {
        for (const ir::Dim& d : r.dims) {
            if (d.of < 0 && d.each == 1) continue;
            const bool known = d.of >= 0 && d.of < static_cast<int>(r.dims.size()) && r.dims[d.of].of < 0 && &r.dims[d.of] != &d;
            if (!known || d.each < 1 || d.size * d.each != r.dims[d.of].size)
                fail(Invariant::Names, fmt::format("{}: {} is not aligned with what it names", r.name, d.name));
        }
    }

    // Routines of one block, kind and entry that name their instances share them out among each other.
    void instances(const Routine& r) {
        if (r.part > 0) return parts(r);
        if (r.instances.empty() || r.kind == ir::RoutineKind::Transfer) return;
        std::vector<int64_t> all;
        for (const Routine& other : p_.routines) {
            if (other.part == 0 && other.block == r.block && other.kind == r.kind && other.entry == r.entry)
                all.insert(all.end(), other.instances.begin(), other.instances.end());
        }
        std::sort(all.begin(), all.end());
        const ir::Block* block = p_.block(r.block);
        if (!block || all != block->instances())
            return fail(Invariant::Instance,
                        fmt::format("{}: not every instance of {} has one {}", r.name, r.block, name_of(r.kind)));
        if (!std::is_sorted(r.instances.begin(), r.instances.end()))
            fail(Invariant::Instance, r.name + ": its instances do not ascend");
    }

    // A part follows the part before it and serves the same instances.
    void parts(const Routine& r) {
        const auto at = static_cast<size_t>(&r - p_.routines.data());
        const Routine* before = at > 0 ? &p_.routines[at - 1] : nullptr;
        if (!before || before->part != r.part - 1 || before->block != r.block || before->kind != r.kind ||
            before->entry != r.entry || before->instances != r.instances)
            fail(Invariant::Part, fmt::format("{}: does not follow part {} of its routine", r.name, r.part - 1));
    }

    static bool placed(const Routine& r) {
        return std::all_of(r.tensors.begin(), r.tensors.end(),
                           [](const ir::Tensor& t) { return t.placement.dims.size() == t.dims.size(); });
    }

    void placements(const Routine& r) {
        const bool any =
            std::any_of(r.tensors.begin(), r.tensors.end(), [](const ir::Tensor& t) { return !t.placement.dims.empty(); });
        if (!any) return;
        if (!placed(r)) return fail(Invariant::Placement, fmt::format("{}: some tensors are placed and some are not", r.name));
        for (const ir::Tensor& t : r.tensors) {
            std::vector<int> times(p_.mesh.sub_axes.size(), 0);  // that a sub-axis is in the placement
            bool unknown = false, over_stages = false;
            const auto count = [&](const ir::AxisList& list, bool splits) {
                for (int a : list) {
                    const bool known = a >= 0 && a < static_cast<int>(times.size());
                    unknown |= !known;
                    if (known) ++times[a], over_stages |= splits && p_.mesh.sub_axes[a].axis == mesh::Axis::pp;
                }
            };
            count(t.placement.partial, false);
            for (size_t i = 0; i < t.dims.size(); ++i) {
                count(t.placement.dims[i], true);
                if (r.dims[t.dims[i]].size % p_.mesh.size(t.placement.dims[i]) != 0) {
                    return fail(Invariant::Placement,
                                fmt::format("{}: {} of {} is not divisible by {}", r.name, r.dims[t.dims[i]].name, t.name,
                                            p_.mesh.text(t.placement.dims[i])));
                }
            }
            if (std::any_of(times.begin(), times.end(), [](int n) { return n > 1; }))
                return fail(Invariant::Placement, fmt::format("{}: a sub-axis is twice in {}", r.name, t.name));
            if (unknown)
                return fail(Invariant::Placement, fmt::format("{}: {} names a sub-axis that the mesh lacks", r.name, t.name));
            if (over_stages)
                return fail(Invariant::Placement, fmt::format("{}: {} is split over pipeline ranks", r.name, t.name));
        }
    }

    void ssa(const Routine& r) {
        std::vector<int> defined(r.tensors.size(), 0), added(r.tensors.size(), 0);
        for (size_t t = 0; t < r.tensors.size(); ++t) {
            const int port = r.tensors[t].port;
            if (port >= 0 && r.ports[port].access != Access::Write) defined[t] = 1;
        }
        for (const Op& op : r.ops) {
            for (TensorId t : op.in) {
                if (!defined[t])
                    return fail(Invariant::Ssa,
                                fmt::format("{}, op {}: reads {} before it is written", r.name, op.kind, r.tensors[t].name));
            }
            for (size_t i = 0; i < op.out.size(); ++i) {
                const TensorId t = op.out[i];
                const int port = r.tensors[t].port;
                const Access access = port < 0 ? Access::Write : r.ports[port].access;
                const bool adds = op.accumulates(static_cast<int>(i));
                if (access == Access::Read)
                    return fail(Invariant::Ssa,
                                fmt::format("{}, op {}: writes {}, which it may only read", r.name, op.kind, r.tensors[t].name));
                if (adds != (access == Access::Accumulate)) {
                    return fail(Invariant::Ssa, fmt::format("{}, op {}: {} is added to where its port says otherwise", r.name,
                                                            op.kind, r.tensors[t].name));
                }
                const bool in_place = std::find(op.in.begin(), op.in.end(), t) != op.in.end();
                if (adds) added[t] = 1;
                if (access == Access::Write && !in_place && defined[t]++)
                    return fail(Invariant::Ssa,
                                fmt::format("{}, op {}: {} is written twice", r.name, op.kind, r.tensors[t].name));
            }
        }
        for (size_t t = 0; t < r.tensors.size(); ++t) {
            if (!defined[t]) return fail(Invariant::Ssa, fmt::format("{}: {} is never written", r.name, r.tensors[t].name));
            const int port = r.tensors[t].port;
            if (port >= 0 && r.ports[port].access == Access::Accumulate && !added[t])
                return fail(Invariant::Ssa, fmt::format("{}: {} is never added to", r.name, r.tensors[t].name));
        }
    }

    void kernels_and_views(const Routine& r) {
        const auto with = std::count_if(r.ops.begin(), r.ops.end(), [](const Op& op) { return !op.kernel.empty(); });
        if (with != 0 && with != static_cast<long>(r.ops.size()))
            return fail(Invariant::Kernel, fmt::format("{}: some ops have a kernel and some have none", r.name));
        for (const ir::Tensor& t : r.tensors) {
            if (t.view_of < 0) continue;
            if (t.view_of >= static_cast<int>(r.tensors.size()))
                return fail(Invariant::View, fmt::format("{}: {} views no tensor", r.name, t.name));
            if (ir::local_bytes(p_.mesh, r, t) != ir::local_bytes(p_.mesh, r, r.tensors[t.view_of])) {
                return fail(Invariant::View, fmt::format("{}: {} does not have the bytes of what it views", r.name, t.name));
            }
        }
        for (const ir::Tensor& t : r.tensors) {
            const bool border =
                t.port >= 0 && (r.ports[t.port].kind == PortKind::Input ||
                                (r.ports[t.port].kind == PortKind::Value && r.ports[t.port].role != ir::PortRole::None &&
                                 r.ports[t.port].role != ir::PortRole::Logits));
            if (border && !t.placement.partial.empty())
                return fail(Invariant::Border, fmt::format("{}: {} crosses a block's border as a partial sum", r.name, t.name));
        }
    }

    // What is added up, in a port, is never of a narrow type.
    void sums_are_wide(const Routine& r) {
        for (const ir::Tensor& t : r.tensors) {
            const bool sum =
                t.port >= 0 && (r.ports[t.port].access == Access::Accumulate || r.ports[t.port].kind == PortKind::Gradients ||
                                p_.has_role(r.ports[t.port], ir::StateRole::Reduced));
            if (sum && (is_narrow(t.dtype) || is_coded(t.dtype)))
                fail(Invariant::Precision, fmt::format("{}: {} adds up in {}", r.name, t.name, name_of(t.dtype)));
        }
    }
    // Parameters are read in the type in which their unit holds them.
    void parameters_are_their_units(const Routine& r) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != PortKind::Params) continue;
            const ir::Unit* u = p_.unit(r.ports[t.port].unit);
            if (u && t.dtype != u->compute)
                fail(Invariant::Precision,
                     fmt::format("{}: {} is read as {}, kept as {}", r.name, t.name, name_of(t.dtype), name_of(u->compute)));
        }
    }
    // Statistics and the loss, by the ops' rules.
    void stays_wide(const Routine& r, const Op& op) {
        const OpRule& k = rule(op.kind);
        const auto check = [&](const std::vector<TensorId>& tensors, const std::vector<int>& positions, bool all, int logits) {
            for (size_t i = 0; i < tensors.size(); ++i) {
                const bool wide = all || std::find(positions.begin(), positions.end(), static_cast<int>(i)) != positions.end();
                const ir::Tensor& t = r.tensors[tensors[i]];
                if (wide && static_cast<int>(i) != logits && is_narrow(t.dtype))
                    fail(Invariant::Precision, fmt::format("{}, op {}: {} is {}", r.name, op.kind, t.name, name_of(t.dtype)));
            }
        };
        if (k.copies && r.tensors[op.in[0]].dtype != r.tensors[op.out[0]].dtype)
            fail(Invariant::Precision,
                 fmt::format("{}, op {}: {} is {}, and its copy is {}", r.name, op.kind, r.tensors[op.in[0]].name,
                             name_of(r.tensors[op.in[0]].dtype), name_of(r.tensors[op.out[0]].dtype)));
        check(op.in, k.precision.wide_in, k.precision.wide, k.precision.logits);
        check(op.out, k.precision.wide_out, k.precision.wide, -1);
    }

    // The routines of a unit keep to its element types: what crosses ranks; and what forward reads is cast from the master
    // weights after their update.
    void types_of_unit(const Routine& r) {
        const ir::Unit* u = p_.unit(r.unit);
        if (u && (r.kind == ir::RoutineKind::Fetch || r.kind == ir::RoutineKind::Gather)) weights_cross_as(r, *u);
        const bool reduces = r.kind == ir::RoutineKind::ReduceMicro || r.kind == ir::RoutineKind::ReduceStep;
        if (!u || (r.kind != ir::RoutineKind::Update && !reduces)) return;
        const auto wrong = [&](const std::string& what) { fail(Invariant::Precision, fmt::format("{}: {}", r.name, what)); };
        std::vector<bool> updated(r.tensors.size(), false);
        size_t updates = 0;
        for (const Op& op : r.ops) {
            if (reduces && rule(op.kind).collective) {
                // Those with decay are exchanged as integers and then added up, where the unit says so.
                // What replicas then share is gathered, norms and biases in the type in which they add up.
                const bool quantized = u->quantized_gradients != 0,
                           shares = quantized && ir::is_collective(op, mesh::Collective::AllGather);
                for (const TensorId t : op.in) {
                    const ir::Tensor& x = r.tensors[t];
                    if (shares && (x.dtype == Dtype::I8 || !decays(*u, x))) continue;
                    const Dtype expected = quantized && ir::is_collective(op, mesh::Collective::AllToAll) ? Dtype::I8 : u->reduce;
                    if (x.dtype != expected || (quantized && ir::is_collective(op, mesh::Collective::ReduceScatter)))
                        wrong(fmt::format("{}: gradients cross ranks as {}, not {}", x.name, name_of(x.dtype),
                                          name_of(quantized ? Dtype::I8 : expected)));
                }
            }
            if (reduces && op.kind == ir::kQuantize && !crosses_as_said(*u, r.tensors[op.in[0]], op.integer("bits")))
                wrong(fmt::format("{} crosses ranks in {} bits", r.tensors[op.in[0]].name, op.integer("bits")));
            if (rule(op.kind).step_end.updates) updated[op.out[0]] = true, ++updates;
            if (r.kind == ir::RoutineKind::Update && op.kind == ir::kCast && writes_weights(r, op) && !updated[op.in[0]])
                wrong(fmt::format("{} is cast before its update", r.tensors[op.in[0]].name));
        }
        if (r.kind == ir::RoutineKind::Update && updates != u->segments.size())
            wrong(fmt::format("{} segments are updated, not {}", updates, u->segments.size()));
    }

    // Is it a segment with decay of the unit? The dims of a unit's routine begin with those of its segments.
    static bool decays(const ir::Unit& u, const ir::Tensor& t) {
        const auto segment = static_cast<size_t>(t.dims.at(0));
        return segment < u.segments.size() && u.segments[segment].decay;
    }

    // Gradients with decay in the unit's bits, or in 8 where replicas share them; others as they are.
    static bool crosses_as_said(const ir::Unit& u, const ir::Tensor& t, int64_t bits) {
        return decays(u, t) ? bits == u.quantized_gradients || bits == 8 : bits == 8 * bytes_of(t.dtype);
    }

    // Weights with decay cross ranks as int8 where the unit says so, and nowhere else; a copy is gathered as it was fetched.
    void weights_cross_as(const Routine& r, const ir::Unit& u) {
        const bool quantized = u.quantized_weights != 0 && !(u.is_fetched() && r.kind == ir::RoutineKind::Gather);
        for (const Op& op : r.ops) {
            if (!rule(op.kind).collective) continue;
            for (const TensorId t : op.in) {
                const ir::Tensor& x = r.tensors[t];
                if (x.dtype == Dtype::I8 ? !quantized : quantized && decays(u, x))
                    fail(Invariant::Precision, fmt::format("{}: {} crosses ranks as {}", r.name, x.name, name_of(x.dtype)));
            }
        }
    }

    // Does the op write what forward reads, or what is gathered for it?
    bool writes_weights(const Routine& r, const Op& op) const {
        const auto is = [&](TensorId t) {
            return r.tensors[t].port >= 0 && p_.has_role(r.ports[r.tensors[t].port], ir::StateRole::Weights);
        };
        if (is(op.out[0])) return true;
        for (const Op& reader : r.ops) {
            const auto at = std::find(reader.in.begin(), reader.in.end(), op.out[0]);
            if (at != reader.in.end() && reader.out.size() == reader.in.size() &&
                is(reader.out[static_cast<size_t>(at - reader.in.begin())]))
                return true;
        }
        return false;
    }

    void unit(const ir::Unit& u) {
        if (!p_.block(u.block))
            return fail(Invariant::Unit, fmt::format("{} is of the block {}, which is not there", u.name, u.block));
        // Codes are made of the optimizer's weights, whatever the split of gradients.
        const bool gradients_nest = is_float8(u.compute) ? u.weights == u.optimizer : mesh::starts_with(u.gradients, u.weights);
        if (!gradients_nest || !mesh::starts_with(u.optimizer, u.gradients) || !mesh::starts_with(u.weights, u.secondary))
            return fail(Invariant::Unit, u.name + ": its splits are not nested");
        int64_t end = 0;
        for (const ir::Segment& s : u.segments) {
            if (s.begin != end) return fail(Invariant::Unit, u.name + ": segments do not follow each other");
            end += s.padded;
            int64_t inside = 0;
            for (const ir::Member& m : s.members) {
                if (m.begin < inside || m.begin + m.count > s.padded)
                    return fail(Invariant::Unit,
                                fmt::format("{}: {} overlaps its neighbour or its segment's end", u.name, m.param));
                inside = m.begin + m.count;
            }
            if (s.padded % p_.mesh.size(u.optimizer) != 0)
                return fail(Invariant::Unit, u.name + ": a segment is not divisible by the optimizer's split");
        }
        if (end != u.padded) return fail(Invariant::Unit, u.name + ": its size is not that of its segments");
    }

    // What does not live through steps has its place among the buffers of one entry. There a state of a step has one buffer.
    std::string wrong_entry(const ir::Entry& e, int buffer) {
        const ir::Buffer& b = p_.buffers[static_cast<size_t>(buffer)];
        const ir::Entry*& user = entry_of_[static_cast<size_t>(buffer)];
        if (user == &e || b.resident) return "";
        if (user) return fmt::format("buffer {} is of the entry {}", b.name, name_of(user->kind));
        user = &e;
        if (b.state < 0 || states_of_entries_.insert({&e, b.state, b.instance}).second) return "";
        return fmt::format("{} has two buffers for instance {}", p_.states[static_cast<size_t>(b.state)].full_name(), b.instance);
    }

    void calls(const ir::Entry& e, const BoundStates& bound) {
        const int n_buffers = static_cast<int>(p_.buffers.size());
        for (size_t i = 0; i < e.calls.size(); ++i) {
            const ir::Call& c = e.calls[i];
            if (c.routine < 0 || c.routine >= static_cast<int>(p_.routines.size()))
                return fail(Invariant::Call, fmt::format("{}, call {}: no such routine", name_of(e.kind), i));
            const Routine& r = p_.routines[c.routine];
            const auto wrong = [&](const std::string& what) {
                fail(Invariant::Call, fmt::format("{}, call {} of {}: {}", name_of(e.kind), i, r.name, what));
            };
            if (!r.serves(c.instance)) {
                return fail(Invariant::Instance, fmt::format("{}, call {} of {}: it does not serve instance {}", name_of(e.kind),
                                                             i, r.name, c.instance));
            }
            if (c.bindings.size() != r.ports.size()) return wrong("not every port is bound");
            for (size_t b = 0; b < c.bindings.size(); ++b) {
                const ir::Binding& binding = c.bindings[b];
                if (binding.buffer < 0 || binding.buffer >= n_buffers)
                    return wrong("port " + r.ports[b].name + " is bound to no buffer");
                if (!bound.agree(c, b))
                    return wrong(fmt::format("port {} is bound to {}, which holds another state", r.ports[b].name,
                                             p_.buffers[binding.buffer].name));
                if (binding.offset_bytes < 0 || binding.offset_bytes > p_.buffers[binding.buffer].bytes - r.ports[b].bytes) {
                    return wrong(fmt::format("port {} reaches past buffer {}", r.ports[b].name, p_.buffers[binding.buffer].name));
                }
                if (const std::string other = wrong_entry(e, binding.buffer); !other.empty()) return wrong(other);
            }
            if (c.scratch >= n_buffers || (c.scratch >= 0 && p_.buffers[c.scratch].bytes < r.scratch_bytes))
                return wrong("its scratch does not fit");
            for (int w : c.waits) {
                if (w < 0 || w >= static_cast<int>(i)) return wrong("it waits for a call that is not before it");
            }
        }
    }

    void arena() {
        if (std::ranges::any_of(p_.arena_bytes, [](int64_t bytes) { return bytes < 0; }))
            return fail(Invariant::Arena, "an arena has fewer than no bytes");
        for (const ir::Buffer& b : p_.buffers) {
            if (b.offset_bytes < 0) continue;
            if (b.offset_bytes % kAlignmentBytes != 0 || b.offset_bytes > p_.arena_bytes[b.place] - b.bytes) {
                return fail(Invariant::Arena, fmt::format("buffer {} lies across the {}arena's end or off its alignment", b.name,
                                                          b.place == Place::Host ? "host's " : ""));
            }
        }
    }

    const ir::Program& p_;
    std::optional<Violation> found_;
    std::vector<const ir::Entry*> entry_of_;  // by buffer that does not live through steps: the entry that binds it
    std::set<std::tuple<const ir::Entry*, ir::StateId, int64_t>> states_of_entries_;
};

}  // namespace

std::string_view name_of(Invariant invariant) {
    constexpr std::array<std::string_view, 21> names = {
        "names",  "shape",     "ssa",    "placement", "space", "partial", "collective", "blocks", "ring", "qkv",  "float8",
        "border", "precision", "kernel", "instance",  "part",  "view",    "unit",       "state",  "call", "arena"};
    static_assert(static_cast<size_t>(Invariant::Arena) + 1 == names.size());
    return names[static_cast<size_t>(invariant)];
}

std::optional<Violation> verify(const ir::Program& program) { return Verifier(program).run(); }

}  // namespace lockstep::ops
