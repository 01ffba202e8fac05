// Small edits of programs, for tests. Each says whether it found a place.
#pragma once

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace lockstep::testing {

using Kinds = std::vector<ir::RoutineKind>;

inline const Kinds kForwards = {ir::RoutineKind::Forward, ir::RoutineKind::Loss};
inline const Kinds kBackwards = {ir::RoutineKind::Backward, ir::RoutineKind::BackwardInput, ir::RoutineKind::BackwardWeight};
inline const Kinds kBackwardInput = {ir::RoutineKind::BackwardInput}, kBackwardWeight = {ir::RoutineKind::BackwardWeight};
inline const Kinds kGather = {ir::RoutineKind::Gather}, kTransfer = {ir::RoutineKind::Transfer},
                   kUpdate = {ir::RoutineKind::Update}, kStats = {ir::RoutineKind::Stats},
                   kReduceMicro = {ir::RoutineKind::ReduceMicro}, kReduceStep = {ir::RoutineKind::ReduceStep},
                   kReductions = {ir::RoutineKind::ReduceMicro, ir::RoutineKind::ReduceStep};
inline const Kinds kCompute = {ir::RoutineKind::Forward, ir::RoutineKind::Loss, ir::RoutineKind::Backward,
                               ir::RoutineKind::BackwardInput, ir::RoutineKind::BackwardWeight};

// Every op of one kind in routines of these kinds; `edit` returns whether it changed the op. Ops that it leaves without
// results are dropped.
inline bool each_op(ir::Program& p, const Kinds& routines, std::string_view kind,
                    const std::function<bool(ir::Routine&, ir::Op&)>& edit) {
    bool any = false;
    for (ir::Routine& r : p.routines) {
        if (std::find(routines.begin(), routines.end(), r.kind) == routines.end()) continue;
        for (ir::Op& op : r.ops) {
            if (op.kind == kind) any = edit(r, op) || any;
        }
        std::erase_if(r.ops, [](const ir::Op& op) { return op.out.empty() && op.kind != "send" && op.kind != "wait"; });
    }
    return any;
}

// Sets an attribute of such ops where it differs.
inline bool set_attr(ir::Program& p, const Kinds& routines, std::string_view kind, const std::string& key,
                     const ir::Attr& value) {
    return each_op(p, routines, kind, [&](ir::Routine&, ir::Op& op) {
        if (!op.attrs.contains(key) || op.attrs[key] == value) return false;
        op.attrs[key] = value;
        return true;
    });
}

// The block or unit that a routine serves.
inline const std::string& served(const ir::Routine& r) { return r.unit.empty() ? r.block : r.unit; }

inline std::vector<ir::Call>& train_calls(ir::Program& p) {
    return std::find_if(p.entries.begin(), p.entries.end(), [](const ir::Entry& e) { return e.kind == ir::EntryKind::Train; })
        ->calls;
}
inline const ir::Routine& routine_of(const ir::Program& p, const ir::Call& c) {
    return p.routines[static_cast<size_t>(c.routine)];
}

inline bool each_call(ir::Program& p, const Kinds& routines, const std::function<bool(const ir::Routine&, ir::Call&)>& edit) {
    bool any = false;
    for (ir::Call& c : train_calls(p)) {
        const ir::Routine& r = routine_of(p, c);
        if (std::find(routines.begin(), routines.end(), r.kind) != routines.end()) any = edit(r, c) || any;
    }
    return any;
}

// Every binding of such calls to a port of one kind.
inline bool each_binding(ir::Program& p, const Kinds& routines, ir::PortKind kind,
                         const std::function<bool(const ir::Call&, const ir::Port&, ir::Binding&)>& edit) {
    return each_call(p, routines, [&](const ir::Routine& r, ir::Call& c) {
        bool any = false;
        for (size_t i = 0; i < r.ports.size(); ++i) {
            if (r.ports[i].kind == kind) any = edit(c, r.ports[i], c.bindings[i]) || any;
        }
        return any;
    });
}

// `order` holds old positions; what is absent is dropped, with the waits for it.
inline void reorder(std::vector<ir::Call>& calls, const std::vector<size_t>& order) {
    std::vector<int> place(calls.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
    std::vector<ir::Call> out;
    for (size_t old : order) {
        out.push_back(calls[old]);
        for (int& w : out.back().waits) w = place[static_cast<size_t>(w)];
        std::erase(out.back().waits, -1);
    }
    calls = std::move(out);
}

inline bool remove_calls(ir::Program& p, const std::function<bool(const ir::Routine&, const ir::Call&)>& unwanted) {
    std::vector<ir::Call>& calls = train_calls(p);
    std::vector<size_t> order;
    for (size_t i = 0; i < calls.size(); ++i) {
        if (!unwanted(routine_of(p, calls[i]), calls[i])) order.push_back(i);
    }
    const bool any = order.size() < calls.size();
    reorder(calls, order);
    return any;
}

// The order in which one thread runs the calls when calls of `first` start as soon as their waits allow, and the others only
// when nothing of `first` can. Every such order is an execution that streams and waits permit. What all pipeline ranks meet in
// comes when all before it is done: with one thread, who sits in it could not send what another still waits for.
inline void run_early(ir::Program& p, QueueName first) {
    std::vector<ir::Call>& calls = train_calls(p);
    std::vector<bool> done(calls.size(), false);
    std::vector<size_t> order;
    ByStepQueue<size_t> next;
    const auto advance = [&](QueueName s) {
        size_t& i = next[s];
        while (i < calls.size() && calls[i].queue != s) ++i;
        if (i == calls.size()) return false;
        if (!std::all_of(calls[i].waits.begin(), calls[i].waits.end(), [&](int w) { return done[static_cast<size_t>(w)]; }))
            return false;
        const ir::Routine& r = p.routines[static_cast<size_t>(calls[i].routine)];
        const bool of_all = r.kind != ir::RoutineKind::Transfer && std::any_of(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) {
                                return ir::crosses_pipeline(p, op);
                            });
        if (of_all && !std::all_of(done.begin(), done.begin() + static_cast<long>(i), [](bool d) { return d; })) return false;
        done[i] = true;
        order.push_back(i++);
        return true;
    };
    while (advance(first) || std::ranges::any_of(kQueuesOfSteps, advance)) {
    }
    for (ir::Call& c : calls) c.waits.clear(), c.queue = QueueName::Compute;
    reorder(calls, order);
}

}  // namespace lockstep::testing
