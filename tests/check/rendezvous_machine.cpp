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

// A place in a rank's queue of communication: a collective of a compute call, or a call of the comm stream as a whole (op -1).
struct QueueItem {
    int call, op;
    bool operator==(const QueueItem&) const = default;
};

// One entry of one program, made ready to run.
struct Track {
    const ir::Entry* entry = nullptr;
    std::array<std::vector<int>, 2> streams;    // calls
    std::vector<Moment> moments;                // by call
    std::vector<std::vector<int>> collectives;  // by call, ops
    std::vector<QueueItem> queue;
};

Track track_of(const ir::Program& program, const ir::Entry& entry) {
    Track t;
    t.entry = &entry;
    t.moments.resize(entry.calls.size());
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const Call& c = entry.calls[i];
        const int call = static_cast<int>(i);
        const size_t s = static_cast<size_t>(c.queue);
        Moment& m = t.moments[i];
        m.stream = static_cast<int>(s);
        m.position = static_cast<int>(t.streams[s].size());
        if (!t.streams[s].empty()) m.seen = t.moments[static_cast<size_t>(t.streams[s].back())].seen;
        m.seen[s] = m.position;
        for (int w : c.waits) {
            if (w < 0 || w >= call) throw Illegal(fmt::format("call {} waits for a call that is not before it", i));
            const Moment& awaited = t.moments[static_cast<size_t>(w)];
            for (size_t k = 0; k < 2; ++k) m.seen[k] = std::max(m.seen[k], awaited.seen[k]);
            m.seen[static_cast<size_t>(awaited.stream)] =
                std::max(m.seen[static_cast<size_t>(awaited.stream)], awaited.position + 1);
        }
        t.streams[s].push_back(call);
        t.collectives.emplace_back();
        const ir::Routine& r = program.routines[static_cast<size_t>(c.routine)];
        for (size_t k = 0; k < r.ops.size(); ++k) {
            if (is_collective(r.ops[k])) t.collectives.back().push_back(static_cast<int>(k));
        }
        if (c.queue == QueueName::Comm) t.queue.push_back({call, -1});
        else {
            for (int op : t.collectives.back()) t.queue.push_back({call, op});
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

enum class Policy { ComputeFirst, CommFirst, Random };

class Machine {
public:
    Machine(const std::vector<const Score*>& scores, Policy policy, uint64_t seed)
        : ranks_(scores.size()), policy_(policy), random_(seed) {
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
        while (policy_ == Policy::Random ? move_anybody() : move_in_order()) {
        }
        for (size_t r = 0; r < ranks_.size(); ++r) {
            if (!ranks_[r].finished()) throw Illegal(fmt::format("deadlock: rank {} stands at {}", r, place(ranks_[r])));
        }
    }

private:
    struct Lane {
        size_t next = 0;    // in the stream's list
        int call = -1;      // that runs
        size_t passed = 0;  // collectives of it that are done
    };
    struct Rank {
        const Score* score = nullptr;
        std::unique_ptr<RankMemory> memory;
        size_t step = 0, queue_head = 0;
        std::array<Lane, 2> lanes;
        std::vector<bool> ended;

        bool finished() const { return step == score->steps.size(); }
        const Track& track() const { return score->steps[step]; }
        const Call& call(int index) const { return track().entry->calls[static_cast<size_t>(index)]; }
        bool is_head(QueueItem item) const { return queue_head < track().queue.size() && track().queue[queue_head] == item; }
        // The collective that a lane stands at, or -1.
        int collective(const Lane& lane) const {
            if (lane.call < 0) return -1;
            const std::vector<int>& all = track().collectives[static_cast<size_t>(lane.call)];
            return lane.passed < all.size() ? all[lane.passed] : -1;
        }
    };

    static void enter_step(Rank& rank) {
        rank.lanes = {};
        rank.queue_head = 0;
        if (rank.finished()) return;
        rank.ended.assign(rank.track().entry->calls.size(), false);
        if (rank.memory) rank.memory->begin_step(*rank.track().entry);
    }

    bool move_in_order() {
        const size_t first = policy_ == Policy::ComputeFirst ? 0 : 1;
        bool moved = false;
        for (size_t r = 0; r < ranks_.size(); ++r) {
            while (move(r, first)) moved = true;
        }
        for (size_t r = 0; r < ranks_.size() && !moved; ++r) moved = move(r, 1 - first);
        return moved;
    }

    bool move_anybody() {
        const size_t lanes = 2 * ranks_.size(), start = random_() % lanes;
        for (size_t k = 0; k < lanes; ++k) {
            const size_t lane = (start + k) % lanes;
            if (move(lane / 2, lane % 2)) return true;
        }
        return false;
    }

    // One event of one stream of one rank: a call starts, a collective completes for all its members, a call ends.
    bool move(size_t r, size_t stream) {
        Rank& rank = ranks_[r];
        if (rank.finished()) return false;
        Lane& lane = rank.lanes[stream];
        if (lane.call < 0) return start(rank, stream);
        if (rank.collective(lane) >= 0) return meet(r, stream);
        end(rank, stream);
        return true;
    }

    static bool start(Rank& rank, size_t stream) {
        Lane& lane = rank.lanes[stream];
        const std::vector<int>& list = rank.track().streams[stream];
        if (lane.next == list.size()) return false;
        const int call = list[lane.next];
        for (int w : rank.call(call).waits) {
            if (!rank.ended[static_cast<size_t>(w)]) return false;
        }
        if (stream == 1 && !rank.is_head({call, -1})) return false;
        if (rank.memory) rank.memory->run(call, rank.track().moments[static_cast<size_t>(call)]);
        lane.call = call;
        lane.passed = 0;
        ++lane.next;
        return true;
    }

    static void end(Rank& rank, size_t stream) {
        Lane& lane = rank.lanes[stream];
        rank.ended[static_cast<size_t>(lane.call)] = true;
        lane.call = -1;
        if (stream == 1) ++rank.queue_head;
        for (size_t s = 0; s < 2; ++s) {
            if (rank.lanes[s].call >= 0 || rank.lanes[s].next < rank.track().streams[s].size()) return;
        }
        if (rank.memory) rank.memory->end_step();
        ++rank.step;
        enter_step(rank);
    }

    // The stream on which a rank holds out this collective at the head of its queue, or -1.
    int holds_out(const Rank& rank, const Rank& other, size_t other_stream) const {
        if (rank.finished()) return -1;
        const Lane& theirs = other.lanes[other_stream];
        const int op = other.collective(theirs);
        const Call& b = other.call(theirs.call);
        for (size_t s = 0; s < 2; ++s) {
            const Lane& lane = rank.lanes[s];
            if (rank.collective(lane) != op || !rank.is_head({lane.call, s == 1 ? -1 : op})) continue;
            const Call& a = rank.call(lane.call);
            const bool same_routine = rank.score->program->routines[static_cast<size_t>(a.routine)].name ==
                                      other.score->program->routines[static_cast<size_t>(b.routine)].name;
            if (same_routine && a.instance == b.instance && a.microbatch == b.microbatch && a.chunk == b.chunk)
                return static_cast<int>(s);
        }
        return -1;
    }

    bool meet(size_t r, size_t stream) {
        const Rank& me = ranks_[r];
        const Lane& lane = me.lanes[stream];
        const ir::Program& program = *me.score->program;
        const ir::Op& op =
            program.routines[static_cast<size_t>(me.call(lane.call).routine)].ops[static_cast<size_t>(me.collective(lane))];
        const std::vector<int64_t> members = program.mesh.group(static_cast<int64_t>(r), op.group);
        std::vector<int> streams;
        for (int64_t m : members) {
            streams.push_back(holds_out(ranks_[static_cast<size_t>(m)], me, stream));
            if (streams.back() < 0) return false;
        }
        for (size_t k = 0; k < members.size(); ++k) {
            Rank& member = ranks_[static_cast<size_t>(members[k])];
            ++member.lanes[static_cast<size_t>(streams[k])].passed;
            if (streams[k] == 0) ++member.queue_head;
        }
        return true;
    }

    static std::string place(const Rank& rank) {
        std::string text = fmt::format("step {}", rank.step);
        for (size_t s = 0; s < 2; ++s) {
            const Lane& lane = rank.lanes[s];
            const std::vector<int>& list = rank.track().streams[s];
            const int call = lane.call >= 0 ? lane.call : lane.next < list.size() ? list[lane.next] : -1;
            if (call < 0) continue;
            text += fmt::format(", call {} {}", call,
                                rank.score->program->routines[static_cast<size_t>(rank.call(call).routine)].name);
        }
        return text;
    }

    std::vector<Rank> ranks_;
    Policy policy_;
    std::mt19937_64 random_;
};

}  // namespace

std::optional<std::string> run_ranks(const std::vector<const ir::Program*>& ranks) {
    try {
        std::map<const ir::Program*, Score> scores;
        std::vector<const Score*> by_rank;
        for (const ir::Program* p : ranks) {
            if (!scores.contains(p)) scores.emplace(p, score_of(*p));
            by_rank.push_back(&scores.at(p));
        }
        Machine(by_rank, Policy::ComputeFirst, 0).run();
        Machine(by_rank, Policy::CommFirst, 0).run();
        for (uint64_t seed : {1, 2}) Machine(by_rank, Policy::Random, seed).run();
    } catch (const Illegal& breach) {
        return breach.what();
    }
    return std::nullopt;
}

}  // namespace lockstep::check_test
