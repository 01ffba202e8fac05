#include "mutations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace lockstep::check_test {
namespace {

using ir::Call;
using ir::RoutineKind;
using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }

template <class T>
const T& one_of(Random& random, const std::vector<T>& list) {
    return list[below(random, list.size())];
}

// The calls of an entry in a new order: `order` holds old indices, an index that stands twice is doubled, one that is absent
// dropped. Waits keep naming the same calls (of two copies the first); a wait for a dropped call is dropped.
void reorder(std::vector<Call>& calls, const std::vector<size_t>& order) {
    std::vector<int> place(calls.size(), -1);
    for (size_t i = order.size(); i-- > 0;) place[order[i]] = static_cast<int>(i);
    std::vector<Call> out;
    for (size_t old : order) {
        out.push_back(calls[old]);
        std::vector<int> waits;
        for (int w : calls[old].waits) {
            if (place[static_cast<size_t>(w)] >= 0) waits.push_back(place[static_cast<size_t>(w)]);
        }
        out.back().waits = waits;
    }
    calls = std::move(out);
}

class Mutator {
public:
    Mutator(ir::Program& program, Random& random) : p_(program), random_(random) {
        for (ir::Entry& e : p_.entries) {
            if (e.kind == ir::EntryKind::Train) calls_ = &e.calls;
        }
    }

    std::string apply(Mutation mutation) {
        switch (mutation) {
            case Mutation::SwapNeighbours: return swap(1);
            case Mutation::SwapNear: return swap(2 + below(random_, 9));
            case Mutation::Drop: return drop();
            case Mutation::DoubleNext: return double_call(1);
            case Mutation::DoubleLater: return double_call(2 + below(random_, calls_->size()));
            case Mutation::FreeEarlier: return free_earlier();
            case Mutation::DropWait: return drop_wait();
            case Mutation::RedirectWait: return redirect_wait();
            case Mutation::Rebind: return rebind();
            case Mutation::FlipFresh: return flip_fresh();
            case Mutation::OverlapBuffers: return overlap_buffers(used_by(*calls_), used_by(*calls_));
            case Mutation::OverlapEntries: return overlap_entries();
            case Mutation::ChangeMicrobatch: return change_microbatch();
            case Mutation::AddWait: return add_wait();
            case Mutation::AddWindow: return add_window();
        }
        return "";
    }

private:
    static constexpr const char* kNoPlace = "";

    std::string text(size_t call) const {
        const Call& c = (*calls_)[call];
        return fmt::format("call {} {}[{}]@{}", call, p_.routines[static_cast<size_t>(c.routine)].name, c.instance, c.microbatch);
    }
    RoutineKind kind(size_t call) const { return p_.routines[static_cast<size_t>((*calls_)[call].routine)].kind; }
    std::vector<size_t> in_order() const {
        std::vector<size_t> order(calls_->size());
        std::iota(order.begin(), order.end(), 0);
        return order;
    }
    std::vector<size_t> calls_that(auto predicate) const {
        std::vector<size_t> out = in_order();
        std::erase_if(out, [&](size_t i) { return !predicate(i); });
        return out;
    }
    // Half of the time one of the calls that hold the step together.
    size_t weighted_call() {
        const std::vector<size_t> heavy = calls_that([&](size_t i) {
            constexpr std::array kinds = {RoutineKind::ReduceMicro, RoutineKind::ReduceStep, RoutineKind::Gather,
                                          RoutineKind::Free, RoutineKind::Stats};
            return std::find(kinds.begin(), kinds.end(), kind(i)) != kinds.end();
        });
        return below(random_, 2) == 0 && !heavy.empty() ? one_of(random_, heavy) : below(random_, calls_->size());
    }

    std::string swap(size_t distance) {
        if (calls_->size() <= distance) return kNoPlace;
        const size_t a = below(random_, calls_->size() - distance), b = a + distance;
        const std::string what = fmt::format("swap {} and {}", text(a), text(b));
        std::vector<size_t> order = in_order();
        std::swap(order[a], order[b]);
        reorder(*calls_, order);
        return what;
    }

    std::string drop() {
        const size_t at = weighted_call();
        const std::string what = fmt::format("drop {}", text(at));
        std::vector<size_t> order = in_order();
        order.erase(order.begin() + static_cast<long>(at));
        reorder(*calls_, order);
        return what;
    }

    std::string double_call(size_t distance) {
        const size_t at = weighted_call(), to = std::min(at + distance, calls_->size());
        const std::string what = fmt::format("double {} at {}", text(at), to);
        std::vector<size_t> order = in_order();
        order.insert(order.begin() + static_cast<long>(to), at);
        reorder(*calls_, order);
        return what;
    }

    std::string free_earlier() {
        const std::vector<size_t> frees = calls_that([&](size_t i) { return i > 0 && kind(i) == RoutineKind::Free; });
        if (frees.empty()) return kNoPlace;
        const size_t at = one_of(random_, frees), to = at - 1 - below(random_, std::min<size_t>(at, 12));
        const std::string what = fmt::format("move {} to {}", text(at), to);
        std::vector<size_t> order = in_order();
        order.erase(order.begin() + static_cast<long>(at));
        order.insert(order.begin() + static_cast<long>(to), at);
        reorder(*calls_, order);
        return what;
    }

    std::string drop_wait() {
        const std::vector<size_t> waiting = calls_that([&](size_t i) { return !(*calls_)[i].waits.empty(); });
        if (waiting.empty()) return kNoPlace;
        const size_t at = one_of(random_, waiting);
        std::vector<int>& waits = (*calls_)[at].waits;
        const size_t w = below(random_, waits.size());
        const std::string what = fmt::format("{} no longer waits for {}", text(at), text(static_cast<size_t>(waits[w])));
        waits.erase(waits.begin() + static_cast<long>(w));
        return what;
    }

    std::string redirect_wait() {
        const std::vector<size_t> waiting = calls_that([&](size_t i) { return !(*calls_)[i].waits.empty(); });
        if (waiting.empty()) return kNoPlace;
        const size_t at = one_of(random_, waiting);
        std::vector<int>& waits = (*calls_)[at].waits;
        int& w = waits[below(random_, waits.size())];
        const std::vector<size_t> earlier =
            calls_that([&](size_t i) { return static_cast<int>(i) < w && (*calls_)[i].queue != (*calls_)[at].queue; });
        if (earlier.empty()) return kNoPlace;
        // Mostly to one nearby: farther ones are as good as no wait.
        const size_t reach = below(random_, 2) == 0 ? earlier.size() : std::min<size_t>(earlier.size(), 4);
        const size_t to = earlier[earlier.size() - 1 - below(random_, reach)];
        const std::string what = fmt::format("{} waits for {} instead of {}", text(at), text(to), text(static_cast<size_t>(w)));
        w = static_cast<int>(to);
        return what;
    }

    std::string rebind() {
        for (int attempt = 0; attempt < 50; ++attempt) {
            const size_t at = below(random_, calls_->size());
            Call& c = (*calls_)[at];
            if (c.bindings.empty()) continue;
            const size_t port = below(random_, c.bindings.size());
            const ir::Buffer& now = p_.buffers[static_cast<size_t>(c.bindings[port].buffer)];
            std::vector<int> others;
            for (size_t b = 0; b < p_.buffers.size(); ++b) {
                const ir::Buffer& other = p_.buffers[b];
                if (other.kind == now.kind && other.bytes == now.bytes && other.name != now.name)
                    others.push_back(static_cast<int>(b));
            }
            if (others.empty()) continue;
            const int to = one_of(random_, others);
            const std::string what =
                fmt::format("{}: port {} from {} to {}", text(at), p_.routines[static_cast<size_t>(c.routine)].ports[port].name,
                            now.name, p_.buffers[static_cast<size_t>(to)].name);
            c.bindings[port].buffer = to;
            return what;
        }
        return kNoPlace;
    }

    std::string flip_fresh() {
        std::vector<std::pair<size_t, size_t>> places;
        for (size_t i = 0; i < calls_->size(); ++i) {
            const ir::Routine& r = p_.routines[static_cast<size_t>((*calls_)[i].routine)];
            for (size_t p = 0; p < r.ports.size(); ++p) {
                if (r.ports[p].access == ir::Access::Accumulate) places.emplace_back(i, p);
            }
        }
        const auto [at, port] = one_of(random_, places);
        ir::Binding& b = (*calls_)[at].bindings[port];
        b.fresh = !b.fresh;
        const ir::Routine& r = p_.routines[static_cast<size_t>((*calls_)[at].routine)];
        return fmt::format("{}: port {} is {}", text(at), r.ports[port].name, b.fresh ? "fresh" : "no longer fresh");
    }

    static std::vector<int> used_by(const std::vector<Call>& calls) {
        std::vector<int> used;
        for (const Call& c : calls) {
            for (const ir::Binding& b : c.bindings) used.push_back(b.buffer);
            if (c.scratch >= 0) used.push_back(c.scratch);
        }
        std::sort(used.begin(), used.end());
        used.erase(std::unique(used.begin(), used.end()), used.end());
        return used;
    }

    std::string overlap_buffers(const std::vector<int>& movable, const std::vector<int>& others) {
        ir::Buffer& moved = p_.buffers[static_cast<size_t>(one_of(random_, movable))];
        const ir::Buffer& other = p_.buffers[static_cast<size_t>(one_of(random_, others))];
        if (&moved == &other || moved.bytes == 0 || other.bytes == 0) return kNoPlace;
        constexpr int64_t kStep = 64;
        const int64_t lowest = other.offset_bytes - moved.bytes + 1, span = other.bytes + moved.bytes - 1;
        int64_t to = lowest + static_cast<int64_t>(below(random_, static_cast<size_t>(span)));
        to = std::clamp<int64_t>((to + kStep - 1) / kStep * kStep, 0, p_.arena_bytes[Place::Device] - moved.bytes);
        const std::string what = fmt::format("{} moves from {} to {}, over {} at {}", moved.name, moved.offset_bytes, to,
                                             other.name, other.offset_bytes);
        moved.offset_bytes = to;
        return what;
    }

    std::string overlap_entries() {
        const ir::Entry& moved = one_of(random_, p_.entries);
        const ir::Entry& over = one_of(random_, p_.entries);
        return overlap_buffers(used_by(moved.calls), used_by(over.calls));
    }

    std::string change_microbatch() {
        if (p_.microbatches < 2) return kNoPlace;
        const size_t at = below(random_, calls_->size());
        Call& c = (*calls_)[at];
        const int64_t to =
            (c.microbatch + 1 + static_cast<int64_t>(below(random_, static_cast<size_t>(p_.microbatches - 1)))) % p_.microbatches;
        const std::string what = fmt::format("{} says microbatch {}", text(at), to);
        c.microbatch = to;
        return what;
    }

    std::string add_wait() {
        const size_t at = 1 + below(random_, calls_->size() - 1), to = below(random_, at);
        (*calls_)[at].waits.push_back(static_cast<int>(to));
        return fmt::format("{} also waits for {}", text(at), text(to));
    }

    void insert(size_t at, Call call) {
        for (Call& c : *calls_) {
            for (int& w : c.waits) w += w >= static_cast<int>(at) ? 1 : 0;
        }
        calls_->insert(calls_->begin() + static_cast<long>(at), std::move(call));
    }

    std::string add_window() {
        const std::vector<size_t> gathers = calls_that([&](size_t i) { return kind(i) == RoutineKind::Gather; });
        if (gathers.empty()) return kNoPlace;
        Call gather = (*calls_)[one_of(random_, gathers)];
        const std::string unit = p_.routines[static_cast<size_t>(gather.routine)].unit;
        Call free = *std::find_if(calls_->begin(), calls_->end(), [&](const Call& c) {
            const ir::Routine& r = p_.routines[static_cast<size_t>(c.routine)];
            return r.kind == RoutineKind::Free && r.unit == unit;
        });
        ir::Binding& window = gather.bindings[static_cast<size_t>(p_.routines[static_cast<size_t>(gather.routine)].port("full"))];
        ir::Buffer buffer = p_.buffers[static_cast<size_t>(window.buffer)];
        buffer.name = "extra";
        buffer.offset_bytes = p_.arena_bytes[Place::Device];
        p_.arena_bytes[Place::Device] += buffer.bytes;
        p_.buffers.push_back(buffer);
        window.buffer = static_cast<int>(p_.buffers.size()) - 1;
        const size_t at = below(random_, calls_->size()), to = at + 1 + below(random_, calls_->size() - at);
        gather.waits.clear();
        free.instance = gather.instance;
        free.bindings = {window};
        free.waits = {static_cast<int>(at)};
        insert(at, gather);
        insert(to, free);
        return fmt::format("gather {}[{}] once more at {}, free it at {}", unit, gather.instance, at, to);
    }

    ir::Program& p_;
    Random& random_;
    std::vector<Call>* calls_ = nullptr;
};

}  // namespace

std::string_view name_of(Mutation mutation) {
    constexpr std::array<std::string_view, kMutations> names = {
        "swap neighbours",   "swap near",     "drop",      "double next", "double later",    "free earlier",
        "drop wait",         "redirect wait", "rebind",    "flip fresh",  "overlap buffers", "overlap entries",
        "change microbatch", "add wait",      "add window"};
    return names[static_cast<size_t>(mutation)];
}

std::vector<const ir::Program*> Mutant::ranks(const ir::Program& base) const {
    std::vector<const ir::Program*> out(static_cast<size_t>(base.mesh.ranks()), rank < 0 ? &program : &base);
    if (rank >= 0) out[static_cast<size_t>(rank)] = &program;
    return out;
}

std::optional<Mutant> mutate(const ir::Program& base, Mutation mutation, std::mt19937_64& random) {
    Mutant m{base, -1, ""};
    const size_t n = static_cast<size_t>(base.mesh.ranks());
    if (below(random, 2) == 0) m.rank = static_cast<int64_t>(below(random, n));
    m.text = Mutator(m.program, random).apply(mutation);
    if (m.text.empty()) return std::nullopt;
    m.text += m.rank < 0 ? " on all ranks" : fmt::format(" on rank {} of {}", m.rank, n);
    return m;
}

}  // namespace lockstep::check_test
