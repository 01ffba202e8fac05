#include "passes/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/round.h"
#include "ir/happens_before.h"
#include "ops/rope.h"
#include "ops/rule.h"
#include "passes/interval_allocator.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// Is the operand, or what it views, better made in the port of the result, which it alone becomes? The op then leaves the bytes
// that it does not change.
bool is_better_in(const mesh::Mesh& mesh, const Routine& r, const Op& op, TensorId operand) {
    const ir::Tensor &in = r.tensors[operand], &out = r.tensors[op.out[0]];
    return in.port < 0 && r.ports[out.port].access == ir::Access::Write && ops::untouched_bytes(mesh, r, op) > 0 &&
           ir::local_bytes(mesh, r, in) == ir::local_bytes(mesh, r, out);
}

// Temporaries of one routine, whose ops run one after the other.
void plan_scratch(const mesh::Mesh& mesh, Routine& r) {
    const int n_ops = static_cast<int>(r.ops.size());
    const size_t n = r.tensors.size();
    std::vector<TensorId> root(n);  // the tensor whose bytes this one uses
    std::iota(root.begin(), root.end(), 0);
    std::vector<int> first(n, n_ops), last(n, -1);
    for (int k = 0; k < n_ops; ++k) {
        for (TensorId t : r.ops[k].in) last[t] = k;
        for (TensorId t : r.ops[k].out) first[t] = std::min(first[t], k), last[t] = std::max(last[t], k);
    }
    for (int k = 0; k < n_ops; ++k) {
        Op& op = r.ops[k];
        const bool view = ops::rule(op.kind).memory.view, may_overwrite = op.attrs.contains("in_place");
        if (!view && !may_overwrite) continue;
        const TensorId in = op.in[view ? 0 : static_cast<size_t>(ops::rule(op.kind).memory.in_place)], out = op.out[0];
        if (r.tensors[out].port >= 0) {
            if (may_overwrite && last[root[in]] == k && is_better_in(mesh, r, op, root[in])) {
                r.tensors[root[in]].view_of = out;
                const TensorId made_as = root[in];
                std::replace(root.begin(), root.end(), made_as, out);
            }
            continue;
        }
        const bool same_bytes = ir::local_bytes(mesh, r, r.tensors[in]) == ir::local_bytes(mesh, r, r.tensors[out]);
        // In place if no later op reads the operand, under any of its names.
        const bool in_place = may_overwrite && r.tensors[in].port < 0 && last[root[in]] == k && r.tensors[root[in]].port < 0;
        if (!same_bytes || !(view || in_place)) continue;
        r.tensors[out].view_of = in;
        root[out] = root[in];
        last[root[in]] = std::max(last[root[in]], last[out]);
    }
    std::vector<Allocation> items;
    std::vector<TensorId> tensors;  // -1 - op: the workspace of an op
    for (size_t t = 0; t < n; ++t) {
        if (r.tensors[t].port >= 0 || root[t] != static_cast<TensorId>(t)) continue;
        const Interval life{first[t], last[t]};
        items.push_back({round_up(ir::local_bytes(mesh, r, r.tensors[t]), kAlignmentBytes), life, life});
        tensors.push_back(static_cast<TensorId>(t));
    }
    for (int k = 0; k < n_ops; ++k) {
        if (r.ops[k].workspace_bytes == 0) continue;
        items.push_back({round_up(r.ops[k].workspace_bytes, kAlignmentBytes), {k, k}, {k, k}});
        tensors.push_back(-1 - k);
    }
    r.scratch_bytes = allocate(items, n_ops, [](size_t, size_t) { return true; });
    for (size_t i = 0; i < items.size(); ++i) {
        if (tensors[i] >= 0) r.tensors[tensors[i]].offset_bytes = items[i].offset;
        else r.ops[-1 - tensors[i]].workspace_offset_bytes = items[i].offset;
    }
}

// First and last use of every buffer by an entry, by queue.
struct Life {
    ByStepQueue<int> first{-1}, last{-1};
    int begin = -1;

    bool used() const { return begin >= 0; }
    int end() const { return *std::max_element(last.begin(), last.end()); }
};

// The last call that may still run, in some execution, while the buffer is in use. Along a queue, once a call is ordered behind
// the uses all later ones are.
int end_of(const ir::HappensBefore& happens_before, const Life& life) {
    const int last_use = life.end();
    int end = last_use;
    std::array<int, kStepQueues> uses;  // the last of each queue that has one
    const auto uses_end = std::ranges::copy_if(life.last, uses.begin(), [](int last) { return last >= 0; }).out;
    const auto may_still_run = [&](int call) {
        return !std::all_of(uses.begin(), uses_end, [&](int last) { return happens_before(last, call); });
    };
    for (QueueName queue : kQueuesOfSteps) {
        const std::vector<int>& calls = happens_before.calls_of(queue);
        auto behind = std::upper_bound(calls.begin(), calls.end(), last_use);
        // Mostly few calls: in steps that double, then between the last two.
        std::ptrdiff_t step = 1;
        while (calls.end() - behind > step && may_still_run(behind[step])) behind += step, step *= 2;
        const auto ordered = std::partition_point(behind, behind + std::min(step, calls.end() - behind), may_still_run);
        if (ordered != calls.begin()) end = std::max(end, *(ordered - 1));
    }
    return end;
}

std::vector<Life> lives_of(const ir::Program& p, const ir::Entry& e) {
    std::vector<Life> lives(p.buffers.size());
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const auto use = [&](int buffer) {
            Life& life = lives[buffer];
            const QueueName queue = e.calls[i].queue;
            if (life.first[queue] < 0) life.first[queue] = static_cast<int>(i);
            if (life.begin < 0) life.begin = static_cast<int>(i);
            life.last[queue] = static_cast<int>(i);
        };
        for (const ir::Binding& b : e.calls[i].bindings) use(b.buffer);
        if (e.calls[i].scratch >= 0) use(e.calls[i].scratch);
    }
    return lives;
}

void add_scratch(ir::Program& p, ir::Entry& e) {
    const std::string stem = fmt::format("{}.scratch#", name_of(e.kind));
    const bool are_named = !p.buffers.empty() && !p.buffers.front().name.empty();
    p.buffers.reserve(p.buffers.size() + e.calls.size());
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const Routine& r = p.routines[e.calls[i].routine];
        if (r.scratch_bytes == 0) continue;
        p.buffers.push_back({are_named ? stem + std::to_string(i) : std::string(), ir::MemoryKind::Workspace, r.scratch_bytes});
        e.calls[i].scratch = static_cast<int>(p.buffers.size()) - 1;
    }
}

}  // namespace

ir::Program plan_memory(ir::Program program) {
    for (Routine& r : program.routines) plan_scratch(program.mesh, r);
    for (ir::Entry& e : program.entries) add_scratch(program, e);
    return place_buffers(std::move(program));
}

ir::Program place_buffers(ir::Program program) {
    program.arena_bytes = {};
    for (ir::Buffer& b : program.buffers) {
        ensure(b.resident || b.place == Place::Device, "plan_memory: what lies in the host's memory lives through steps");
        if (!b.resident) continue;
        b.offset_bytes = program.arena_bytes[b.place];
        program.arena_bytes[b.place] += b.bytes;
    }
    const int64_t resident = program.arena_bytes[Place::Device];
    for (const ir::Entry& e : program.entries) {
        const std::vector<Life> lives = lives_of(program, e);
        const ir::HappensBefore happens_before(e.calls);
        std::vector<Allocation> items;
        std::vector<size_t> ids;
        for (size_t b = 0; b < program.buffers.size(); ++b) {
            if (program.buffers[b].resident || !lives[b].used()) continue;
            const Life& life = lives[b];
            // What happens before another call is before it in the list,
            // so buffers are in conflict where their uses overlap in the list.
            items.push_back({program.buffers[b].bytes, {life.begin, end_of(happens_before, life)}, {life.begin, life.end()}});
            ids.push_back(b);
        }
        const auto before = [&](const Life& a, const Life& b) {
            for (int last : a.last) {
                for (int first : b.first) {
                    if (last >= 0 && first >= 0 && !happens_before(last, first)) return false;
                }
            }
            return true;
        };
        const int64_t end = allocate(items, static_cast<int>(e.calls.size()), [&](size_t i, size_t j) {
            const Life &a = lives[ids[i]], &b = lives[ids[j]];
            return !before(a, b) && !before(b, a);
        });
        for (size_t i = 0; i < items.size(); ++i) program.buffers[ids[i]].offset_bytes = resident + items[i].offset;
        int64_t& arena = program.arena_bytes[Place::Device];
        arena = std::max(arena, resident + end);
    }
    return program;
}

namespace {

// The largest sum of bytes of the device's buffers from the beginning of their lives to `end_of` them.
template <class EndOf>
int64_t most_bytes(const ir::Program& program, const ir::Entry& entry, const EndOf& end_of) {
    const std::vector<Life> lives = lives_of(program, entry);
    std::vector<int64_t> change(entry.calls.size() + 1, 0);
    int64_t resident = 0;
    for (size_t b = 0; b < lives.size(); ++b) {
        if (program.buffers[b].place != Place::Device) continue;
        if (program.buffers[b].resident) {
            resident += program.buffers[b].bytes;
        } else if (lives[b].used()) {
            change[static_cast<size_t>(lives[b].begin)] += program.buffers[b].bytes;
            change[static_cast<size_t>(end_of(lives[b])) + 1] -= program.buffers[b].bytes;
        }
    }
    int64_t now = resident, most = resident;
    for (int64_t c : change) most = std::max(most, now += c);
    return most;
}

}  // namespace

int64_t live_bytes(const ir::Program& program, const ir::Entry& entry) {
    const ir::HappensBefore happens_before(entry.calls);
    return most_bytes(program, entry, [&](const Life& life) { return end_of(happens_before, life); });
}

ir::Program size_memory(ir::Program program) {
    for (Routine& r : program.routines) plan_scratch(program.mesh, r);
    program.arena_bytes = {};
    for (const ir::Buffer& b : program.buffers) {
        if (b.place != Place::Device) program.arena_bytes[b.place] += b.bytes;
    }
    int64_t& arena = program.arena_bytes[Place::Device];
    for (ir::Entry& e : program.entries) {
        add_scratch(program, e);
        // Those whose uses overlap in the list are in conflict with each other. What may still run at the same time as the last
        // use of one may be in another queue, and in conflict with that one only.
        arena = std::max(arena, most_bytes(program, e, [](const Life& life) { return life.end(); }));
    }
    return program;
}

}  // namespace lockstep::passes
