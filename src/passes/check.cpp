#include "passes/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ops/rule.h"
#include "ops/verify.h"
#include "passes/check_meaning.h"
#include "passes/check_memory.h"

namespace lockstep::passes {
namespace {

// One collective as a rank launches it.
struct Launch {
    int call, op;
    std::vector<int64_t> group;
};

std::vector<Launch> launches(const ir::Program& p, const ir::Entry& e, int64_t rank) {
    std::vector<Launch> out;
    std::map<mesh::AxisList, std::vector<int64_t>> groups;
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Routine& r = p.routines[e.calls[i].routine];
        for (size_t k = 0; k < r.ops.size(); ++k) {
            if (!ops::rule(r.ops[k].kind).collective) continue;
            auto it = groups.find(r.ops[k].group);
            if (it == groups.end()) it = groups.emplace(r.ops[k].group, p.mesh.group(rank, r.ops[k].group)).first;
            out.push_back({static_cast<int>(i), static_cast<int>(k), it->second});
        }
    }
    return out;
}

std::string text_of(const ir::Program& p, const ir::Entry& e, const Launch& l) {
    const ir::Call& c = e.calls[l.call];
    const ir::Routine& r = p.routines[c.routine];
    return fmt::format("{} of {}[{}] in microbatch {}, chunk {}, op {}", r.ops[l.op].kind, r.name, c.instance, c.microbatch,
                       c.chunk, l.op);
}

bool same(const ir::Program& p, const ir::Entry& pe, const Launch& a, const ir::Program& q, const ir::Entry& qe,
          const Launch& b) {
    const ir::Call &x = pe.calls[a.call], &y = qe.calls[b.call];
    return p.routines[x.routine].name == q.routines[y.routine].name && a.op == b.op && x.instance == y.instance &&
           x.microbatch == y.microbatch && x.chunk == y.chunk && a.group == b.group;
}

// Plays all queues against each other. Every wait names an earlier call of the same rank, so a rank's launches can always go in
// the order of its list, and heads that do not meet are the only way to stand still.
std::optional<Refusal> check_order(const std::vector<const ir::Program*>& ranks, const std::string& entry) {
    if (std::all_of(ranks.begin(), ranks.end(), [&](const ir::Program* p) { return p == ranks[0]; }))
        return std::nullopt;  // one list: heads are always equal
    std::vector<std::vector<Launch>> queues;
    for (size_t r = 0; r < ranks.size(); ++r)
        queues.push_back(launches(*ranks[r], *ranks[r]->entry(entry), static_cast<int64_t>(r)));
    std::vector<size_t> head(ranks.size(), 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < ranks.size(); ++r) {
            while (head[r] < queues[r].size()) {
                const Launch& mine = queues[r][head[r]];
                const bool met = std::all_of(mine.group.begin(), mine.group.end(), [&](int64_t other) {
                    const auto o = static_cast<size_t>(other);
                    return head[o] < queues[o].size() &&
                           same(*ranks[r], *ranks[r]->entry(entry), mine, *ranks[o], *ranks[o]->entry(entry), queues[o][head[o]]);
                });
                if (!met) break;
                for (int64_t other : mine.group) ++head[static_cast<size_t>(other)];
                moved = true;
            }
        }
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
        if (head[r] == queues[r].size()) continue;
        const Launch& mine = queues[r][head[r]];
        for (int64_t other : mine.group) {
            const auto o = static_cast<size_t>(other);
            const ir::Entry& theirs = *ranks[o]->entry(entry);
            if (head[o] < queues[o].size() &&
                same(*ranks[r], *ranks[r]->entry(entry), mine, *ranks[o], theirs, queues[o][head[o]]))
                continue;
            return Refusal{"order",
                           fmt::format("deadlock in {}: rank {} waits in {}, rank {} {}", entry, r,
                                       text_of(*ranks[r], *ranks[r]->entry(entry), mine), o,
                                       head[o] < queues[o].size() ? "in " + text_of(*ranks[o], theirs, queues[o][head[o]])
                                                                  : "has nothing left to launch")};
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<Refusal> check(const std::vector<const ir::Program*>& ranks) {
    std::set<const ir::Program*> seen;
    for (size_t r = 0; r < ranks.size(); ++r) {
        const ir::Program& p = *ranks[r];
        if (!seen.insert(&p).second) continue;
        if (const auto violation = ops::verify(p))
            return Refusal{violation->invariant, fmt::format("rank {}: {}", r, violation->message)};
        for (const ir::Entry& e : p.entries) {
            std::string wrong = check_memory(p, e);
            if (!wrong.empty()) return Refusal{"memory", fmt::format("rank {}, {}: {}", r, e.name, wrong)};
            wrong = check_meaning(p, e);
            if (!wrong.empty()) return Refusal{"meaning", fmt::format("rank {}, {}: {}", r, e.name, wrong)};
        }
    }
    for (const ir::Entry& e : ranks[0]->entries) {
        if (auto refusal = check_order(ranks, e.name)) return refusal;
    }
    return std::nullopt;
}

}  // namespace lockstep::passes
