#include "check/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace lockstep::check {
namespace {

using ir::EntryKind;
using ir::RoutineKind;

// Is a routine of the kind the same in all entries?
bool serves_any_entry(RoutineKind kind) {
    return kind == RoutineKind::Gather || kind == RoutineKind::Fetch || kind == RoutineKind::Free;
}

// Fragments are runs of the model's blocks, in their order and of equal numbers.
int64_t fragment_of(const ir::Program& p, const ir::Unit& u, int64_t instance) {
    int64_t before = 0, blocks = 0;
    for (const ir::Block& b : p.blocks) {
        if (b.name == u.block) before = blocks + instance - b.first;
        blocks += b.count;
    }
    const auto is_outer = [](const ir::Entry& e) { return e.kind == EntryKind::Outer; };
    return before * std::count_if(p.entries.begin(), p.entries.end(), is_outer) / blocks;
}

}  // namespace

std::string wrong_calls(const ir::Program& p, const ir::Entry& e) {
    using Run = std::tuple<int64_t, int64_t, int64_t>;  // instance, microbatch, chunk
    std::vector<std::set<Run>> runs(p.routines.size());
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Call& c = e.calls[i];
        const ir::Routine& r = p.routines[static_cast<size_t>(c.routine)];
        const auto wrong = [&](const std::string& what) {
            return fmt::format("call {} of {}[{}] in microbatch {}: {}", i, r.name, c.instance, c.microbatch, what);
        };
        if (r.entry != e.kind && !serves_any_entry(r.kind)) return wrong("is in another entry than its own");
        if (c.microbatch < 0 || c.microbatch >= p.microbatches || c.chunk < 0 || c.chunk >= r.chunks)
            return wrong("is of no microbatch, or of no chunk");
        if (ir::is_forward(r.kind) && !runs[static_cast<size_t>(c.routine)].insert({c.instance, c.microbatch, c.chunk}).second)
            return wrong("runs a second time");
        if (e.kind != EntryKind::Outer) continue;
        const ir::Unit* unit = p.unit(r.unit);
        if (!unit || (r.kind != RoutineKind::Outer && r.kind != RoutineKind::Transfer)) return wrong("does not meet");
        if (const int64_t fragment = fragment_of(p, *unit, c.instance); fragment != e.fragment)
            return wrong(fmt::format("meets in fragment {}, and is of fragment {}", e.fragment, fragment));
    }
    for (size_t k = 0; k < p.routines.size(); ++k) {
        const ir::Routine& r = p.routines[k];
        const ir::Block* block = p.block(r.block);
        if (!ir::is_forward(r.kind) || r.entry != e.kind || !block) continue;
        const std::vector<int64_t> held = block->instances();
        const auto served = std::count_if(held.begin(), held.end(), [&](int64_t i) { return r.serves(i); });
        if (const auto expected = served * p.microbatches * r.chunks; std::ssize(runs[k]) != expected)
            return fmt::format("{} runs {} times, not {}", r.name, runs[k].size(), expected);
    }
    return "";
}

}  // namespace lockstep::check
