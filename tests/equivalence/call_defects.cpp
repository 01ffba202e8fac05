// Defects of the list of calls: what is called, how often, in which order, on which buffers.
#include <map>

#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::Access;
using ir::Binding;
using ir::Call;
using ir::PortKind;
using ir::Program;
using ir::Routine;
using ir::RoutineKind;

const Kinds kAccumulating = {RoutineKind::Loss, RoutineKind::Backward, RoutineKind::ReduceMicro};

bool is_layer(const Program& p, const Call& c) { return served(routine_of(p, c)) == "layer"; }

// In calls of a layer other than the first: the binding that the first layer's call of the same microbatch has.
bool bind_first_layer(Program& p, const Kinds& routines, const std::function<bool(const ir::Port&)>& wanted) {
    std::map<std::tuple<int, int64_t, size_t>, Binding> of_first;
    const auto each = [&](const auto& f) {
        return each_call(p, routines, [&](const Routine& r, Call& c) {
            bool any = false;
            for (size_t i = 0; i < r.ports.size() && is_layer(p, c); ++i) {
                if (wanted(r.ports[i])) any = f(c, std::tuple(c.routine, c.microbatch, i), c.bindings[i]) || any;
            }
            return any;
        });
    };
    each([&](const Call& c, const auto& key, const Binding& b) { return c.instance == 0 && of_first.insert({key, b}).second; });
    return each([&](const Call& c, const auto& key, Binding& b) {
        if (c.instance == 0 || of_first[key].buffer < 0) return false;
        b.buffer = of_first[key].buffer;
        return true;
    });
}

// A window of gathered weights in the bytes of the one that is gathered before it and still read after it.
bool overlap_windows(Program& p) {
    const std::vector<Call>& calls = train_calls(p);
    int before = -1;
    for (const Call& c : calls) {
        const Routine& r = routine_of(p, c);
        if (r.kind == RoutineKind::Free && c.bindings[0].buffer == before) before = -1;
        if (r.kind != RoutineKind::Gather) continue;
        const int window = c.bindings[static_cast<size_t>(r.port("full"))].buffer;
        if (before >= 0 && p.buffers[window].bytes <= p.buffers[before].bytes) {
            p.buffers[window].offset_bytes = p.buffers[before].offset_bytes;
            return true;
        }
        before = window;
    }
    return false;
}

// Statistics of the step run behind the updates, which find the numbers of the step before.
bool update_before_statistics(Program& p) {
    std::vector<Call>& calls = train_calls(p);
    std::vector<size_t> order, late;
    for (size_t i = 0; i < calls.size(); ++i) (routine_of(p, calls[i]).name == "stats.all" ? late : order).push_back(i);
    order.insert(order.end(), late.begin(), late.end());
    reorder(calls, order);
    return true;
}

bool drop_waits(Program& p, QueueName first) {
    bool any = false;
    for (Call& c : train_calls(p)) {
        const bool other = c.queue != first;
        any = any || (!other && !c.waits.empty());
        if (!other) c.waits.clear();
    }
    run_early(p, first);
    return any;
}

// In every call after the first: the bindings of the first, of ports that one picks.
bool repeat_first(Program& p, const Kinds& routines, int64_t Call::*counter, PortKind kind) {
    std::map<std::tuple<int, int64_t, int64_t, size_t>, Binding> first;
    return each_call(p, routines, [&](const Routine& r, Call& c) {
        bool any = false;
        for (size_t i = 0; i < r.ports.size(); ++i) {
            if (r.ports[i].kind != kind) continue;
            const int64_t other = counter == &Call::chunk ? c.microbatch : 0;
            const auto [it, is_new] = first.insert({{c.routine, c.instance, other, i}, c.bindings[i]});
            if (is_new) continue;
            c.bindings[i].buffer = it->second.buffer, c.bindings[i].offset_bytes = it->second.offset_bytes;
            any = true;
        }
        return any;
    });
}

bool gradients_fresh(Program& p, bool fresh, const std::function<bool(const Call&)>& where) {
    bool any = false;
    for (PortKind kind : {PortKind::Gradients, PortKind::State}) {
        any = each_binding(p, kAccumulating, kind,
                           [&](const Call& c, const ir::Port& port, Binding& b) {
                               return port.access == Access::Accumulate && where(c) && std::exchange(b.fresh, fresh) != fresh;
                           }) ||
              any;
    }
    return any;
}

bool is_recomputed(const Program& p) {
    return std::any_of(p.routines.begin(), p.routines.end(), [](const Routine& r) {
        return std::any_of(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return op.attrs.contains("recomputed"); });
    });
}

}  // namespace

std::vector<Defect> call_defects() {
    const auto on_program = [](const std::string& name, std::function<bool(Program&)> edit) {
        return Defect{name, in_programs(edit)};
    };
    const auto without = [&](const std::string& name, std::function<bool(const Program&, const Routine&, const Call&)> unwanted) {
        return on_program(name, [=](Program& p) {
            return remove_calls(p, [&](const Routine& r, const Call& c) { return unwanted(p, r, c); });
        });
    };
    const auto is_port = [](const char* name) { return [name](const ir::Port& port) { return port.name == name; }; };
    const auto is_params = [](const ir::Port& port) { return port.kind == PortKind::Params; };
    return {
        on_program("layers read the first layer's weights",
                   [=](Program& p) { return bind_first_layer(p, kForwards, is_params); }),
        on_program("layers gather the first layer's weights",
                   [=](Program& p) { return bind_first_layer(p, kGather, is_port("weights")); }),
        on_program("layers share the first layer's moments",
                   [=](Program& p) { return bind_first_layer(p, kUpdate, is_port("exp_avg")); }),
        on_program("backward reads the first layer's input",
                   [=](Program& p) { return !is_recomputed(p) && bind_first_layer(p, kBackwards, is_port("x")); }),
        on_program("recompute reads the first layer's input",
                   [=](Program& p) { return is_recomputed(p) && bind_first_layer(p, kBackwards, is_port("x")); }),
        on_program("backward reads the frame of the first microbatch",
                   [](Program& p) { return repeat_first(p, kBackwards, &Call::microbatch, PortKind::Frame); }),
        on_program("the first microbatch is read again",
                   [](Program& p) { return repeat_first(p, kCompute, &Call::microbatch, PortKind::Input); }),
        on_program("the first chunk's targets are read again",
                   [](Program& p) { return repeat_first(p, {RoutineKind::Loss}, &Call::chunk, PortKind::Input); }),
        on_program("the first chunk is computed again",
                   [](Program& p) { return repeat_first(p, {RoutineKind::Loss}, &Call::chunk, PortKind::Value); }),
        on_program("two windows of weights share bytes", overlap_windows),
        without(
            "weights are gathered for the first microbatch alone",
            [](const Program&, const Routine& r, const Call& c) { return r.kind == RoutineKind::Gather && c.microbatch > 0; }),
        without("a chunk of the loss is skipped",
                [](const Program&, const Routine& r, const Call& c) { return r.kind == RoutineKind::Loss && c.chunk > 0; }),
        without("gradients of the last microbatch are not reduced",
                [](const Program& p, const Routine& r, const Call& c) {
                    return r.kind == RoutineKind::ReduceMicro && c.microbatch > 0 && c.microbatch == p.microbatches - 1;
                }),
        without("targets of the first microbatch alone are counted",
                [](const Program&, const Routine& r, const Call& c) { return r.name == "count" && c.microbatch > 0; }),
        without("a layer is not updated",
                [](const Program&, const Routine& r, const Call& c) { return r.name == "update.layer" && c.instance == 0; }),
        on_program("updates run before the step's statistics", update_before_statistics),
        on_program("communication does not wait for computation", [](Program& p) { return drop_waits(p, QueueName::Comm); }),
        on_program("computation does not wait for communication", [](Program& p) { return drop_waits(p, QueueName::Compute); }),

        on_program("gradients add to those of the step before",
                   [](Program& p) { return gradients_fresh(p, false, [](const Call&) { return true; }); }),
        on_program("each microbatch's gradients overwrite the last one's",
                   [](Program& p) { return gradients_fresh(p, true, [](const Call& c) { return c.microbatch > 0; }); }),
        on_program("each chunk's gradients overwrite the last one's",
                   [](Program& p) { return gradients_fresh(p, true, [](const Call& c) { return c.chunk > 0; }); }),
        on_program("a tied table's second gradient overwrites the first",
                   [](Program& p) {
                       return gradients_fresh(p, true, [&](const Call& c) { return routine_of(p, c).name == "embed.backward"; });
                   }),
        on_program("the loss is that of the last microbatch",
                   [](Program& p) {
                       return each_binding(p, kCompute, PortKind::State, [](const Call&, const ir::Port& port, Binding& b) {
                           return port.access == Access::Accumulate && !std::exchange(b.fresh, true);
                       });
                   }),
    };
}

}  // namespace lockstep::testing
