#include "rendezvous_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>

#include "rank_memory.h"

namespace lockstep::check_test {
namespace {

using ir::Call;

bool is_collective(const ir::Op& op) {
    const std::optional<mesh::Collective> kind = mesh::collective_named(op.kind);
    return kind && mesh::traits_of(*kind).symmetric;
}

// A place in a rank's line of communication: a collective of a compute call, or a call of another queue as a whole (op -1).
struct LineItem {
    int call, op;
    bool operator==(const LineItem&) const = default;
};

// One entry of one program, made ready to run.
struct Track {
    const ir::Entry* entry = nullptr;
    ByStepQueue<std::vector<int>> queues;       // calls
    std::vector<Moment> moments;                // by call
    std::vector<std::vector<int>> collectives;  // by call, ops
    std::vector<LineItem> line;
};

Track track_of(const ir::Program& program, const ir::Entry& entry) {
    Track t;
    t.entry = &entry;
    t.moments.resize(entry.calls.size());
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const Call& c = entry.calls[i];
        const int call = static_cast<int>(i);
        Moment& m = t.moments[i];
        m.queue = c.queue;
        std::vector<int>& own = t.queues[c.queue];
        m.position = static_cast<int>(own.size());
        if (!own.empty()) m.seen = t.moments[static_cast<size_t>(own.back())].seen;
        m.seen[c.queue] = m.position;
        for (int w : c.waits) {
            if (w < 0 || w >= call) throw Illegal(fmt::format("call {} waits for a call that is not before it", i));
            const Moment& awaited = t.moments[static_cast<size_t>(w)];
            for (QueueName q : kQueuesOfSteps) m.seen[q] = std::max(m.seen[q], awaited.seen[q]);
            m.seen[awaited.queue] = std::max(m.seen[awaited.queue], awaited.position + 1);
        }
        own.push_back(call);
        t.collectives.emplace_back();
        const ir::Routine& r = program.routines[static_cast<size_t>(c.routine)];
        for (size_t k = 0; k < r.ops.size(); ++k) {
            if (is_collective(r.ops[k])) t.collectives.back().push_back(static_cast<int>(k));
        }
        if (c.queue != QueueName::Compute) t.line.push_back({call, -1});
        else {
            for (int op : t.collectives.back()) t.line.push_back({call, op});
        }
    }
    return t;
}

// The steps that a rank runs, one after the other.
struct Score {
    const ir::Program* program = nullptr;
    std::vector<Track> steps;
    std::unique_ptr<AccessTable> table;
};

Score score_of(const ir::Program& program) {
    Score s;
    s.program = &program;
    using enum ir::EntryKind;
    for (const ir::EntryKind kind : {Train, Train, Eval, Eval, Train}) {
        if (const ir::Entry* entry = program.entry(kind)) s.steps.push_back(track_of(program, *entry));
    }
    s.table = std::make_unique<AccessTable>(program);
    return s;
}

class Machine {
public:
    // first: the queue that moves before the others; nothing: they move in any order, by the seed. room: how many collectives of
    // a rank may be under way; 0: its communication is one line, in the order of the list.
    Machine(const std::vector<const Score*>& scores, std::optional<QueueName> first, uint64_t seed, int room)
        : ranks_(scores.size()), first_(first), room_(room), random_(seed) {
        std::map<const Score*, bool> has_memory;
        for (size_t r = 0; r < scores.size(); ++r) {
            ranks_[r].score = scores[r];
            // Ranks of one program touch memory alike: one of them is watched.
            if (!has_memory[scores[r]]) ranks_[r].memory = std::make_unique<RankMemory>(*scores[r]->program, *scores[r]->table);
            has_memory[scores[r]] = true;
            enter_step(ranks_[r]);
        }
    }

    void run() {
        while (first_ ? move_in_order() : move_anybody()) {
        }
        for (size_t r = 0; r < ranks_.size(); ++r) {
            if (!ranks_[r].finished()) throw Illegal(fmt::format("deadlock: rank {} stands at {}", r, place(ranks_[r])));
        }
    }

private:
    struct Lane {
        size_t next = 0;     // in the queue's list
        int call = -1;       // that runs
        size_t passed = 0;   // collectives of it that are done
        bool holds = false;  // a place for the one that it stands at
    };
    struct Rank {
        const Score* score = nullptr;
        std::unique_ptr<RankMemory> memory;
        size_t step = 0, line_head = 0;
        int held = 0;  // places of collectives under way
        ByStepQueue<Lane> lanes;
        std::vector<bool> ended;

        bool finished() const { return step == score->steps.size(); }
        const Track& track() const { return score->steps[step]; }
        const Call& call(int index) const { return track().entry->calls[static_cast<size_t>(index)]; }
        bool is_head(LineItem item) const { return line_head < track().line.size() && track().line[line_head] == item; }
        // The collective that a lane stands at, or -1.
        int collective(const Lane& lane) const {
            if (lane.call < 0) return -1;
            const std::vector<int>& all = track().collectives[static_cast<size_t>(lane.call)];
            return lane.passed < all.size() ? all[lane.passed] : -1;
        }
    };

    static void enter_step(Rank& rank) {
        rank.lanes = {};
        rank.line_head = 0;
        if (rank.finished()) return;
        rank.ended.assign(rank.track().entry->calls.size(), false);
        if (rank.memory) rank.memory->begin_step(*rank.track().entry);
    }

    bool move_in_order() {
        bool moved = false;
        for (size_t r = 0; r < ranks_.size(); ++r) {
            while (move(r, *first_)) moved = true;
        }
        for (QueueName other : kQueuesOfSteps) {
            for (size_t r = 0; r < ranks_.size() && !moved; ++r) moved = move(r, other);
        }
        return moved;
    }

    bool move_anybody() {
        const size_t lanes = kStepQueues * ranks_.size(), start = random_() % lanes;
        for (size_t k = 0; k < lanes; ++k) {
            const size_t lane = (start + k) % lanes;
            if (move(lane / kStepQueues, kQueuesOfSteps[lane % kStepQueues])) return true;
        }
        return false;
    }

    // One event of one queue of one rank: a call starts, a collective takes its place, or completes for all its members, a call
    // ends.
    bool move(size_t r, QueueName queue) {
        Rank& rank = ranks_[r];
        if (rank.finished()) return false;
        Lane& lane = rank.lanes[queue];
        if (lane.call < 0) return start(rank, queue);
        if (rank.collective(lane) < 0) {
            end(rank, queue);
            return true;
        }
        if (room_ == 0 || lane.holds) return meet(r, queue);
        if (rank.held == room_) return false;
        ++rank.held;
        return lane.holds = true;
    }

    bool start(Rank& rank, QueueName queue) const {
        Lane& lane = rank.lanes[queue];
        const std::vector<int>& list = rank.track().queues[queue];
        if (lane.next == list.size()) return false;
        const int call = list[lane.next];
        for (int w : rank.call(call).waits) {
            if (!rank.ended[static_cast<size_t>(w)]) return false;
        }
        if (room_ == 0 && queue != QueueName::Compute && !rank.is_head({call, -1})) return false;
        if (rank.memory) rank.memory->run(call, rank.track().moments[static_cast<size_t>(call)]);
        lane.call = call;
        lane.passed = 0;
        ++lane.next;
        return true;
    }

    static void end(Rank& rank, QueueName queue) {
        Lane& lane = rank.lanes[queue];
        rank.ended[static_cast<size_t>(lane.call)] = true;
        lane.call = -1;
        if (queue != QueueName::Compute) ++rank.line_head;
        for (QueueName q : kQueuesOfSteps) {
            if (rank.lanes[q].call >= 0 || rank.lanes[q].next < rank.track().queues[q].size()) return;
        }
        if (rank.memory) rank.memory->end_step();
        ++rank.step;
        enter_step(rank);
    }

    // The queue on which a rank holds out this collective, at the head of its line if it has one.
    std::optional<QueueName> holds_out(const Rank& rank, const Rank& other, QueueName of_other) const {
        if (rank.finished()) return std::nullopt;
        const Lane& theirs = other.lanes[of_other];
        const int op = other.collective(theirs);
        const Call& b = other.call(theirs.call);
        for (QueueName q : kQueuesOfSteps) {
            const Lane& lane = rank.lanes[q];
            if (rank.collective(lane) != op) continue;
            if (room_ == 0 ? !rank.is_head({lane.call, q == QueueName::Compute ? op : -1}) : !lane.holds) continue;
            const Call& a = rank.call(lane.call);
            const bool same_routine = rank.score->program->routines[static_cast<size_t>(a.routine)].name ==
                                      other.score->program->routines[static_cast<size_t>(b.routine)].name;
            if (same_routine && a.instance == b.instance && a.microbatch == b.microbatch && a.chunk == b.chunk) return q;
        }
        return std::nullopt;
    }

    bool meet(size_t r, QueueName queue) {
        const Rank& me = ranks_[r];
        const Lane& lane = me.lanes[queue];
        const ir::Program& program = *me.score->program;
        const ir::Op& op =
            program.routines[static_cast<size_t>(me.call(lane.call).routine)].ops[static_cast<size_t>(me.collective(lane))];
        const std::vector<int64_t> members = program.mesh.group(static_cast<int64_t>(r), op.group);
        std::vector<QueueName> queues;
        for (int64_t m : members) {
            const std::optional<QueueName> held_out = holds_out(ranks_[static_cast<size_t>(m)], me, queue);
            if (!held_out) return false;
            queues.push_back(*held_out);
        }
        for (size_t k = 0; k < members.size(); ++k) {
            Rank& member = ranks_[static_cast<size_t>(members[k])];
            Lane& of_member = member.lanes[queues[k]];
            ++of_member.passed;
            if (std::exchange(of_member.holds, false)) --member.held;
            if (queues[k] == QueueName::Compute) ++member.line_head;
        }
        return true;
    }

    static std::string place(const Rank& rank) {
        std::string text = fmt::format("step {}", rank.step);
        for (QueueName q : kQueuesOfSteps) {
            const Lane& lane = rank.lanes[q];
            const std::vector<int>& list = rank.track().queues[q];
            const int call = lane.call >= 0 ? lane.call : lane.next < list.size() ? list[lane.next] : -1;
            if (call < 0) continue;
            text += fmt::format(", call {} {}", call,
                                rank.score->program->routines[static_cast<size_t>(rank.call(call).routine)].name);
        }
        return text;
    }

    std::vector<Rank> ranks_;
    std::optional<QueueName> first_;
    int room_;
    std::mt19937_64 random_;
};

}  // namespace

std::optional<std::string> run_ranks(const std::vector<const ir::Program*>& ranks, std::optional<int> room) {
    try {
        std::map<const ir::Program*, Score> scores;
        std::vector<const Score*> by_rank;
        for (const ir::Program* p : ranks) {
            if (!scores.contains(p)) scores.emplace(p, score_of(*p));
            by_rank.push_back(&scores.at(p));
        }
        for (const int each : room ? std::vector{*room} : std::vector{0, static_cast<int>(kStepQueues)}) {
            for (const QueueName first : kQueuesOfSteps) Machine(by_rank, first, 0, each).run();
            for (uint64_t seed : {1, 2}) Machine(by_rank, std::nullopt, seed, each).run();
        }
    } catch (const Illegal& breach) {
        return breach.what();
    }
    return std::nullopt;
}

}  // namespace lockstep::check_test
