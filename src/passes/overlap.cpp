#include "passes/overlap.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "ops/rule.h"
#include "passes/parts.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::Call;
using ir::RoutineKind;

bool communicates(const ir::Routine& r) {
    return std::any_of(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return ops::rule(op.kind).collective; });
}

bool only_communicates(const ir::Routine& r) {
    return !r.ops.empty() &&
           std::all_of(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return ops::rule(op.kind).collective; });
}

bool gathers(const ir::Routine& r) { return r.kind == RoutineKind::Fetch || r.kind == RoutineKind::Gather; }

}  // namespace

std::vector<QueueName> queues_of(const ir::Program& p) {
    std::vector<QueueName> out;
    for (size_t i = 0; i < p.routines.size(); ++i) {
        const ir::Routine& r = p.routines[i];
        const bool of_unit = gathers(r) || r.kind == RoutineKind::ReduceMicro || r.kind == RoutineKind::ReduceStep;
        const bool of_block = ir::is_forward(r.kind) || ir::is_backward(r.kind);
        QueueName queue = QueueName::Compute;
        if (of_unit && communicates(r)) queue = QueueName::Comm;
        if (of_block && is_a_part(p, i) && only_communicates(r)) queue = QueueName::Tensor;
        if (r.kind == RoutineKind::Transfer) queue = QueueName::Pipeline;
        out.push_back(queue);
    }
    return out;
}

namespace {

// Moves every group of gathers in front of the computation that uses the group `depth` before it.
std::vector<Call> prefetch(const ir::Program& p, const std::vector<QueueName>& queues, std::vector<Call> calls, int64_t depth) {
    const auto is_gather = [&](const Call& c) { return gathers(p.routines[c.routine]) && queues[c.routine] == QueueName::Comm; };
    if (std::none_of(calls.begin(), calls.end(), is_gather)) return calls;
    std::vector<size_t> first_use;  // position behind each group of gathers, in order
    std::vector<std::vector<Call>> groups;
    for (size_t i = 0; i < calls.size();) {
        if (!is_gather(calls[i])) {
            ++i;
            continue;
        }
        groups.emplace_back();
        while (i < calls.size() && is_gather(calls[i])) groups.back().push_back(std::move(calls[i++]));
        first_use.push_back(i);
    }
    std::map<size_t, std::vector<Call>> before;  // position -> gathers that are now there
    for (size_t g = 0; g < groups.size(); ++g) {
        const size_t at = first_use[given_before_use_of(g, depth)];
        for (Call& c : groups[g]) before[at].push_back(std::move(c));
    }
    std::vector<Call> out;
    out.reserve(calls.size());
    for (size_t i = 0; i <= calls.size(); ++i) {
        if (auto it = before.find(i); it != before.end())
            std::move(it->second.begin(), it->second.end(), std::back_inserter(out));
        if (i < calls.size() && !is_gather(calls[i])) out.push_back(std::move(calls[i]));
    }
    return out;
}

// Does the call begin to fill the full-size gradients of a unit that are reduced after each microbatch?
bool opens_local_gradients(const ir::Program& p, const Call& c) {
    const ir::Routine& r = p.routines[c.routine];
    for (size_t b = 0; b < c.bindings.size(); ++b) {
        const ir::Port& port = r.ports[b];
        if (port.kind == ir::PortKind::Gradients && port.access == Access::Accumulate && c.bindings[b].fresh &&
            !p.unit(port.unit)->gradients.empty())
            return true;
    }
    return false;
}

void add_waits(const ir::Program& p, const std::vector<QueueName>& queues, std::vector<Call>& calls, size_t in_flight) {
    struct Uses {
        int writer = -1;
        ByStepQueue<int> readers{-1};  // the last one since the last write
    };
    std::vector<Uses> uses(p.buffers.size());
    std::vector<int> reductions;                                  // calls of reduce_micro so far
    ByStepQueue<int> latest{-1};                                  // the last call of each queue
    ByStepQueue<ByStepQueue<int>> awaited{ByStepQueue<int>{-1}};  // by the calls of a queue: the last call of each other queue
    for (size_t i = 0; i < calls.size(); ++i) {
        Call& c = calls[i];
        const ir::Routine& r = p.routines[c.routine];
        c.queue = queues[c.routine];
        ByStepQueue<int> needed{-1};  // the last call of each other queue that must have ended
        if (!traits_of(c.queue).computes) needed[QueueName::Compute] = latest[QueueName::Compute];
        const auto after = [&](int call) {
            if (call >= 0 && calls[call].queue != c.queue) needed[calls[call].queue] = std::max(needed[calls[call].queue], call);
        };
        for (size_t b = 0; b < c.bindings.size(); ++b) {
            Uses& u = uses[c.bindings[b].buffer];
            after(u.writer);
            if (r.ports[b].access == Access::Read) {
                u.readers[c.queue] = static_cast<int>(i);
            } else {
                for (int reader : u.readers) after(reader);
                u = {static_cast<int>(i)};
            }
        }
        if (opens_local_gradients(p, c) && reductions.size() > in_flight) after(reductions[reductions.size() - 1 - in_flight]);
        if (r.kind == RoutineKind::ReduceMicro) reductions.push_back(static_cast<int>(i));
        for (QueueName q : kQueuesOfSteps) {
            if (needed[q] <= awaited[c.queue][q]) continue;
            c.waits.push_back(needed[q]);
            awaited[c.queue][q] = needed[q];
        }
        latest[c.queue] = static_cast<int>(i);
    }
}

}  // namespace

ir::Program overlap(ir::Program program, const OverlapOptions& options) {
    const std::vector<QueueName> queues = queues_of(program);
    for (ir::Entry& e : program.entries) {
        e.calls = prefetch(program, queues, std::move(e.calls), options.prefetch);
        add_waits(program, queues, e.calls, static_cast<size_t>(std::max<int64_t>(options.prefetch, 1)));
    }
    return program;
}

}  // namespace lockstep::passes
