#include "passes/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
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

// Positions in blocks, so that a long span is few of them.
constexpr int kWidth = 64;
bool is_whole(const Span& part) { return part.last - part.first + 1 == kWidth; }
// Calls f on each block that the span meets, and of the part of the span in it.
template <class F>
void for_each_block(const Span& within, const F& f) {
    if (within.last < within.first) return;
    for (int b = within.first / kWidth; b <= within.last / kWidth; ++b) {
        f(static_cast<size_t>(b), Span{std::max(within.first, b * kWidth), std::min(within.last, b * kWidth + kWidth - 1)});
    }
}

// By position: what lies below is taken by items that are surely there.
class Filled {
public:
    explicit Filled(int positions)
        : positions_(static_cast<size_t>(positions) / kWidth * kWidth + kWidth), blocks_(positions_.size() / kWidth) {}

    int64_t highest(const Span& within) const {
        int64_t most = 0;
        for_each_block(within, [&](size_t b, const Span& part) {
            const Block& block = blocks_[b];
            if (is_whole(part)) return void(most = std::max(most, block.highest));
            for (int at = part.first; at <= part.last; ++at) {
                const int64_t here = positions_[static_cast<size_t>(at)];
                most = std::max(most, here == block.raised_from ? block.highest : here);
            }
        });
        return most;
    }
    // Positions that are filled up to `offset`, which is the highest of the span, are filled up to `end` from now on.
    void fill(const Span& within, int64_t offset, int64_t end) {
        for_each_block(within, [&](size_t b, const Span& part) {
            Block& block = blocks_[b];
            if (is_whole(part)) {
                if (block.highest != offset) return;
                if (block.raised_from < 0) block.raised_from = offset;
                block.highest = end;
                return;
            }
            if (block.raised_from >= 0) {
                int64_t* const first = &positions_[b * kWidth];
                std::replace(first, first + kWidth, block.raised_from, block.highest);
                block.raised_from = -1;
            }
            for (int at = part.first; at <= part.last; ++at) {
                int64_t& here = positions_[static_cast<size_t>(at)];
                if (here == offset) here = end, block.highest = std::max(block.highest, end);
            }
        });
    }

private:
    struct Block {
        int64_t highest = 0;
        int64_t raised_from = -1;  // those of its positions that are at this height are at `highest` by now
    };

    std::vector<int64_t> positions_;
    std::vector<Block> blocks_;
};

// By position: where the highest item that may be there ends.
class Tops {
public:
    explicit Tops(int positions)
        : positions_(static_cast<size_t>(positions) / kWidth * kWidth + kWidth), blocks_(positions_.size() / kWidth) {}

    int64_t highest(const Span& within) const {
        int64_t most = 0;
        for_each_block(within, [&](size_t b, const Span& part) {
            if (is_whole(part)) return void(most = std::max(most, blocks_[b].highest));
            most = std::max(most, blocks_[b].of_all);
            for (int at = part.first; at <= part.last; ++at) most = std::max(most, positions_[static_cast<size_t>(at)]);
        });
        return most;
    }
    void raise(const Span& within, int64_t end) {
        for_each_block(within, [&](size_t b, const Span& part) {
            Block& block = blocks_[b];
            block.highest = std::max(block.highest, end);
            if (is_whole(part)) return void(block.of_all = std::max(block.of_all, end));
            for (int at = part.first; at <= part.last; ++at) {
                int64_t& here = positions_[static_cast<size_t>(at)];
                here = std::max(here, end);
            }
        });
    }

private:
    struct Block {
        int64_t highest = 0;  // of any of its positions
        int64_t of_all = 0;   // each of its positions is at least this high
    };
    std::vector<int64_t> positions_;
    std::vector<Block> blocks_;
};

// Placed items by where in time they lie, so that only those are asked about conflicts that may be in one.
class Neighbours {
public:
    explicit Neighbours(int positions)
        : leaves_(std::bit_ceil(static_cast<size_t>(positions / kBlock) + 1)),
          there_(2 * leaves_),
          beginning_(leaves_),
          latest_(2 * leaves_) {}

    void add(size_t id, const Item& item) {
        const Placed placed{item.within, item.sure, {item.offset, item.end()}, item.end(), id};
        const size_t first = leaves_ + static_cast<size_t>(item.within.first / kBlock);
        for (size_t a = first, b = leaves_ + static_cast<size_t>(item.within.last / kBlock) + 1; a < b; a /= 2, b /= 2) {
            if (a % 2 == 1) insert(there_[a++], placed);
            if (b % 2 == 1) insert(there_[--b], placed);
        }
        insert(beginning_[first - leaves_], placed);
        for (size_t node = first; node > 0; node /= 2) latest_[node] = std::max(latest_[node], placed.bytes.end);
    }

    // The lowest offset from the item's on at which it is in nobody's way.
    template <class Conflict>
    int64_t lowest_gap(const Item& item, const Conflict& conflict) {
        sources_.clear();
        for (size_t node = leaves_ + static_cast<size_t>(item.within.first / kBlock); node > 0; node /= 2)
            add_source(there_[node], item.offset);  // those that are there when it begins,
        const Span later{item.within.first / kBlock + 1, item.within.last / kBlock};
        add_sources_beginning(1, {0, static_cast<int>(leaves_) - 1}, later, item.offset);  // and those that begin later
        int64_t offset = item.offset;
        const auto is_behind = [](const Source& a, const Source& b) { return b.first->bytes < a.first->bytes; };
        std::make_heap(sources_.begin(), sources_.end(), is_behind);
        while (!sources_.empty() && sources_.front().first->bytes.begin - offset < item.bytes) {
            std::pop_heap(sources_.begin(), sources_.end(), is_behind);
            Source& source = sources_.back();
            const Placed& p = *source.first++;
            if (p.bytes.end > offset && p.within.meets(item.within) && (p.sure.meets(item.sure) || conflict(p.id)))
                offset = p.bytes.end;
            if (source.first == source.last) sources_.pop_back();
            else std::push_heap(sources_.begin(), sources_.end(), is_behind);
        }
        return offset;
    }

private:
    static constexpr int kBlock = 16;  // positions, so that a tree over them is low
    struct Placed {
        Span within, sure;
        Bytes bytes;
        int64_t highest_end;  // of it and of all before it in its list
        size_t id;
    };
    using List = std::vector<Placed>;  // by offset
    struct Source {
        const Placed *first, *last;
    };

    static void insert(List& list, const Placed& placed) {
        auto at = std::upper_bound(list.begin(), list.end(), placed,
                                   [](const Placed& a, const Placed& b) { return a.bytes < b.bytes; });
        at = list.insert(at, placed);
        if (at != list.begin()) at->highest_end = std::max(at->highest_end, (at - 1)->highest_end);
        for (++at; at != list.end() && at->highest_end < placed.bytes.end; ++at) at->highest_end = placed.bytes.end;
    }
    // From the first of the list that may end above `offset`.
    void add_source(const List& list, int64_t offset) {
        const auto first =
            std::partition_point(list.begin(), list.end(), [&](const Placed& p) { return p.highest_end <= offset; });
        if (first != list.end()) sources_.push_back({&*first, list.data() + list.size()});
    }
    void add_sources_beginning(size_t node, const Span& of, const Span& within, int64_t offset) {
        if (!of.meets(within) || latest_[node] <= offset) return;
        if (node >= leaves_) return add_source(beginning_[static_cast<size_t>(of.first)], offset);
        const int middle = (of.first + of.last) / 2;
        add_sources_beginning(2 * node, {of.first, middle}, within, offset);
        add_sources_beginning(2 * node + 1, {middle + 1, of.last}, within, offset);
    }

    size_t leaves_;
    std::vector<List> there_;  // by node of a tree over blocks: items in all of the node's blocks, and not in all of its parent's
    std::vector<List> beginning_;  // by block
    std::vector<int64_t> latest_;  // by node: the highest end of items that begin in it
    std::vector<Source> sources_;
};

// Offsets such that items in conflict do not overlap; larger ones first, each in the lowest gap that holds it. Only items whose
// times overlap are asked about. Returns the end.
template <class Conflict>
int64_t allocate(std::vector<Item>& items, int positions, const Conflict& conflict) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].bytes > items[b].bytes; });
    int64_t end = 0;
    Filled filled(positions);
    Tops tops(positions);
    Neighbours placed(positions);
    for (size_t i : order) {
        Item& item = items[i];
        item.offset = 0;
        if (item.bytes == 0) continue;
        item.offset = filled.highest(item.sure);  // no lower offset is free
        const int64_t lowest = item.offset;
        if (tops.highest(item.within) > lowest) item.offset = placed.lowest_gap(item, [&](size_t j) { return conflict(i, j); });
        end = std::max(end, item.end());
        if (item.offset == lowest) filled.fill(item.sure, lowest, item.end());
        tops.raise(item.within, item.end());
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
        const bool view = ops::rule(op.kind).memory.view, may_overwrite = op.attrs.contains("in_place");
        if (!view && !may_overwrite) continue;
        const TensorId in = op.in[view ? 0 : static_cast<size_t>(ops::rule(op.kind).memory.in_place)], out = op.out[0];
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

// First and last use of every buffer by an entry, by queue.
struct Life {
    ByStepQueue<int> first{-1}, last{-1};
    int begin = -1;

    bool used() const { return begin >= 0; }
    int end() const { return *std::max_element(last.begin(), last.end()); }
};

// The last call that may still run, in some execution, while the buffer is in use. Along a queue, once a call is ordered behind
// the uses all later ones are, so the search ends with the first such call of each queue.
int end_of(const ir::Entry& e, const ir::HappensBefore& happens_before, const Life& life) {
    int end = life.end();
    ByStepQueue<bool> ordered;
    const auto open = [&](int i) {
        return std::ranges::any_of(kQueuesOfSteps, [&](QueueName q) { return !ordered[q] && i <= happens_before.last_of(q); });
    };
    for (int i = end + 1; open(i); ++i) {
        bool& done = ordered[e.calls[static_cast<size_t>(i)].queue];
        if (done) continue;
        done = std::ranges::all_of(life.last, [&](int last) { return last < 0 || happens_before(last, i); });
        if (!done) end = i;
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
        std::vector<Item> items;
        std::vector<size_t> ids;
        for (size_t b = 0; b < program.buffers.size(); ++b) {
            if (program.buffers[b].resident || !lives[b].used()) continue;
            const Life& life = lives[b];
            // What happens before another call stands before it, so buffers are in conflict where their uses overlap in the list.
            items.push_back({program.buffers[b].bytes, {life.begin, end_of(e, happens_before, life)}, {life.begin, life.end()}});
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
    return most_bytes(program, entry, [&](const Life& life) { return end_of(entry, happens_before, life); });
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
