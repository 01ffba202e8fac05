#include "check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/parallel.h"
#include "check/accounting.h"
#include "check/calls.h"
#include "check/hyperparameters.h"
#include "check/memory.h"
#include "check/places.h"
#include "check/segments.h"
#include "check/step_end.h"
#include "check/workspaces.h"
#include "ops/rule.h"
#include "ops/verify.h"

namespace lockstep::check {
namespace {

// What a launch moves, and how.
struct Payload {
    Dtype dtype;
    int64_t elements;
    std::optional<ir::Reduce> reduce;  // of sums and maxima
    const ir::Attrs* attrs = nullptr;  // of a symmetric launch: dim, root, shift, algorithm

    bool operator==(const Payload& o) const {
        return dtype == o.dtype && elements == o.elements && reduce == o.reduce &&
               (attrs == o.attrs || (attrs && o.attrs && *attrs == *o.attrs));
    }
};

Payload payload_of(const ir::Program& p, const ir::Routine& r, const ir::Op& op) {
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    Payload out{r.tensors[op.subject()].dtype, 0, std::nullopt, traits.symmetric ? &op.attrs : nullptr};
    if (traits.reduces) out.reduce = r.tensors[op.in[0]].placement.reduce;
    for (ir::TensorId t : op.out.empty() ? op.in : op.out) out.elements += ir::local_elements(p.mesh, r, r.tensors[t]);
    return out;
}

// What a send, receive or wait carries between two pipeline ranks, whose routines for it differ.
struct Cargo {
    ir::PortRole value;                  // of a block,
    std::optional<ir::StateRole> state;  // or a state of a unit
    std::string_view of;
    ir::EntryKind entry;
    bool operator==(const Cargo&) const = default;
};

Cargo cargo_of(const ir::Program& p, const ir::Routine& r) {
    const ir::Port& port = r.ports.at(0);
    Cargo out{port.role, std::nullopt, r.block.empty() ? r.unit : r.block, r.entry};
    if (port.kind == ir::PortKind::State) out.state = p.state_of(port).role;
    return out;
}

// A collective as a rank launches it. Launches of members match if all but `call` and `op` is equal; a send matches the receive
// and the wait of equal turn.
struct Launch {
    int call, op;
    mesh::Collective kind;
    QueueName queue;
    std::string_view routine;    // the name of that of a symmetric launch
    std::optional<Cargo> cargo;  // of a send, receive or wait
    int turn;                    // the op's place in the routine; of a send, receive or wait: among those of its kind
    int64_t instance, microbatch, chunk;
    std::vector<int64_t> group;  // ranks; of a send, receive or wait the sender, then the receiver
    Payload payload;

    bool is_symmetric() const { return mesh::traits_of(kind).symmetric; }
    bool matches(const Launch& o) const {
        const bool same_kind = is_symmetric() || o.is_symmetric() ? kind == o.kind : true;
        const bool waits = kind == mesh::Collective::Wait || o.kind == mesh::Collective::Wait;
        return same_kind && queue == o.queue && turn == o.turn && routine == o.routine && cargo == o.cargo &&
               instance == o.instance && microbatch == o.microbatch && chunk == o.chunk && group == o.group &&
               (waits || payload == o.payload);
    }
};

// The ranks whose lists of launches are matched. If all ranks of a pipeline rank run one program, their lists are equal, and
// one of them represents all.
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
    struct Collective {
        size_t op;
        mesh::Collective kind;
        std::vector<int64_t> members;
        Payload payload;
    };
    std::map<mesh::AxisList, std::vector<int64_t>> groups;
    std::vector<std::vector<Collective>> collectives;  // by routine
    for (const ir::Routine& r : p.routines) {
        collectives.emplace_back();
        for (size_t k = 0; k < r.ops.size(); ++k) {
            const ir::Op& op = r.ops[k];
            if (!ops::rule(op.kind).collective) continue;
            auto it = groups.find(op.group);
            if (it == groups.end()) it = groups.emplace(op.group, p.mesh.group(rank, op.group)).first;
            collectives.back().push_back({k, ir::collective_of(op), ir::members_of(p, op, it->second), payload_of(p, r, op)});
        }
    }
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Call& c = e.calls[i];
        const ir::Routine& r = p.routines[c.routine];
        std::array<int, mesh::kCollectives.size()> turns = {};
        for (const auto& [k, kind, members, payload] : collectives[static_cast<size_t>(c.routine)]) {
            const bool all = mesh::traits_of(kind).symmetric;
            out.push_back({static_cast<int>(i), static_cast<int>(k), kind, c.queue, all ? r.name : std::string_view(),
                           all ? std::nullopt : std::optional(cargo_of(p, r)),
                           all ? static_cast<int>(k) : turns[static_cast<size_t>(kind)]++, c.instance, c.microbatch, c.chunk,
                           members, payload});
        }
    }
    return out;
}

std::string text_of(const ir::Program& p, const ir::Entry& e, const Launch& l) {
    const ir::Call& c = e.calls[l.call];
    const ir::Routine& r = p.routines[c.routine];
    return fmt::format("{} of {}[{}] in microbatch {}, chunk {}, op {} ({} x {})", r.ops[l.op].kind, r.name, c.instance,
                       c.microbatch, c.chunk, l.op, l.payload.elements, name_of(l.payload.dtype));
}

// Matches the launches of all ranks. Every wait names an earlier call of the same rank, so a rank can always launch in the
// order of its list. A deadlock is therefore a state in which no launch at the head of a list finds its counterparts.
class Rendezvous {
public:
    Rendezvous(const std::vector<const ir::Program*>& ranks, ir::EntryKind entry, int64_t fragment)
        : ranks_(ranks), entry_(entry), fragment_(fragment), representatives_(ranks), head_(representatives_.count(), 0) {
        for (size_t i = 0; i < representatives_.count(); ++i) {
            const ir::Program& p = *ranks[representatives_.rank(i)];
            const ir::Entry* e = p.entry(entry, fragment);
            queues_.push_back(e ? launches(p, *e, static_cast<int64_t>(representatives_.rank(i))) : std::vector<Launch>{});
        }
    }

    std::optional<Refusal> run() {
        for (bool moved = true; moved && wrong_.empty();) {
            moved = false;
            for (size_t i = 0; i < queues_.size(); ++i) {
                while (!ended(i) && wrong_.empty() && advance(i, queues_[i][head_[i]])) moved = true;
            }
        }
        for (size_t i = 0; i < queues_.size() && wrong_.empty(); ++i) {
            if (!ended(i)) report_deadlock(i);
        }
        for (const auto& [group, t] : in_flight_) {
            if (t.received < t.sent.size()) left(group, t.sent[t.received], "is never received");
            if (t.waited < t.received) left(group, t.sent[t.waited], "is never waited for, so its bytes may change too early");
        }
        if (wrong_.empty()) return std::nullopt;
        return Refusal{"order", wrong_};
    }

private:
    // What one rank sends another.
    struct Sends {
        std::vector<Launch> sent;
        size_t received = 0, waited = 0;
    };

    bool ended(size_t representative) const { return head_[representative] == queues_[representative].size(); }

    // Completes a symmetric launch for all of its members, a send, receive or wait for its rank. False: it has to wait.
    bool advance(size_t i, const Launch& mine) {
        if (mine.is_symmetric()) {
            if (std::any_of(mine.group.begin(), mine.group.end(), [&](int64_t rank) { return waits_for(i, mine, rank); }))
                return false;
            std::set<size_t> joined = {i};
            for (int64_t rank : mine.group) joined.insert(representatives_.of(rank));
            for (size_t other : joined) ++head_[other];
            return true;
        }
        Sends& t = in_flight_[mine.group];
        if (mine.kind == mesh::Collective::Send) {
            t.sent.push_back(mine);
            if (t.sent.size() - t.waited > ir::kSendsInFlight)
                wrong_ = fmt::format("{}: more than {} sends are in flight", named(i, mine), ir::kSendsInFlight);
        } else {
            const bool receives = mine.kind == mesh::Collective::Recv;
            size_t& next = receives ? t.received : t.waited;
            if (next == (receives ? t.sent.size() : t.received)) return false;
            if (!t.sent[next].matches(mine))
                wrong_ = fmt::format("{}, where {} is next{}", named(i, mine),
                                     text(representatives_.of(mine.group[0]), t.sent[next]), on_other_queue(mine, t.sent[next]));
            ++next;
        }
        ++head_[i];
        return true;
    }

    // Does `mine` still wait for `rank`: is the next launch of the rank's representative another one?
    bool waits_for(size_t me, const Launch& mine, int64_t rank) const {
        const size_t other = representatives_.of(rank);
        if (other == me) return false;
        if (ended(other)) return true;
        if (!mine.is_symmetric()) return true;
        // Every representative is the first rank of its pipeline rank, so the groups of all have the same coordinates.
        return !mine.matches(queues_[other][head_[other]]);
    }

    void report_deadlock(size_t i) {
        const Launch& mine = queues_[i][head_[i]];
        for (int64_t rank : mine.group) {
            if (!waits_for(i, mine, rank) || !wrong_.empty()) continue;
            const size_t other = representatives_.of(rank);
            wrong_ = fmt::format("deadlock in {}: {}, rank {} {}", name_of(entry_), named(i, mine), representatives_.rank(other),
                                 ended(other) ? "has nothing left to launch"
                                              : "in " + text(other, queues_[other][head_[other]]) +
                                                    on_other_queue(mine, queues_[other][head_[other]]));
        }
    }

    void left(const std::vector<int64_t>& group, const Launch& launch, const char* what) {
        if (wrong_.empty()) wrong_ = fmt::format("{}: {} {}", name_of(entry_), text(representatives_.of(group[0]), launch), what);
    }

    static std::string on_other_queue(const Launch& a, const Launch& b) {
        return a.queue == b.queue ? "" : fmt::format(", on the queue {} instead of {}", name_of(b.queue), name_of(a.queue));
    }
    std::string text(size_t representative, const Launch& l) const {
        const ir::Program& p = *ranks_[representatives_.rank(representative)];
        return text_of(p, *p.entry(entry_, fragment_), l);
    }
    std::string named(size_t representative, const Launch& l) const {
        return fmt::format("rank {} waits in {}", representatives_.rank(representative), text(representative, l));
    }

    const std::vector<const ir::Program*>& ranks_;
    const ir::EntryKind entry_;
    const int64_t fragment_;
    const Representatives representatives_;
    std::vector<std::vector<Launch>> queues_;
    std::vector<size_t> head_;
    std::map<std::vector<int64_t>, Sends> in_flight_;  // by sender and receiver
    std::string wrong_;
};

// Every block instance is run by one pipeline rank, and all of them by some.
std::string wrong_cut(const std::vector<const ir::Program*>& ranks) {
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
        for (int64_t i : b.all()) {
            if (!holder.contains({b.name, i})) return fmt::format("{}[{}] is on no pipeline rank", b.name, i);
        }
    }
    return "";
}

std::optional<Refusal> check_program(const ir::Program& p, size_t rank, const ops::KernelCatalog* kernels) {
    if (const auto violation = ops::verify(p))
        return Refusal{std::string(name_of(violation->invariant)), fmt::format("rank {}: {}", rank, violation->message)};
    if (const std::string wrong = wrong_places(p); !wrong.empty())
        return Refusal{"memory", fmt::format("rank {}, {}", rank, wrong)};
    if (const std::string wrong = kernels ? wrong_workspaces(p, *kernels) : ""; !wrong.empty())
        return Refusal{"memory", fmt::format("rank {}, {}", rank, wrong)};
    for (const ir::Entry& e : p.entries) {
        std::string wrong = wrong_memory(p, e);
        if (!wrong.empty()) return Refusal{"memory", fmt::format("rank {}, {}: {}", rank, name_of(e.kind), wrong)};
        wrong = wrong_accounting(p, e);
        if (wrong.empty()) wrong = wrong_calls(p, e);
        if (!wrong.empty()) return Refusal{"accounting", fmt::format("rank {}, {}: {}", rank, name_of(e.kind), wrong)};
    }
    std::string wrong = wrong_segments(p);
    if (wrong.empty()) wrong = wrong_step_end(p);
    if (!wrong.empty()) return Refusal{"accounting", fmt::format("rank {}, {}", rank, wrong)};
    return std::nullopt;
}

}  // namespace

std::optional<Refusal> prove(const std::vector<const ir::Program*>& ranks, const ops::KernelCatalog* kernels) {
    std::set<const ir::Program*> seen;
    std::vector<size_t> first;  // of each program: the rank that runs it first
    for (size_t r = 0; r < ranks.size(); ++r) {
        if (seen.insert(ranks[r]).second) first.push_back(r);
    }
    std::vector<std::optional<Refusal>> refusals(first.size());
    parallel_for(first.size(), [&](size_t i) { refusals[i] = check_program(*ranks[first[i]], first[i], kernels); });
    for (const std::optional<Refusal>& refusal : refusals) {
        if (refusal) return refusal;
    }
    if (const std::string wrong = wrong_cut(ranks); !wrong.empty()) return Refusal{"cut", wrong};
    std::vector<const ir::Program*> programs;
    for (size_t rank : first) programs.push_back(ranks[rank]);
    if (const std::string wrong = wrong_hyperparameters(programs); !wrong.empty()) return Refusal{"accounting", wrong};
    return prove_order(ranks);
}

std::optional<Refusal> prove_order(const std::vector<const ir::Program*>& ranks) {
    for (const ir::Entry& e : ranks[0]->entries) {
        if (auto refusal = Rendezvous(ranks, e.kind, e.fragment).run()) return refusal;
    }
    return std::nullopt;
}

}  // namespace lockstep::check
