#include "passes/interval_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

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
          latest_(leaves_),
          parts_(leaves_ / kBlocks + 1) {}

    void add(size_t id, const Allocation& item) {
        const Placed placed{item.possible, item.certain, {item.offset, item.end()}, item.end(), id};
        const size_t first = leaves_ + static_cast<size_t>(item.possible.first / kBlock);
        int positions = kBlock;  // of a node
        for (size_t a = first, b = leaves_ + static_cast<size_t>(item.possible.last / kBlock) + 1; a < b;
             a /= 2, b /= 2, positions *= 2) {
            if (a % 2 == 1) add_to(a++, positions, placed);
            if (b % 2 == 1) add_to(--b, positions, placed);
        }
        const size_t block = first - leaves_;
        insert(beginning_[block], placed);
        latest_[block] = std::max(latest_[block], placed.bytes.end);
        Part& part = parts_[block / kBlocks];
        part.latest = std::max(part.latest, placed.bytes.end);
        if (part.is_asked && is_certain(placed)) take(part.taken, placed.bytes);
    }

    // The lowest offset from the item's on at which it is in nobody's way.
    template <class Conflict>
    int64_t lowest_gap(const Allocation& item, const Conflict& conflict) {
        int64_t offset = item.offset;
        runs_.clear(), sources_.clear();
        for (size_t node = leaves_ + static_cast<size_t>(item.possible.first / kBlock); node > 0; node /= 2) {
            add_source(there_[node].whole, offset);  // those that are there when it begins,
            add_source(there_[node].some, offset);
        }
        go_on(item, offset, conflict);
        add_beginning(item, offset);
        go_on(item, offset, conflict);  // and those that begin later
        return offset;
    }

private:
    static constexpr int kBlock = 16;   // positions, so that a tree over them is low
    static constexpr int kBlocks = 16;  // whose items, if all are in conflict with an item, are asked about together
    struct Placed {
        Interval possible, certain;
        Bytes bytes;
        int64_t highest_end;  // of it and of all before it in its list
        size_t id;
    };
    using List = std::vector<Placed>;  // by offset
    using Runs = std::vector<Bytes>;   // by offset, with gaps between them
    // Items that may be in all of a node's blocks, and not in all of its parent's: those that certainly are in all its
    // positions, as the bytes that they take, and the others.
    struct There {
        Runs whole;
        List some;
    };
    // Items that begin in kBlocks blocks.
    struct Part {
        int64_t latest = 0;  // the highest end of any
        bool is_asked = false;
        Runs taken;  // by those that certainly are somewhere, once somebody asks
    };
    // What may still be in an item's way: bytes that are taken at one of its positions; items of which each is asked.
    struct RunSource {
        const Bytes *next, *end;
    };
    struct Source {
        int64_t begin;  // of the next one
        const Placed *next, *end;
    };

    void add_to(size_t node, int positions, const Placed& placed) {
        const auto in_level = static_cast<int>(node - std::bit_floor(node));
        const Interval of{in_level * positions, (in_level + 1) * positions - 1};
        if (placed.certain.first <= of.first && of.last <= placed.certain.last) take(there_[node].whole, placed.bytes);
        else insert(there_[node].some, placed);
    }
    static void take(Runs& runs, Bytes bytes) {
        const auto first = std::partition_point(runs.begin(), runs.end(), [&](const Bytes& r) { return r.end < bytes.begin; });
        auto last = first;
        for (; last != runs.end() && last->begin <= bytes.end; ++last)
            bytes.begin = std::min(bytes.begin, last->begin), bytes.end = std::max(bytes.end, last->end);
        if (first == last) return void(runs.insert(first, bytes));
        *first = bytes;
        runs.erase(first + 1, last);
    }
    static void insert(List& list, const Placed& placed) {
        auto at = std::upper_bound(list.begin(), list.end(), placed,
                                   [](const Placed& a, const Placed& b) { return a.bytes < b.bytes; });
        at = list.insert(at, placed);
        if (at != list.begin()) at->highest_end = std::max(at->highest_end, (at - 1)->highest_end);
        for (++at; at != list.end() && at->highest_end < placed.bytes.end; ++at) at->highest_end = placed.bytes.end;
    }

    // From the first on that may end above `offset`.
    void add_source(const List& list, int64_t offset) {
        if (list.empty() || list.back().highest_end <= offset) return;
        const auto first =
            std::partition_point(list.begin(), list.end(), [&](const Placed& p) { return p.highest_end <= offset; });
        sources_.push_back({first->bytes.begin, &*first, list.data() + list.size()});
    }
    void add_source(const Runs& runs, int64_t offset) {
        if (runs.empty() || runs.back().end <= offset) return;
        const auto first = std::partition_point(runs.begin(), runs.end(), [&](const Bytes& r) { return r.end <= offset; });
        runs_.push_back({&*first, runs.data() + runs.size()});
    }
    static bool is_certain(const Placed& p) { return p.certain.first <= p.certain.last; }
    // Those that begin in blocks behind the one in which the item begins. Where all of a part begin while the item certainly is
    // there, all are in conflict with it.
    void add_beginning(const Allocation& item, int64_t offset) {
        const int last = item.possible.last / kBlock, last_whole = item.certain.last / kBlock - 1;
        for (int b = item.possible.first / kBlock + 1; b <= last; ++b) {
            const auto block = static_cast<size_t>(b);
            if (b % kBlocks == 0 && b + kBlocks - 1 <= last) {
                Part& part = parts_[block / kBlocks];
                const bool is_behind = part.latest <= offset;
                if (!is_behind && b + kBlocks - 1 <= last_whole) add_source(taken_in(part, block), offset);
                if (is_behind || b + kBlocks - 1 <= last_whole) {
                    b += kBlocks - 1;
                    continue;
                }
            }
            if (latest_[block] > offset) add_source(beginning_[block], offset);
        }
    }
    const Runs& taken_in(Part& part, size_t block) {
        if (std::exchange(part.is_asked, true)) return part.taken;
        for (size_t b = block; b < block + kBlocks; ++b) {
            for (const Placed& p : beginning_[b]) {
                if (is_certain(p)) take(part.taken, p.bytes);
            }
        }
        return part.taken;
    }

    // Behind all that is in the item's way, of the sources: whatever is moves it on, in any order.
    template <class Conflict>
    void go_on(const Allocation& item, int64_t& offset, const Conflict& conflict) {
        for (int64_t before = -1; before != offset;) {
            before = offset;
            for (RunSource& source : runs_) {
                while (source.next != source.end && source.next->begin - offset < item.bytes)
                    offset = std::max(offset, source.next++->end);
            }
            for (Source& source : sources_) {
                if (source.begin - offset < item.bytes) pass(source, item, offset, conflict);
            }
        }
    }
    template <class Conflict>
    static void pass(Source& source, const Allocation& item, int64_t& offset, const Conflict& conflict) {
        for (; source.next != source.end && source.next->bytes.begin - offset < item.bytes; ++source.next) {
            const Placed& p = *source.next;
            if (p.bytes.end > offset && p.possible.intersects(item.possible) &&
                (p.certain.intersects(item.certain) || conflict(p.id)))
                offset = p.bytes.end;
        }
        source.begin = source.next == source.end ? std::numeric_limits<int64_t>::max() : source.next->bytes.begin;
    }

    size_t leaves_;
    std::vector<There> there_;     // by node of a tree over blocks
    std::vector<List> beginning_;  // by block
    std::vector<int64_t> latest_;  // by block: the highest end of items that begin in it
    std::vector<Part> parts_;
    std::vector<RunSource> runs_;  // of the item at hand
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
