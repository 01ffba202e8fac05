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

// A collective or a transfer as a rank launches it. Members meet where all but `call` is equal.
struct Launch {
    int call, op;
    std::string name;  // of the routine; of a transfer, which is not the same on both sides, what it carries
    int64_t instance, microbatch, chunk;
    std::vector<int64_t> group;  // ranks; of a transfer who gives, then who takes

    bool meets(const Launch& o) const {
        return op == o.op && name == o.name && instance == o.instance && microbatch == o.microbatch && chunk == o.chunk &&
               group == o.group;
    }
};

// Ranks whose lists are played against each other. Where all ranks of a pipeline rank run one program their lists are equal and
// their launches meet whenever one of them comes: one rank of each stands for all.
class Representatives {
public:
    explicit Representatives(const std::vector<const ir::Program*>& ranks) : size_(ranks.size()) {
        const auto of_stage = static_cast<size_t>(ranks[0]->mesh.ranks());
        bool equal = size_ % of_stage == 0;
        for (size_t r = 0; r < size_; ++r) equal = equal && ranks[r] == ranks[r / of_stage * of_stage];
        if (equal) stride_ = of_stage;
    }
    size_t count() const { return size_ / stride_; }
    size_t rank(size_t i) const { return i * stride_; }
    size_t of(int64_t rank) const { return static_cast<size_t>(rank) / stride_; }

private:
    size_t size_, stride_ = 1;
};

std::vector<Launch> launches(const ir::Program& p, const ir::Entry& e, int64_t rank) {
    std::vector<Launch> out;
    std::map<mesh::AxisList, std::vector<int64_t>> groups;
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Call& c = e.calls[i];
        const ir::Routine& r = p.routines[c.routine];
        for (size_t k = 0; k < r.ops.size(); ++k) {
            const ir::Op& op = r.ops[k];
            if (!ops::rule(op.kind).collective) continue;
            auto it = groups.find(op.group);
            if (it == groups.end()) it = groups.emplace(op.group, p.mesh.group(rank, op.group)).first;
            const bool transfer = op.kind == "transfer";
            out.push_back({static_cast<int>(i), static_cast<int>(k),
                           transfer ? fmt::format("{} of {} in {}", r.ports.at(0).name, r.block, r.entry) : r.name, c.instance,
                           c.microbatch, c.chunk, ir::members_of(p, op, it->second)});
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

// Plays all queues against each other. Every wait names an earlier call of the same rank, so a rank's launches can always go in
// the order of its list, and heads that do not meet are the only way to stand still.
std::optional<Refusal> check_entry_order(const std::vector<const ir::Program*>& ranks, const std::string& entry) {
    const Representatives players(ranks);
    std::vector<std::vector<Launch>> queues;
    for (size_t i = 0; i < players.count(); ++i) {
        const ir::Program& p = *ranks[players.rank(i)];
        const ir::Entry* e = p.entry(entry);
        queues.push_back(e ? launches(p, *e, static_cast<int64_t>(players.rank(i))) : std::vector<Launch>{});
    }
    std::vector<size_t> head(queues.size(), 0);
    // The launch at the head of the queue of the player who stands for `rank`, as that rank sees it if it meets `mine`.
    const auto waits_for = [&](size_t me, const Launch& mine, int64_t rank) {
        const size_t other = players.of(rank);
        if (other == me) return false;
        if (head[other] == queues[other].size()) return true;
        // A representative's groups are those of its own coordinates, which are everybody's first of a pipeline rank.
        return !mine.meets(queues[other][head[other]]);
    };
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < queues.size(); ++i) {
            while (head[i] < queues[i].size()) {
                const Launch mine = queues[i][head[i]];
                if (std::any_of(mine.group.begin(), mine.group.end(), [&](int64_t rank) { return waits_for(i, mine, rank); }))
                    break;
                std::set<size_t> met = {i};
                for (int64_t rank : mine.group) met.insert(players.of(rank));
                for (size_t other : met) ++head[other];
                moved = true;
            }
        }
    }
    for (size_t i = 0; i < queues.size(); ++i) {
        if (head[i] == queues[i].size()) continue;
        const Launch& mine = queues[i][head[i]];
        for (int64_t rank : mine.group) {
            if (!waits_for(i, mine, rank)) continue;
            const size_t other = players.of(rank);
            const ir::Program &p = *ranks[players.rank(i)], &q = *ranks[players.rank(other)];
            return Refusal{"order", fmt::format("deadlock in {}: rank {} waits in {}, rank {} {}", entry, players.rank(i),
                                                text_of(p, *p.entry(entry), mine), players.rank(other),
                                                head[other] < queues[other].size()
                                                    ? "in " + text_of(q, *q.entry(entry), queues[other][head[other]])
                                                    : "has nothing left to launch")};
        }
    }
    return std::nullopt;
}

// Every block instance is run by one pipeline rank, and all of them by some.
std::string check_cut(const std::vector<const ir::Program*>& ranks) {
    std::map<ir::BlockInstance, int64_t> holder;
    for (const ir::Program* p : ranks) {
        for (const ir::BlockInstance& b : p->block_instances()) {
            if (holder.emplace(b, p->pipeline_rank).first->second != p->pipeline_rank)
                return fmt::format("{}[{}] is on two pipeline ranks", b.block, b.instance);
        }
    }
    // A shared parameter is updated by one pipeline rank, and everybody who has it knows of the others.
    std::map<std::string, std::set<int64_t>> have, named;
    for (const ir::Program* p : ranks) {
        for (const ir::Parameter& x : p->params) {
            if (!x.shared) continue;
            have[x.key].insert(p->pipeline_rank);
            named[x.key].insert(x.holders.begin(), x.holders.end());
            if (x.holders.empty()) named[x.key].insert(p->pipeline_rank);
        }
    }
    for (const auto& [key, ranks_of] : have) {
        if (named.at(key) != ranks_of) return fmt::format("{} is on other pipeline ranks than it says", key);
    }
    for (const ir::Block& b : ranks[0]->blocks) {
        for (int64_t i = 0; i < b.count; ++i) {
            if (!holder.contains({b.name, i})) return fmt::format("{}[{}] is on no pipeline rank", b.name, i);
        }
    }
    return "";
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
    if (const std::string wrong = check_cut(ranks); !wrong.empty()) return Refusal{"cut", wrong};
    return check_order(ranks);
}

std::optional<Refusal> check_order(const std::vector<const ir::Program*>& ranks) {
    for (const ir::Entry& e : ranks[0]->entries) {
        if (auto refusal = check_entry_order(ranks, e.name)) return refusal;
    }
    return std::nullopt;
}

}  // namespace lockstep::passes
