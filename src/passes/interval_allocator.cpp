#include "passes/interval_allocator.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace lockstep::passes {
namespace {

struct Bytes {
    int64_t begin, end;
    bool operator<(const Bytes& o) const { return begin < o.begin; }
};

// Positions in blocks, so that a long interval is few of them.
constexpr int kWidth = 64;
bool is_whole(const Interval& part) { return part.last - part.first + 1 == kWidth; }
// Calls f on each block that the interval intersects, and of the part of the interval in it.
template <class F>
void for_each_block(const Interval& within, const F& f) {
    if (within.last < within.first) return;
    for (int b = within.first / kWidth; b <= within.last / kWidth; ++b) {
        f(static_cast<size_t>(b), Interval{std::max(within.first, b * kWidth), std::min(within.last, b * kWidth + kWidth - 1)});
    }
}

// By position: all below is taken by items that are certainly there.
class Filled {
public:
    explicit Filled(int positions)
        : positions_(static_cast<size_t>(positions) / kWidth * kWidth + kWidth), blocks_(positions_.size() / kWidth) {}

    int64_t highest(const Interval& within) const {
        int64_t most = 0;
        for_each_block(within, [&](size_t b, const Interval& part) {
            const Block& block = blocks_[b];
            if (is_whole(part)) return void(most = std::max(most, block.highest));
            for (int at = part.first; at <= part.last; ++at) {
                const int64_t here = positions_[static_cast<size_t>(at)];
                most = std::max(most, here == block.raised_from ? block.highest : here);
            }
        });
        return most;
    }
    // Positions that are filled up to `offset`, which is the highest of the interval, are filled up to `end` from now on.
    void fill(const Interval& within, int64_t offset, int64_t end) {
        for_each_block(within, [&](size_t b, const Interval& part) {
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

    int64_t highest(const Interval& within) const {
        int64_t most = 0;
        for_each_block(within, [&](size_t b, const Interval& part) {
            if (is_whole(part)) return void(most = std::max(most, blocks_[b].highest));
            most = std::max(most, blocks_[b].of_all);
            for (int at = part.first; at <= part.last; ++at) most = std::max(most, positions_[static_cast<size_t>(at)]);
        });
        return most;
    }
    void raise(const Interval& within, int64_t end) {
        for_each_block(within, [&](size_t b, const Interval& part) {
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

    void add(size_t id, const Allocation& item) {
        const Placed placed{item.possible, item.certain, {item.offset, item.end()}, item.end(), id};
        const size_t first = leaves_ + static_cast<size_t>(item.possible.first / kBlock);
        for (size_t a = first, b = leaves_ + static_cast<size_t>(item.possible.last / kBlock) + 1; a < b; a /= 2, b /= 2) {
            if (a % 2 == 1) insert(there_[a++], placed);
            if (b % 2 == 1) insert(there_[--b], placed);
        }
        insert(beginning_[first - leaves_], placed);
        for (size_t node = first; node > 0; node /= 2) latest_[node] = std::max(latest_[node], placed.bytes.end);
    }

    // The lowest offset from the item's on at which it is in nobody's way.
    template <class Conflict>
    int64_t lowest_gap(const Allocation& item, const Conflict& conflict) {
        sources_.clear();
        for (size_t node = leaves_ + static_cast<size_t>(item.possible.first / kBlock); node > 0; node /= 2)
            add_source(there_[node], item.offset);  // those that are there when it begins,
        const Interval later{item.possible.first / kBlock + 1, item.possible.last / kBlock};
        add_sources_beginning(1, {0, static_cast<int>(leaves_) - 1}, later, item.offset);  // and those that begin later
        int64_t offset = item.offset;
        const auto is_behind = [](const Source& a, const Source& b) { return b.first->bytes < a.first->bytes; };
        std::make_heap(sources_.begin(), sources_.end(), is_behind);
        while (!sources_.empty() && sources_.front().first->bytes.begin - offset < item.bytes) {
            std::pop_heap(sources_.begin(), sources_.end(), is_behind);
            Source& source = sources_.back();
            const Placed& p = *source.first++;
            if (p.bytes.end > offset && p.possible.intersects(item.possible) &&
                (p.certain.intersects(item.certain) || conflict(p.id)))
                offset = p.bytes.end;
            if (source.first == source.last) sources_.pop_back();
            else std::push_heap(sources_.begin(), sources_.end(), is_behind);
        }
        return offset;
    }

private:
    static constexpr int kBlock = 16;  // positions, so that a tree over them is low
    struct Placed {
        Interval possible, certain;
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
    void add_sources_beginning(size_t node, const Interval& of, const Interval& within, int64_t offset) {
        if (!of.intersects(within) || latest_[node] <= offset) return;
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

}  // namespace

int64_t allocate(std::vector<Allocation>& items, int positions, FunctionRef<bool(size_t, size_t)> conflict) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].bytes > items[b].bytes; });
    int64_t end = 0;
    Filled filled(positions);
    Tops tops(positions);
    Neighbours placed(positions);
    for (size_t i : order) {
        Allocation& item = items[i];
        item.offset = 0;
        if (item.bytes == 0) continue;
        item.offset = filled.highest(item.certain);  // no lower offset is free
        const int64_t lowest = item.offset;
        if (tops.highest(item.possible) > lowest) item.offset = placed.lowest_gap(item, [&](size_t j) { return conflict(i, j); });
        end = std::max(end, item.end());
        if (item.offset == lowest) filled.fill(item.certain, lowest, item.end());
        tops.raise(item.possible, item.end());
        placed.add(i, item);
    }
    return end;
}

}  // namespace lockstep::passes
