#include "passes/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/round.h"
#include "ir/happens_before.h"
#include "ops/rule.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// Positions, both included; none where `last` is before `first`.
struct Span {
    int first = 0, last = -1;
    bool meets(const Span& o) const { return first <= o.last && o.first <= last; }
};

struct Item {
    int64_t bytes = 0;
    Span within;  // outside of these positions it is in conflict with nobody
    Span sure;    // items are surely in conflict where these meet
    int64_t offset = -1;

    int64_t end() const { return offset + bytes; }
};

struct Bytes {
    int64_t begin, end;
    bool operator<(const Bytes& o) const { return begin < o.begin; }
};

// Placed items by where in time they lie, so that only neighbours are asked about conflicts.
class Neighbours {
public:
    explicit Neighbours(int positions)
        : buckets_(static_cast<size_t>(positions / kWidth + 1)), full_(static_cast<size_t>(positions)) {}

    void add(size_t id, const Item& item) {
        const Placed placed{item.within, item.sure, {item.offset, item.end()}, id};
        bucket(item.within.first).beginning.push_back(placed);
        for (int b = item.within.first / kWidth; b <= item.within.last / kWidth; ++b) {
            std::vector<Placed>& all = buckets_[static_cast<size_t>(b)].all;
            all.insert(std::upper_bound(all.begin(), all.end(), placed), placed);
        }
        for (int at = item.sure.first; at <= item.sure.last; ++at) {
            int64_t& full = full_[static_cast<size_t>(at)];
            if (item.offset <= full) full = std::max(full, item.end());
        }
    }
    // No lower offset is free for the item.
    int64_t lowest(const Item& item) const {
        int64_t lowest = 0;
        for (int at = item.sure.first; at <= item.sure.last; ++at) lowest = std::max(lowest, full_[static_cast<size_t>(at)]);
        return lowest;
    }
    // The bytes above the item's offset of items in conflict with it, ascending: of those that are there when it begins, and of
    // those that begin later.
    template <class Conflict>
    void taken(const Item& item, const Conflict& conflict, std::vector<Bytes>& out) const {
        out.clear();
        const auto visit = [&](const std::vector<Placed>& some) {
            for (const Placed& p : some) {
                if (p.bytes.end > item.offset && p.within.meets(item.within) && (p.sure.meets(item.sure) || conflict(p.id)))
                    out.push_back(p.bytes);
            }
        };
        const int first = item.within.first / kWidth, last = item.within.last / kWidth;
        visit(buckets_[static_cast<size_t>(first)].all);
        for (int b = first + 1; b <= last; ++b) visit(buckets_[static_cast<size_t>(b)].beginning);
        if (last > first) std::sort(out.begin(), out.end());
    }

private:
    static constexpr int kWidth = 32;
    struct Placed {
        Span within, sure;
        Bytes bytes;
        size_t id;
        bool operator<(const Placed& o) const { return bytes < o.bytes; }
    };
    struct Bucket {
        std::vector<Placed> all, beginning;  // `all` by offset
    };
    Bucket& bucket(int at) { return buckets_[static_cast<size_t>(at / kWidth)]; }

    std::vector<Bucket> buckets_;
    std::vector<int64_t> full_;  // by position: what lies below is taken by items that are surely there
};

// Offsets such that items in conflict do not overlap; larger ones first, each in the lowest gap that holds it. Only items whose
// times overlap are asked about. Returns the end.
template <class Conflict>
int64_t allocate(std::vector<Item>& items, int positions, const Conflict& conflict) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].bytes > items[b].bytes; });
    int64_t end = 0;
    std::vector<Bytes> taken;
    Neighbours placed(positions);
    for (size_t i : order) {
        Item& item = items[i];
        item.offset = 0;
        if (item.bytes == 0) continue;
        item.offset = placed.lowest(item);
        placed.taken(
            item, [&](size_t j) { return conflict(i, j); }, taken);
        for (const Bytes& bytes : taken) {
            if (bytes.begin - item.offset >= item.bytes) break;
            item.offset = std::max(item.offset, bytes.end);
        }
        end = std::max(end, item.end());
        placed.add(i, item);
    }
    return end;
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
        const bool view = ops::rule(op.kind).view, may_overwrite = op.attrs.contains("in_place");
        if (!view && !may_overwrite) continue;
        const TensorId in = op.in[view ? 0 : static_cast<size_t>(ops::rule(op.kind).in_place)], out = op.out[0];
        if (r.tensors[out].port >= 0) continue;
        const bool same_bytes = ir::local_bytes(mesh, r, r.tensors[in]) == ir::local_bytes(mesh, r, r.tensors[out]);
        // In place if no later op reads the operand, under any of its names.
        const bool in_place = may_overwrite && r.tensors[in].port < 0 && last[root[in]] == k && r.tensors[root[in]].port < 0;
        if (!same_bytes || !(view || in_place)) continue;
        r.tensors[out].view_of = in;
        root[out] = root[in];
        last[root[in]] = std::max(last[root[in]], last[out]);
    }
    std::vector<Item> items;
    std::vector<TensorId> tensors;  // -1 - op: the workspace of an op
    for (size_t t = 0; t < n; ++t) {
        if (r.tensors[t].port >= 0 || root[t] != static_cast<TensorId>(t)) continue;
        const Span life{first[t], last[t]};
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

// First and last use of every buffer by an entry, per stream.
struct Life {
    int first[2] = {-1, -1}, last[2] = {-1, -1};
    bool used() const { return first[0] >= 0 || first[1] >= 0; }
    int begin() const { return first[0] < 0 ? first[1] : first[1] < 0 ? first[0] : std::min(first[0], first[1]); }
};

// The last call that may still run, in some execution, while the buffer is in use. Along a stream, once a call is ordered behind
// the uses all later ones are, so the search ends with the first such call of each stream.
int end_of(const ir::Entry& e, const ir::HappensBefore& happens_before, const Life& life) {
    int end = std::max(life.last[0], life.last[1]);
    bool ordered[2] = {false, false};
    const auto open = [&](ir::Stream s, int i) { return !ordered[static_cast<int>(s)] && i <= happens_before.last_of(s); };
    for (int i = end + 1; open(ir::Stream::Compute, i) || open(ir::Stream::Comm, i); ++i) {
        bool& done = ordered[static_cast<int>(e.calls[static_cast<size_t>(i)].stream)];
        if (done) continue;
        done = (life.last[0] < 0 || happens_before(life.last[0], i)) && (life.last[1] < 0 || happens_before(life.last[1], i));
        if (!done) end = i;
    }
    return end;
}

std::vector<Life> lives_of(const ir::Program& p, const ir::Entry& e) {
    std::vector<Life> lives(p.buffers.size());
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const auto use = [&](int buffer) {
            Life& life = lives[buffer];
            const int s = static_cast<int>(e.calls[i].stream);
            if (life.first[s] < 0) life.first[s] = static_cast<int>(i);
            life.last[s] = static_cast<int>(i);
        };
        for (const ir::Binding& b : e.calls[i].bindings) use(b.buffer);
        if (e.calls[i].scratch >= 0) use(e.calls[i].scratch);
    }
    return lives;
}

void add_scratch(ir::Program& p, ir::Entry& e) {
    const std::string stem = fmt::format("{}.scratch#", name_of(e.kind));
    p.buffers.reserve(p.buffers.size() + e.calls.size());
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const Routine& r = p.routines[e.calls[i].routine];
        if (r.scratch_bytes == 0) continue;
        p.buffers.push_back({stem + std::to_string(i), ir::MemoryKind::Workspace, r.scratch_bytes});
        e.calls[i].scratch = static_cast<int>(p.buffers.size()) - 1;
    }
}

}  // namespace

ir::Program plan_memory(ir::Program program) {
    for (Routine& r : program.routines) plan_scratch(program.mesh, r);
    for (ir::Entry& e : program.entries) add_scratch(program, e);
    int64_t resident = 0;
    for (ir::Buffer& b : program.buffers) {
        if (!b.resident) continue;
        b.offset_bytes = resident;
        resident += b.bytes;
    }
    program.arena_bytes = resident;
    for (const ir::Entry& e : program.entries) {
        const std::vector<Life> lives = lives_of(program, e);
        const ir::HappensBefore happens_before(e.calls);
        std::vector<Item> items;
        std::vector<size_t> ids;
        for (size_t b = 0; b < program.buffers.size(); ++b) {
            if (program.buffers[b].resident || !lives[b].used()) continue;
            const Life& life = lives[b];
            constexpr auto kCompute = static_cast<size_t>(ir::Stream::Compute);  // whose calls run one after the other
            items.push_back({program.buffers[b].bytes,
                             {life.begin(), end_of(e, happens_before, life)},
                             {life.first[kCompute], life.first[kCompute] < 0 ? -2 : life.last[kCompute]}});
            ids.push_back(b);
        }
        const auto before = [&](const Life& a, const Life& b) {
            for (int s = 0; s < 2; ++s) {
                for (int t = 0; t < 2; ++t) {
                    if (a.last[s] >= 0 && b.first[t] >= 0 && !happens_before(a.last[s], b.first[t])) return false;
                }
            }
            return true;
        };
        const int64_t end = allocate(items, static_cast<int>(e.calls.size()), [&](size_t i, size_t j) {
            const Life &a = lives[ids[i]], &b = lives[ids[j]];
            return !before(a, b) && !before(b, a);
        });
        for (size_t i = 0; i < items.size(); ++i) program.buffers[ids[i]].offset_bytes = resident + items[i].offset;
        program.arena_bytes = std::max(program.arena_bytes, resident + end);
    }
    return program;
}

int64_t live_bytes(const ir::Program& program, const ir::Entry& entry) {
    const std::vector<Life> lives = lives_of(program, entry);
    const ir::HappensBefore happens_before(entry.calls);
    std::vector<int64_t> change(entry.calls.size() + 1, 0);
    int64_t resident = 0;
    for (size_t b = 0; b < lives.size(); ++b) {
        if (program.buffers[b].resident) {
            resident += program.buffers[b].bytes;
        } else if (lives[b].used()) {
            change[static_cast<size_t>(lives[b].begin())] += program.buffers[b].bytes;
            change[static_cast<size_t>(end_of(entry, happens_before, lives[b])) + 1] -= program.buffers[b].bytes;
        }
    }
    int64_t now = resident, most = resident;
    for (int64_t c : change) most = std::max(most, now += c);
    return most;
}

}  // namespace lockstep::passes
