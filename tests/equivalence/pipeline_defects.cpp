// Defects that only a pipeline can have: what is transferred, to whom and when; which microbatch a buffer belongs to; what owner
// and mirror of a shared parameter tell each other; what is counted on which pipeline rank. Most edit one pipeline rank's
// program.
#include <map>

#include "mesh/mesh.h"
#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::Access;
using ir::Binding;
using ir::Call;
using ir::Op;
using ir::Port;
using ir::PortKind;
using ir::Program;
using ir::Routine;
using ir::RoutineKind;

using Edit = std::function<bool(Program&)>;
using Picks = std::function<bool(const Routine&, const Call&)>;
using PicksPort = std::function<bool(const Routine&, const Port&)>;

Defect on_programs(const std::string& name, std::function<bool(std::vector<Program>&)> seed) {
    return {name, [=](Subject& s) { return s.compiled.programs.size() > 1 && seed(s.compiled.programs); }};
}
// On the first pipeline rank that has a place for it.
Defect on_one(const std::string& name, const Edit& edit) {
    return on_programs(name, [=](std::vector<Program>& all) { return std::any_of(all.begin(), all.end(), edit); });
}
Defect on_all(const std::string& name, const Edit& edit) {
    return on_programs(name, [=](std::vector<Program>& all) { return std::count_if(all.begin(), all.end(), edit) > 0; });
}
// On all pipeline ranks but the first.
Defect on_later(const std::string& name, const Edit& edit) {
    return on_programs(name, [=](std::vector<Program>& all) { return std::count_if(all.begin() + 1, all.end(), edit) > 0; });
}

bool has_loss(const Program& p) {
    return std::any_of(p.routines.begin(), p.routines.end(), [](const Routine& r) { return r.port("loss_sum") >= 0; });
}
bool carries(const Routine& r, const char* port, bool sends) {
    return r.kind == RoutineKind::Transfer && r.ports[0].name == port && r.ops[0].kind == (sends ? "send" : "recv");
}
bool is_mirror_call(const Routine& r, const char* verb) { return r.name.starts_with(std::string("mirror.") + verb); }

bool binds(const Program& p, const Call& c, int buffer, bool writes) {
    const Routine& r = routine_of(p, c);
    for (size_t i = 0; i < c.bindings.size(); ++i) {
        if (c.bindings[i].buffer == buffer && (r.ports[i].access != Access::Read) == writes) return true;
    }
    return false;
}

// What calls of a microbatch bind to such ports is what calls of the microbatch before bind.
bool bind_microbatch_before(Program& p, const PicksPort& picks) {
    std::map<std::tuple<int, int64_t, int64_t, int64_t, size_t>, Binding> sound;
    for (const Call& c : train_calls(p)) {
        for (size_t i = 0; i < c.bindings.size(); ++i) sound[{c.routine, c.instance, c.microbatch, c.chunk, i}] = c.bindings[i];
    }
    bool any = false;
    for (Call& c : train_calls(p)) {
        const Routine& r = routine_of(p, c);
        for (size_t i = 0; i < c.bindings.size(); ++i) {
            const auto before = sound.find({c.routine, c.instance, c.microbatch - 1, c.chunk, i});
            if (before == sound.end() || !picks(r, r.ports[i])) continue;
            c.bindings[i].buffer = before->second.buffer, c.bindings[i].offset_bytes = before->second.offset_bytes;
            any = true;
        }
    }
    return any;
}
Edit microbatch_before(const PicksPort& picks) {
    return [=](Program& p) { return bind_microbatch_before(p, picks); };
}

// A frame takes the buffer of the microbatch before while that is still read.
bool share_frame(Program& p) {
    struct Life {
        int buffer;
        size_t first, last;
    };
    std::map<std::tuple<std::string, int64_t, std::string, int64_t>, Life> lives;  // block, instance, port, microbatch
    std::vector<Call>& calls = train_calls(p);
    for (size_t k = 0; k < calls.size(); ++k) {
        const Routine& r = routine_of(p, calls[k]);
        for (size_t i = 0; i < r.ports.size(); ++i) {
            if (r.ports[i].kind != PortKind::Frame) continue;
            const auto key = std::tuple(served(r), calls[k].instance, r.ports[i].name, calls[k].microbatch);
            lives.emplace(key, Life{calls[k].bindings[i].buffer, k, k}).first->second.last = k;
        }
    }
    for (const auto& [key, life] : lives) {
        const auto& [block, instance, port, microbatch] = key;
        const auto next = lives.find({block, instance, port, microbatch + 1});
        if (next == lives.end() || next->second.first > life.last || life.first > next->second.last) continue;
        for (Call& c : calls) {
            for (Binding& b : c.bindings) {
                if (b.buffer == next->second.buffer) b.buffer = life.buffer;
            }
        }
        return true;
    }
    return false;
}

// The call at `from` goes to stand in front of the one at `to`; waits for what is then not before it go.
void move_call(Program& p, size_t from, size_t to) {
    std::vector<size_t> order;
    std::vector<Call>& calls = train_calls(p);
    for (size_t i = 0; i <= calls.size(); ++i) {
        if (i == to) order.push_back(from);
        if (i < calls.size() && i != from) order.push_back(i);
    }
    reorder(calls, order);
    for (size_t i = 0; i < calls.size(); ++i) std::erase_if(calls[i].waits, [&](int w) { return w >= static_cast<int>(i); });
}

// The last call that `picks` moves in front of the last one before it that has something to do with it.
bool move_before(Program& p, const Picks& picks, const std::function<bool(const Call& moved, const Call& other)>& related) {
    const std::vector<Call>& calls = train_calls(p);
    for (size_t from = calls.size(); from-- > 0;) {
        if (!picks(routine_of(p, calls[from]), calls[from])) continue;
        for (size_t to = from; to-- > 0;) {
            if (!related(calls[from], calls[to])) continue;
            move_call(p, from, to);
            return true;
        }
    }
    return false;
}

bool send_before_it_is_made(Program& p, const char* port) {
    return move_before(
        p, [=](const Routine& r, const Call&) { return carries(r, port, true); },
        [&](const Call& send, const Call& other) { return binds(p, other, send.bindings[0].buffer, true); });
}

// A receive stands behind the first call that reads what it brings.
bool receive_after_it_is_read(Program& p, const char* port) {
    const std::vector<Call>& calls = train_calls(p);
    for (size_t i = 0; i < calls.size(); ++i) {
        if (!carries(routine_of(p, calls[i]), port, false)) continue;
        for (size_t k = i + 1; k < calls.size(); ++k) {
            if (!binds(p, calls[k], calls[i].bindings[0].buffer, false)) continue;
            move_call(p, i, k + 1);
            return true;
        }
    }
    return false;
}

bool adds_to(const Program& p, const Call& c, const std::string& unit, int64_t instance) {
    const Routine& r = routine_of(p, c);
    return std::any_of(r.ports.begin(), r.ports.end(), [&](const Port& port) {
        return port.kind == PortKind::Gradients && port.access == Access::Accumulate && port.unit == unit &&
               (served(r) == unit ? c.instance : 0) == instance;
    });
}

// The last reduction of some unit stands before the last call that adds to its gradients.
bool reduce_too_early(Program& p, bool before_weights) {
    const auto is_first_reduction = [&](const Routine& r, const Call&) {
        const bool micro = r.kind == RoutineKind::ReduceMicro || r.kind == RoutineKind::ReduceStep;
        return micro && (r.kind == RoutineKind::ReduceMicro) == !p.unit(r.unit)->gradients.empty();
    };
    return move_before(p, is_first_reduction, [&](const Call& reduction, const Call& c) {
        const bool weights = routine_of(p, c).kind == RoutineKind::BackwardWeight;
        return weights == before_weights && adds_to(p, c, routine_of(p, reduction).unit, reduction.instance);
    });
}

// The last of such calls runs twice, and adds twice.
bool run_twice(Program& p, const Picks& picks) {
    std::vector<Call>& calls = train_calls(p);
    for (size_t k = calls.size(); k-- > 0;) {
        if (!picks(routine_of(p, calls[k]), calls[k])) continue;
        std::vector<size_t> order;
        for (size_t i = 0; i < calls.size(); ++i) order.insert(order.end(), i == k ? 2 : 1, i);
        reorder(calls, order);
        for (Binding& b : calls[k + 1].bindings) b.fresh = false;
        return true;
    }
    return false;
}

// Two consecutive calls of one routine that `picks` exchange their bindings, or their places in the list.
bool exchange_two(Program& p, const Picks& picks, bool places) {
    std::map<std::pair<int, int64_t>, size_t> last;
    std::vector<Call>& calls = train_calls(p);
    for (size_t i = 0; i < calls.size(); ++i) {
        if (!picks(routine_of(p, calls[i]), calls[i])) continue;
        const auto [it, is_new] = last.emplace(std::pair(calls[i].routine, calls[i].instance), i);
        if (is_new) continue;
        if (places) std::swap(calls[i], calls[it->second]);
        else std::swap(calls[i].bindings, calls[it->second].bindings);
        return true;
    }
    return false;
}

// At a cut: what is sent forward is the gradient that came back, or was to be, and the other way.
bool exchange_directions(Program& p, bool of_receives) {
    std::map<std::tuple<std::string, int64_t, int64_t>, Binding*> forward;
    const char* first = of_receives ? "d.y" : "y";
    bool any = false;
    for (int pass = 0; pass < 2; ++pass) {
        for (Call& c : train_calls(p)) {
            const Routine& r = routine_of(p, c);
            const auto key = std::tuple(served(r), c.instance, c.microbatch);
            if (pass == 0 && carries(r, first, true)) forward[key] = c.bindings.data();
            if (pass == 1 && carries(r, of_receives ? "y" : "d.y", false) && forward.contains(key)) {
                std::swap(forward[key]->buffer, c.bindings[0].buffer);
                any = true;
            }
        }
    }
    return any;
}

// The buffers of two units' states, or of what their gradients become, in all that comes before the norm is counted: as if the
// stage ran its layers in another order.
bool exchange_layers(Program& p) {
    const ir::Unit* unit = p.unit("layer");
    if (!unit || p.instances(*unit).size() < 2) return false;
    const std::vector<int64_t> layers = p.instances(*unit);
    std::map<int, int> other;
    for (const char* what : {"weights", "gradients", "reduced"}) {
        const auto buffer = [&](int64_t layer) { return p.buffer(std::string(what) + ".layer[" + std::to_string(layer) + "]"); };
        const int a = buffer(layers[0]), b = buffer(layers[1]);
        if (a >= 0 && b >= 0) other[a] = b, other[b] = a;
    }
    bool any = false;
    for (Call& c : train_calls(p)) {
        const RoutineKind kind = routine_of(p, c).kind;
        if (kind == RoutineKind::Stats || kind == RoutineKind::Update) continue;
        for (Binding& b : c.bindings) {
            if (other.contains(b.buffer)) b.buffer = other[b.buffer], any = true;
        }
    }
    return any;
}

// Dropout draws the noise of a layer's number in its stage, not in the model.
bool number_layers_in_stage(Program& p) {
    return each_call(p, kCompute, [&](const Routine& r, Call& c) {
        const bool drops = std::any_of(r.ops.begin(), r.ops.end(), [](const Op& op) { return op.attrs.contains("dropout"); });
        const int64_t first = p.block(r.block)->instances().front();
        if (!drops || first == 0) return false;
        c.instance -= first;
        return true;
    });
}

// Users of a gathered unit read the window before.
bool read_window_before(Program& p) {
    std::map<std::pair<std::string, int64_t>, std::pair<int, int>> windows;  // of a unit: the last, the one before
    bool any = false;
    for (Call& c : train_calls(p)) {
        const Routine& r = routine_of(p, c);
        for (size_t i = 0; i < r.ports.size(); ++i) {
            if (r.ports[i].kind != PortKind::Params || r.kind == RoutineKind::Free) continue;
            const std::pair at{r.ports[i].unit, served(r) == r.ports[i].unit ? c.instance : 0};
            if (r.kind == RoutineKind::Gather) {
                auto& [last, before] = windows.emplace(at, std::pair(-1, -1)).first->second;
                before = std::exchange(last, c.bindings[i].buffer);
            } else if (windows.contains(at) && windows[at].second >= 0) {
                c.bindings[i].buffer = windows[at].second;
                any = true;
            }
        }
    }
    return any;
}

// Bytes of gathered weights are given to an activation before their last reader, as if they had been freed.
bool free_too_early(Program& p) {
    const std::vector<Call>& calls = train_calls(p);
    for (size_t free = calls.size(); free-- > 0;) {
        if (routine_of(p, calls[free]).kind != RoutineKind::Free) continue;
        const int window = calls[free].bindings[0].buffer;
        size_t reader = free;
        while (reader > 0 && !binds(p, calls[reader], window, false)) --reader;
        for (size_t k = reader; k-- > 0 && !binds(p, calls[k], window, true);) {
            const Routine& r = routine_of(p, calls[k]);
            for (size_t i = 0; i < r.ports.size(); ++i) {
                ir::Buffer& b = p.buffers[static_cast<size_t>(calls[k].bindings[i].buffer)];
                const ir::Buffer& whole = p.buffers[static_cast<size_t>(window)];
                if (r.ports[i].kind != PortKind::Value || r.ports[i].access != Access::Write || b.bytes > whole.bytes) continue;
                b.offset_bytes = whole.offset_bytes;
                return true;
            }
        }
    }
    return false;
}

// What a mirror sends to its owner, it also counts in the norm.
bool count_mirror(Program& p) {
    const auto give =
        std::find_if(p.routines.begin(), p.routines.end(), [](auto& r) { return is_mirror_call(r, "send_gradients"); });
    const auto like = std::find_if(p.routines.begin(), p.routines.end(),
                                   [](const Routine& r) { return r.kind == RoutineKind::Stats && !r.unit.empty(); });
    if (give == p.routines.end() || like == p.routines.end()) return false;
    Routine stats = *give;
    const Op squares = like->ops.at(0);
    stats.name = "stats.mirror", stats.kind = RoutineKind::Stats;
    stats.ports.push_back(like->ports[static_cast<size_t>(like->port("norm2"))]);
    stats.tensors.push_back(like->tensors[static_cast<size_t>(like->find("norm2"))]);
    stats.tensors.back().port = 1;
    stats.ops.clear();
    for (int t = 0; t + 1 < static_cast<int>(stats.tensors.size()); ++t) {
        stats.ops.push_back(squares);
        const mesh::AxisList counted = mesh::subtract(p.mesh.all(), p.unit(stats.unit)->optimizer);
        stats.ops.back().attrs["count_if"] = std::vector<int64_t>(counted.begin(), counted.end());
        stats.ops.back().in = {t}, stats.ops.back().out = {static_cast<int>(stats.tensors.size()) - 1};
    }
    stats.scratch_bytes = like->scratch_bytes;
    std::vector<Call>& calls = train_calls(p);
    std::map<std::string, size_t> last;
    for (size_t i = 0; i < calls.size(); ++i) last[routine_of(p, calls[i]).name] = i;
    Call call = calls[last.at(like->name)];
    const Call& given = calls[last.at(give->name)];
    call.bindings = {given.bindings[0], call.bindings[static_cast<size_t>(like->port("norm2"))]};
    call.instance = 0, call.routine = static_cast<int>(p.routines.size());
    p.routines.push_back(std::move(stats));
    std::vector<size_t> order(calls.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    order.insert(order.begin() + static_cast<long>(last.at("stats.all")), last.at("stats.all"));
    const size_t at = last.at("stats.all");
    reorder(calls, order);
    calls[at] = call;
    return true;
}

// Calls that `picks` stand in front of the last one named `other`.
bool move_in_front(Program& p, const char* verb, const std::function<bool(const Routine&)>& other) {
    return move_before(
        p, [=](const Routine& r, const Call&) { return is_mirror_call(r, verb); },
        [&](const Call& moved, const Call& c) {
            return other(routine_of(p, c)) &&
                   (served(routine_of(p, c)).empty() || served(routine_of(p, c)) == served(routine_of(p, moved)));
        });
}

// Mirrors' gradients reach their owners when the norm is known.
bool exchange_after_norm(Program& p) {
    const auto at = [&](const std::function<bool(const Routine&)>& picks) {
        const std::vector<Call>& calls = train_calls(p);
        return static_cast<size_t>(
            std::find_if(calls.begin(), calls.end(), [&](const Call& c) { return picks(routine_of(p, c)); }) - calls.begin());
    };
    const size_t from =
        at([](const Routine& r) { return is_mirror_call(r, "send_gradients") || is_mirror_call(r, "add_gradients"); });
    if (from == train_calls(p).size()) return false;
    move_call(p, from, at([](const Routine& r) { return r.name == "stats.all"; }) + 1);
    return true;
}

bool without(Program& p, const Picks& unwanted) { return remove_calls(p, unwanted); }

std::vector<Defect> defects_of_transfers() {
    const auto sends = [](const char* port) { return [=](const Routine& r, const Call&) { return carries(r, port, true); }; };
    const auto through = [](const char* port, bool sends) {
        return microbatch_before([=](const Routine& r, const Port&) { return carries(r, port, sends); });
    };
    return {
        on_one("two sends of activations change places", [=](Program& p) { return exchange_two(p, sends("y"), true); }),
        on_one("two sends of gradients change places", [=](Program& p) { return exchange_two(p, sends("d.y"), true); }),
        on_one("two sends carry each other's activations", [=](Program& p) { return exchange_two(p, sends("y"), false); }),
        on_one("two sends carry each other's gradients", [=](Program& p) { return exchange_two(p, sends("d.y"), false); }),
        on_one("activations sent are those of the microbatch before", through("y", true)),
        on_one("gradients sent are those of the microbatch before", through("d.y", true)),
        on_one("activations are received in the microbatch before", through("y", false)),
        on_one("gradients are received in the microbatch before", through("d.y", false)),
        on_one("activations are sent before they are made", [](Program& p) { return send_before_it_is_made(p, "y"); }),
        on_one("gradients are sent before they are complete", [](Program& p) { return send_before_it_is_made(p, "d.y"); }),
        on_one("activations are received after they are read", [](Program& p) { return receive_after_it_is_read(p, "y"); }),
        on_one("gradients are received after they are read", [](Program& p) { return receive_after_it_is_read(p, "d.y"); }),
        on_one("activations forward and gradients back are exchanged", [](Program& p) { return exchange_directions(p, false); }),
        on_one("gradients back and activations forward are exchanged", [](Program& p) { return exchange_directions(p, true); }),
        on_one("a send goes to another pipeline rank",
               [](Program& p) {
                   return each_op(p, kTransfer, "send", [&](Routine& r, Op& op) {
                       const int64_t ranks = p.mesh.degree(mesh::Axis::pp), other = (op.integer("peer") + 1) % ranks;
                       if (!carries(r, "y", true) || ranks < 3 || other == p.pipeline_rank) return false;
                       op.attrs["peer"] = other;
                       return true;
                   });
               }),
        on_one("a receive is left out",
               [](Program& p) {
                   return without(p, [](const Routine& r, const Call& c) { return carries(r, "y", false) && c.microbatch == 0; });
               }),
    };
}

std::vector<Defect> defects_of_microbatches() {
    const auto in = [](const Kinds& kinds, const std::function<bool(const Port&)>& picks) {
        return microbatch_before([=](const Routine& r, const Port& port) {
            return std::find(kinds.begin(), kinds.end(), r.kind) != kinds.end() && picks(port);
        });
    };
    const auto named = [](const char* name) { return [=](const Port& port) { return port.name == name; }; };
    const auto is_weight = [](const Routine& r, const Call&) { return r.kind == RoutineKind::BackwardWeight; };
    return {
        on_later("a later stage's forward reads the microbatch before", in(kForwards, named("x"))),
        on_later("a later stage's loader is one microbatch late",
                 in(kCompute, [](const Port& port) { return port.kind == PortKind::Input; })),
        on_one("backward reads x of the microbatch before", in(kBackwards, named("x"))),
        on_one("backward reads d.y of the microbatch before", in(kBackwards, named("d.y"))),
        on_one("backward writes d.x into the microbatch before", in(kBackwards, named("d.x"))),
        on_one("backward_weight reads d.y of the microbatch before", in(kBackwardWeight, named("d.y"))),
        on_one("frame.kept is that of the microbatch before", in(kBackwardWeight, named("frame.kept"))),
        on_one("frame.both is that of the microbatch before", in(kBackwardWeight, named("frame.both"))),
        on_one("frame.weight is that of the microbatch before", in(kBackwardWeight, named("frame.weight"))),
        on_one("backward_input reads the frame of the microbatch before", in(kBackwardInput, named("frame"))),
        on_one("a frame is taken again while it is read", share_frame),
        on_one("a backward_weight is left out",
               [=](Program& p) {
                   return without(p, [&](const Routine& r, const Call& c) { return is_weight(r, c) && c.microbatch == 0; });
               }),
        on_one("a backward_weight runs twice", [=](Program& p) { return run_twice(p, is_weight); }),
        on_one("a backward_weight runs before its backward_input",
               [=](Program& p) {
                   return move_before(p, is_weight, [&](const Call& w, const Call& c) {
                       const Routine &a = routine_of(p, w), &b = routine_of(p, c);
                       return b.kind == RoutineKind::BackwardInput && a.block == b.block && w.instance == c.instance &&
                              w.microbatch == c.microbatch;
                   });
               }),
        on_one("what backward_input adds to a gradient it adds twice",
               [](Program& p) {
                   bool any = false;
                   for (Routine& r : p.routines) {
                       if (r.kind != RoutineKind::BackwardInput) continue;
                       std::vector<Op> ops;
                       for (const Op& op : r.ops)
                           ops.insert(ops.end(), op.accumulate.empty() || op.attrs.contains("in_place") ? 1 : 2, op);
                       any = any || ops.size() > r.ops.size();
                       r.ops = std::move(ops);
                   }
                   return any;
               }),
        on_one("gradients are reduced before the last backward_weight", [](Program& p) { return reduce_too_early(p, true); }),
        on_one("gradients are reduced before the last backward", [](Program& p) { return reduce_too_early(p, false); }),
        on_one("one pipeline rank's gradients are those of the last microbatch",
               [](Program& p) {
                   return each_binding(p, kCompute, PortKind::Gradients, [](const Call& c, const Port& port, Binding& b) {
                       return port.access == Access::Accumulate && c.microbatch > 0 && !std::exchange(b.fresh, true);
                   });
               }),
        on_one("gathered weights are those of the window before", read_window_before),
        on_one("gathered weights are freed before their last reader", free_too_early),
        on_one("a stage has its layers in another order", exchange_layers),
        on_later("layers are numbered within their stage", number_layers_in_stage),
    };
}

std::vector<Defect> defects_of_mirrors() {
    const auto dropped = [](const char* one, const char* other) {
        return [=](Program& p) {
            return without(p, [=](const Routine& r, const Call&) { return is_mirror_call(r, one) || is_mirror_call(r, other); });
        };
    };
    const auto adding = [](size_t times) {
        return [=](Program& p) {
            bool any = false;
            for (Routine& r : p.routines) {
                if (!is_mirror_call(r, "add_gradients")) continue;
                std::vector<Op> ops;
                for (const Op& op : r.ops) ops.insert(ops.end(), op.kind == "accumulate" ? times : 1, op);
                r.ops = std::move(ops), any = true;
            }
            return any;
        };
    };
    return {
        on_all("a mirror's weights are not exchanged", dropped("send_weights", "receive_weights")),
        on_one("a mirror does not receive its weights", dropped("receive_weights", "receive_weights")),
        on_one("an owner does not send its weights", dropped("send_weights", "send_weights")),
        on_all("a mirror's gradients are not exchanged", dropped("send_gradients", "add_gradients")),
        on_one("a mirror's gradients are not added", adding(0)),
        on_one("a mirror's gradients are added twice", adding(2)),
        on_one("a mirror's gradients are counted in the norm", count_mirror),
        on_one("a mirror's gradients are not reduced",
               [](Program& p) {
                   return each_op(p, {RoutineKind::ReduceMicro, RoutineKind::ReduceStep}, "all_reduce", [&](Routine& r, Op& op) {
                       if (!p.unit(r.unit)->mirror) return false;
                       op.in.clear(), op.out.clear(), op.accumulate.clear();
                       return true;
                   });
               }),
        on_one("a mirror sends gradients before they are reduced",
               [](Program& p) {
                   return move_in_front(p, "send_gradients", [](const Routine& r) { return r.kind == RoutineKind::ReduceStep; });
               }),
        on_one("an owner sends its weights before their update",
               [](Program& p) {
                   return move_in_front(p, "send_weights", [](const Routine& r) { return r.kind == RoutineKind::Update; });
               }),
        on_all("a mirror's gradients are added when the norm is known", exchange_after_norm),
    };
}

std::vector<Defect> defects_of_the_step() {
    return {
        on_all("norm and loss are summed over one stage",
               [](Program& p) {
                   return each_op(p, kStats, "all_reduce", [&](Routine&, Op& op) {
                       op.group = mesh::subtract(op.group, p.mesh.whole(mesh::Axis::pp));
                       if (!op.group.empty()) return true;
                       op.group = p.mesh.whole(mesh::Axis::pp);  // a stage of one rank: nothing to sum over
                       return false;
                   });
               }),
        on_later("later stages do not count targets of the last microbatch",
                 [](Program& p) {
                     return p.microbatches > 1 && has_loss(p) && without(p, [&](const Routine& r, const Call& c) {
                                return r.name == "count" && c.microbatch == p.microbatches - 1;
                            });
                 }),
        on_one("a pipeline rank without the head counts a loss",
               [](Program& p) {
                   return each_op(p, kStats, "owned", [](Routine& r, Op& op) {
                       if (!op.in.empty()) return false;
                       op.in = {r.find("norm2")};
                       return true;
                   });
               }),
        on_one(
            "a pipeline rank does not update",
            [](Program& p) { return without(p, [](const Routine& r, const Call&) { return r.kind == RoutineKind::Update; }); }),
        on_one("a pipeline rank does not count its squares",
               [](Program& p) {
                   return each_op(p, kStats, "sum_squares", [](Routine&, Op& op) {
                       op.in.clear(), op.out.clear(), op.accumulate.clear();
                       return true;
                   });
               }),
        on_all("gradients are summed over pipeline ranks too",
               [](Program& p) {
                   return each_op(p, kReduceStep, "all_reduce", [&](Routine&, Op& op) {
                       op.group = mesh::join(p.mesh.whole(mesh::Axis::pp), op.group);
                       return true;
                   });
               }),
    };
}

}  // namespace

std::vector<Defect> pipeline_defects() {
    std::vector<Defect> all;
    for (const auto& some : {defects_of_transfers, defects_of_microbatches, defects_of_mirrors, defects_of_the_step}) {
        for (Defect& d : some()) all.push_back(std::move(d));
    }
    return all;
}

}  // namespace lockstep::testing
