#include "tune/bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "compile/cut.h"
#include "passes/overlap.h"
#include "passes/schedule.h"
#include "schedules/schedules.h"
#include "schedules/timeline.h"
#include "sim/simulate.h"
#include "tune/costs.h"

namespace lockstep::tune {

using compile::PartitionPreset;
using compile::RecomputeMode;
using ir::BlockInstance;
using schedules::Action;
using schedules::Work;

std::string_view text_of(Limit limit) {
    switch (limit) {
        case Limit::None: return "no bound";
        case Limit::Computation:
            return "computation and tensor-parallel communication of the busiest pipeline rank alone take longer";
        case Limit::Pipeline:
            return "computation, tensor-parallel communication and the bubble of the schedule alone take longer";
        case Limit::Communication:
            return "computation, bubble, and the gathers, reductions and updates that nothing can hide take longer";
        case Limit::Rounds: return "the first rounds of the pipeline, planned, and the others on its busiest rank take longer";
        case Limit::Memory: return "weights, optimizer, gradients and saved activations alone exceed a rank's memory";
    }
    throw InternalError("tune: a limit of no kind");
}

namespace {

// Of asynchronous tensor parallelism: a layer may take less at a stage's edge than between others, 2.5e-3 of a small step.
constexpr double kAsyncSlack = 0.995;
double slack_of(const Choice& c) { return c.async_tensor_parallel ? kAsyncSlack : 1; }

// What a pipeline rank has at a step's fullest moment.
struct Held {
    std::vector<size_t> blocks;  // positions in Whole::blocks
    // When a backward begins: bytes saved, and what the backward of its last layer needs in addition. Of the fullest moment,
    // and of that once each stage of the rank has sums of gradients; -1: never.
    int64_t frames = 0, frames_later = -1;
    std::optional<size_t> layer;  // that the working set of the fullest moment is of: a position in Whole::blocks
    double busy_s = 0;            // of a microbatch
    double begin_s = 0;           // of its first forward
    double end_s = 0;             // of its last backward
    struct Ready {
        size_t block;  // a position in Whole::blocks
        double at_s;   // when its gradients of all microbatches are there
    };
    std::vector<Ready> ready;
};

// What a pipeline rank computes in turn, and which of it gathers weights first, if these are split.
struct Visit {
    int64_t stage = 0;
    Work work = Work::Idle;
    bool gathers = false;
};
struct Walk {
    std::vector<Visit> visits;   // of the microbatches that were played
    std::vector<Visit> shorter;  // of a round of the pipeline less; none: these are all
    double rounds = 0;           // that were not played
};

struct Played {
    std::vector<Held> ranks;
    std::vector<std::vector<size_t>> blocks;  // of each stage, in order
    std::vector<Walk> walks;                  // by pipeline rank; none: nobody has asked yet
    double step_s = 0;                        // of the microbatches that were played
    double more_s = 0;                        // of those that were not, at least
    int64_t microbatches = 0;
};

}  // namespace

struct Bounds::Impl {
    const Problem& problem;
    Costs costs;
    std::map<std::pair<const Whole*, std::tuple<int64_t, std::string, int64_t>>, passes::Cut> cuts;
    std::map<std::tuple<int64_t, std::string, int64_t, int64_t>, int64_t> played_microbatches;
    std::pair<Choice, Played> last;  // members of a family are asked for one after the other

    explicit Impl(const Problem& p) : problem(p), costs(p) {}

    bool bounded() const { return costs.are_priced(); }
    static bool splits(const Choice& f) { return Costs::splits(f); }

    // The inputs of the layers on one pipeline rank, of one microbatch, and the states that all ranks share.
    int64_t least_bytes(const Choice& f) const {
        int64_t hidden = 1;
        for (const ir::Dim& d : problem.space.dims) {
            if (d.role == ir::DimRole::Hidden) hidden = d.size;
        }
        const compile::Config& c = problem.space.base;
        const int64_t layers = (c.model.size("n_layers") + f.pipeline() - 1) / f.pipeline();
        const int64_t of_value = c.training.mixed_precision_param ? bytes_of(*c.training.mixed_precision_param) : 4;
        return layers * f.microbatch * c.training.seq_len * hidden * std::min<int64_t>(of_value, bytes_of(c.training.dtype)) /
               (f.context() * (f.sequence_parallel ? f.tensor() : 1));
    }

    compile::StagePlan plan_of(const Choice& f, int64_t microbatches) {
        Choice c = f;
        c.microbatches = microbatches;
        const compile::Config config = with(problem.space.base, c, microbatches * c.microbatch * c.data());
        const compile::Layout layout = compile::or_throw(compile::layout_of(config, problem.space.dims));
        return compile::or_throw(compile::plan_stages(config, layout, problem.blocks()));
    }

    const passes::Cut& cut_of(const Choice& f, const Whole& w) {
        const auto key = std::pair(&w, std::tuple(f.pipeline(), f.schedule, f.stages_per_rank));
        const auto [at, is_new] = cuts.try_emplace(key);
        if (is_new) at->second = compile::cut_of(plan_of(f, std::min(f.microbatches, f.pipeline())), w.program);
        return at->second;
    }

    // How many microbatches of the family are played: enough to fill the pipeline.
    int64_t played(const Choice& f) {
        const auto [at, is_new] = played_microbatches.try_emplace({f.pipeline(), f.schedule, f.stages_per_rank, f.microbatches});
        if (is_new) at->second = microbatches_to_play(f);
        return at->second;
    }
    int64_t microbatches_to_play(const Choice& f) const {
        const compile::Config config = problem.config(f);
        const compile::Layout layout = compile::or_throw(compile::layout_of(config, problem.space.dims));
        return compile::count_of(compile::Microbatches::Fullest, config, layout, problem.blocks());
    }

    const Played& play(const Choice& member) {
        Choice f = member;
        f.set_replicate(1), f.partition = PartitionPreset::None, f.prefetch = 1;
        if (last.first == f && !last.second.ranks.empty()) return last.second;
        const Whole& w = costs.whole(f);
        last = {f, f.pipeline() == 1 ? one_rank(f, w) : play_table(f, w)};
        return last.second;
    }

    Played one_rank(const Choice& f, const Whole& w) {
        Played out;
        Held& h = out.ranks.emplace_back();
        for (size_t b = 0; b < w.blocks.size(); ++b) h.blocks.push_back(b);
        out.blocks = {h.blocks};
        out.microbatches = played(f);
        h.busy_s = w.sum_busy.whole_s();
        h.end_s = out.step_s = h.busy_s * static_cast<double>(out.microbatches);
        add_ready(h, w, h.blocks, Work::Backward, h.end_s - w.sum.backward_s);
        out.more_s = h.busy_s * static_cast<double>(f.microbatches - out.microbatches);
        h.frames = w.sum.saved_bytes;
        if (f.microbatches > 1) h.frames_later = h.frames;
        h.layer = last_layer(w, h.blocks);
        return out;
    }

    // A schedule in V form may receive gradients earlier than its table says.
    static bool follows_table(const Choice& f) { return f.schedule != "ZBVZeroBubble"; }

    Played play_table(const Choice& f, const Whole& w) {
        const passes::Cut& cut = cut_of(f, w);
        std::vector<BlockCost> stages, busy;
        std::vector<std::vector<size_t>> blocks;
        size_t at = 0;
        for (const std::vector<BlockInstance>& stage : cut.stages) {
            stages.emplace_back(), busy.emplace_back(), blocks.emplace_back();
            for (size_t i = 0; i < stage.size(); ++i, ++at)
                stages.back() += w.costs[at], busy.back() += w.busy[at], blocks.back().push_back(at);
        }
        Played out;
        out.microbatches = played(f);
        out.blocks = blocks;
        const schedules::Table table = schedules::make_schedule(f.schedule, {f.pipeline(), f.stages_per_rank, out.microbatches});
        const auto cost = [&](const Action& a) {
            return a.work == Work::Idle ? 0.0 : stages[static_cast<size_t>(a.stage)].of(a.work);
        };
        const auto delay = [&](int64_t from, int64_t to) {
            return costs.transfer_s(w, cut.stages[static_cast<size_t>(std::min(from, to))].back(), f,
                                    cut.rank_of[static_cast<size_t>(from)], cut.rank_of[static_cast<size_t>(to)]);
        };
        std::vector<std::array<double, 2>> delays_s;  // behind each stage: of activations, of gradients
        for (int64_t s = 0; s + 1 < std::ssize(stages); ++s) delays_s.push_back({delay(s, s + 1), delay(s + 1, s)});
        const schedules::Timeline timeline = schedules::play(table, cost, [&](int64_t from, int64_t to) {
            return delays_s[static_cast<size_t>(std::min(from, to))][from < to ? 0 : 1];
        });
        double most_s = 0;
        for (size_t r = 0; r < table.rows.size(); ++r) {
            Held& h = out.ranks.emplace_back(held(table.rows[r], stages));
            std::map<int64_t, std::pair<Work, double>> last;  // by stage: its last action, and when that begins
            double before_s = 0;
            for (size_t i = 0; i < table.rows[r].size(); ++i) {
                const Action& a = table.rows[r][i];
                const double begin_s = follows_table(f) ? timeline.start[r][i] : before_s;
                before_s += cost(a);
                if (a.work == Work::Idle) continue;
                last[a.stage] = {a.work, begin_s};
                if (schedules::is_backward(a.work) || schedules::is_release(a.work))
                    h.end_s = std::max(h.end_s, begin_s + cost(a));
            }
            for (const auto& [stage, action] : last)
                add_ready(h, w, blocks[static_cast<size_t>(stage)], action.first, action.second);
            for (size_t s = 0; s < stages.size(); ++s) {
                if (cut.rank_of[s] != static_cast<int64_t>(r)) continue;
                // Of stages with and without layers, or of different ones, the smallest working set counts: the last block's is
                // like that of any other layer.
                if (const auto layer = last_layer(w, blocks[s]); !layer || h.blocks.empty()) h.layer = layer;
                h.blocks.insert(h.blocks.end(), blocks[s].begin(), blocks[s].end());
            }
            // While it receives, a rank computes at a part of its rate, but for what peers write; of its first message it may not
            // compute yet.
            const auto microbatches = static_cast<double>(out.microbatches);
            const sim::Cluster& cluster = problem.cluster();
            const bool takes_none = f.async_tensor_parallel || (cluster.runs_module() && cluster.peer_access);
            const double slowed = takes_none ? 0 : 1 - cluster.beside_collective;
            const double received_s = received(cut, static_cast<int64_t>(r), delays_s);
            double busy_s = 0;
            for (const Action& a : table.rows[r])
                busy_s += a.work == Work::Idle ? 0 : busy[static_cast<size_t>(a.stage)].of(a.work);
            h.busy_s = busy_s / microbatches + slowed * received_s;
            const double begin_s = follows_table(f) && !timeline.start[r].empty() ? timeline.start[r].front() : 0;
            h.begin_s = begin_s;
            const double all_s = begin_s + h.busy_s * microbatches - slowed * received_s;
            h.end_s = std::max(h.end_s, all_s);
            out.step_s =
                std::max({out.step_s, h.end_s, all_s + (follows_table(f) ? behind_s(table.rows[r], stages, delays_s) : 0)});
            most_s = std::max(most_s, h.busy_s);
        }
        // The plan leaves microbatches out, too, and says that each takes as long as on the busiest rank at least.
        out.more_s = most_s * static_cast<double>(f.microbatches - out.microbatches);
        return out;
    }

    // How much later than the row a step ends at least: the gradients of its last backward go on through the stages before.
    static double behind_s(const schedules::Row& row, const std::vector<BlockCost>& stages,
                           const std::vector<std::array<double, 2>>& delays_s) {
        double own_s = 0;  // of the row, behind that backward
        for (size_t i = row.size(); i-- > 0;) {
            const Action& a = row[i];
            if (!schedules::is_backward(a.work)) {
                if (a.work != Work::Idle) own_s += stages[static_cast<size_t>(a.stage)].of(a.work);
                continue;
            }
            double others_s = 0;
            for (size_t s = 0; s < static_cast<size_t>(a.stage); ++s) others_s += stages[s].of(a.work) + delays_s[s][1];
            return std::max(others_s - own_s, 0.0);
        }
        return 0;
    }

    // A stage's last work, which begins then, goes through its blocks from the last one on.
    static void add_ready(Held& h, const Whole& w, const std::vector<size_t>& blocks, Work work, double begin_s) {
        for (size_t i = blocks.size(); i-- > 0;) {
            begin_s += w.costs[blocks[i]].of(work);
            h.ready.push_back({blocks[i], begin_s});
        }
    }

    // How long a rank receives a microbatch's activations and gradients.
    static double received(const passes::Cut& cut, int64_t rank, const std::vector<std::array<double, 2>>& delays_s) {
        double out = 0;
        for (size_t s = 0; s < delays_s.size(); ++s) {
            if (cut.rank_of[s + 1] == rank) out += delays_s[s][0];
            if (cut.rank_of[s] == rank) out += delays_s[s][1];
        }
        return out;
    }

    // The last block of a stage that the model has several of; none: it has no such block.
    static std::optional<size_t> last_layer(const Whole& w, const std::vector<size_t>& blocks) {
        for (size_t i = blocks.size(); i-- > 0;) {
            if (w.program.block(w.blocks[blocks[i]].block)->count > 1) return blocks[i];
        }
        return std::nullopt;
    }

    // Bytes of frames along a row, at each beginning of a backward.
    static Held held(const schedules::Row& row, const std::vector<BlockCost>& stages) {
        Held h;
        std::map<int64_t, bool> summed;
        for (const Action& a : row) {
            if (a.work != Work::Idle) summed.try_emplace(a.stage, false);
        }
        size_t missing = summed.size();
        int64_t now = 0;
        for (const Action& a : row) {
            if (a.work == Work::Forward) now += stages[static_cast<size_t>(a.stage)].saved_bytes;
            if (schedules::is_backward(a.work)) {
                h.frames = std::max(h.frames, now);
                if (missing == 0) h.frames_later = std::max(h.frames_later, now);
            }
            if (!schedules::is_release(a.work)) continue;
            now -= stages[static_cast<size_t>(a.stage)].saved_bytes;
            if (!std::exchange(summed[a.stage], true)) --missing;
        }
        return h;
    }

    // What a backward computes again before it begins.
    int64_t again_bytes(const Choice& m, size_t block) {
        if (m.recompute == RecomputeMode::None) return 0;
        Choice none = Costs::plain_of(m);
        none.recompute = RecomputeMode::None;
        const int64_t all = costs.whole(none).costs[block].saved_bytes;
        return std::max<int64_t>(all - costs.plain(m).costs[block].saved_bytes, 0);
    }

    Fullest fullest(const Choice& m) {
        const Played& played = play(m);
        const States& states = costs.states_of(m);
        Fullest out;
        const compile::Windows windows = windows_of(m);
        // A stage keeps what it gathered from its first microbatch to its last.
        const bool keeps_gathered =
            windows.resident_stages > 0 && m.stages_per_rank == 1 && m.partition == PartitionPreset::Zero3;
        const bool sums_whole = windows.reduce_gradients == passes::ReduceGradients::OnceAStep;
        for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
            const Held& h = played.ranks[rank];
            int64_t resident = 0, gradients = 0;
            for (const size_t b : h.blocks) {
                resident += states[b].bytes + (keeps_gathered ? states[b].gathered_bytes : 0);
                gradients += sums_whole ? states[b].full_gradient_bytes : states[b].gradient_bytes;
            }
            int64_t again = 0, of_layer = 0;
            if (h.layer) {
                const StateCost& layer = states[*h.layer];
                again = again_bytes(m, *h.layer) + (keeps_gathered ? 0 : layer.gathered_bytes);
                of_layer = layer.full_gradient_bytes;
            }
            const int64_t first = h.frames + of_layer, later = h.frames_later < 0 ? 0 : h.frames_later + gradients;
            if (const int64_t bytes = resident + again + std::max(first, later); bytes > out.bytes)
                out = {static_cast<int64_t>(rank), bytes};
        }
        return out;
    }

    // With what no op accounts for; `more_s`: of microbatches that were not played.
    double of_step(double played_s, int64_t ranks, double more_s) const {
        return sim::with_host(played_s, problem.cluster(), ranks) + sim::factor_of(problem.cluster(), ranks) * more_s;
    }

    // One after the other, each from when its gradients are there: when a rank's last reduction ends.
    static double reduced_s(const Held& h, const States& states) {
        std::vector<Held::Ready> ready = h.ready;
        std::sort(ready.begin(), ready.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
        double end_s = 0;
        for (const auto& [block, at_s] : ready) end_s = std::max(end_s, at_s) + states[block].reduce_s;
        return end_s;
    }

    // How much later the first stage's first forward ends because it waits for weights, which are gathered `prefetch` blocks
    // ahead.
    static double gathered_s(const Played& p, const Whole& w, const States& states, int64_t prefetch) {
        std::vector<double> ends_s(static_cast<size_t>(prefetch) + 1, 0);  // of the blocks before
        double gathered_s = 0, alone_s = 0;
        for (const size_t b : p.blocks.front()) {
            if (states[b].gathered) gathered_s = std::max(gathered_s, ends_s.front()) + states[b].gather_s;
            ends_s.push_back(std::max(ends_s.back(), gathered_s) + w.costs[b].forward_s);
            ends_s.erase(ends_s.begin());
            alone_s += w.costs[b].forward_s;
        }
        return ends_s.back() - alone_s;
    }

    // A row's actions. Before each, all but the next `resident` stages are let go; of none, each block behind its routine.
    static std::vector<Visit> visits_of(const schedules::Row& row, int64_t resident) {
        std::vector<int64_t> stages;
        for (const Action& a : row) stages.push_back(a.work == Work::Idle ? -1 : a.stage);
        const passes::ResidentStages residents(stages, resident);
        std::vector<Visit> out;
        std::set<int64_t> held;
        for (size_t i = 0; i < row.size(); ++i) {
            const Action& a = row[i];
            if (a.work == Work::Idle) continue;
            const std::set<int64_t> kept = residents.from(i);
            std::erase_if(held, [&](int64_t stage) { return !kept.contains(stage); });
            const bool reads_weights = a.work != Work::BackwardWeight;
            out.push_back({a.stage, a.work, reads_weights && held.insert(a.stage).second});
        }
        return out;
    }

    compile::Windows windows_of(const Choice& m) const { return compile::windows_of(problem.space.base, m.pipeline() > 1); }

    const std::vector<Walk>& walks_of(const Choice& m) {
        play(m);
        Played& p = last.second;
        if (!p.walks.empty()) return p.walks;
        const int64_t resident = std::min(windows_of(m).resident_stages, m.stages_per_rank);
        const auto rows = [&](int64_t microbatches) {
            if (m.pipeline() > 1)
                return schedules::make_schedule(m.schedule, {m.pipeline(), m.stages_per_rank, microbatches}).rows;
            schedules::Row row;
            for (int64_t i = 0; i < microbatches; ++i) row.insert(row.end(), {{Work::Forward, 0, i}, {Work::Backward, 0, i}});
            return std::vector<schedules::Row>{row};
        };
        const int64_t more = m.microbatches - p.microbatches;
        const std::vector<schedules::Row> all = rows(p.microbatches);
        const std::vector<schedules::Row> fewer = more > 0 ? rows(p.microbatches - m.pipeline()) : std::vector<schedules::Row>();
        for (size_t rank = 0; rank < all.size(); ++rank) {
            Walk& walk = p.walks.emplace_back();
            walk.visits = visits_of(all[rank], resident);
            if (more > 0) walk.shorter = visits_of(fewer[rank], resident);
            walk.rounds = static_cast<double>(more) / static_cast<double>(m.pipeline());
        }
        return p.walks;
    }

    // A rank by itself: when it has computed everything, and for how long it gathers.
    struct Walked {
        double end_s = 0, gathers_s = 0;
    };
    static Walked walked(const std::vector<Visit>& visits, const Played& p, double begin_s, const Whole& w, const States& states,
                         int64_t prefetch, bool keeps_stages) {
        Walked out{begin_s, 0};
        std::vector<double> uses_s;  // when what comes before each gathered block has been computed
        double gathered_s = 0;
        size_t before = w.blocks.size();  // the block that was computed last
        for (const Visit& v : visits) {
            const std::vector<size_t>& blocks = p.blocks[static_cast<size_t>(v.stage)];
            for (size_t i = 0; i < blocks.size(); ++i) {
                const size_t b = blocks[v.work == Work::Forward ? i : blocks.size() - 1 - i];
                const bool reads_weights = v.work != Work::BackwardWeight;
                if (states[b].gathered && reads_weights && (keeps_stages ? v.gathers : b != before)) {
                    uses_s.push_back(out.end_s);
                    const size_t at = passes::given_before_use_of(uses_s.size() - 1, prefetch);
                    gathered_s = std::max(gathered_s, uses_s[at]) + states[b].gather_s;
                    out.end_s = std::max(out.end_s, gathered_s);
                    out.gathers_s += states[b].gather_s;
                }
                out.end_s += w.costs[b].of(v.work);
                before = b;
            }
        }
        return out;
    }
    Walked walked(const Choice& m, size_t rank, const Whole& w, const States& states) {
        const Played& p = last.second;
        const Walk& walk = p.walks[rank];
        const auto of = [&](const std::vector<Visit>& visits) {
            const bool keeps_stages = windows_of(m).resident_stages > 0;
            return walked(visits, p, p.ranks[rank].begin_s, w, states, m.prefetch, keeps_stages);
        };
        Walked out = of(walk.visits);
        if (walk.shorter.empty()) return out;
        const Walked shorter = of(walk.shorter);
        out.end_s += walk.rounds * (out.end_s - shorter.end_s);
        out.gathers_s += walk.rounds * (out.gathers_s - shorter.gathers_s);
        return out;
    }

    TimeBound of_member(const Choice& m) {
        const Played& p = play(m);
        const States& states = costs.states_of(m);
        const Whole& w = costs.whole(m);
        const bool splits_weights = m.partition == PartitionPreset::Zero3;
        if (splits_weights) walks_of(m);
        // Microbatches of a pipeline may interleave, and are then reduced together.
        const bool reduces_each = m.pipeline() == 1 && windows_of(m).reduce_gradients == passes::ReduceGradients::EachMicrobatch;
        double update_s = 0, end_s = p.step_s, all_s = 0;
        for (size_t rank = 0; rank < p.ranks.size(); ++rank) {
            const Held& h = p.ranks[rank];
            double update = 0, reduce = 0;
            for (const size_t b : h.blocks) {
                const StateCost& s = states[b];
                update += s.update_s, reduce += s.reduce_s;
                if (reduces_each) reduce += s.reduce_micro_s * static_cast<double>(m.microbatches);
            }
            update_s = std::max(update_s, update);
            end_s = std::max(end_s, reduced_s(h, states));
            all_s = std::max(all_s, reduce);
            if (!splits_weights) continue;
            const Walked walk = walked(m, rank, w, states);
            all_s = std::max({all_s, walk.gathers_s + reduce, walk.end_s});
        }
        const double first_gather_s = gathered_s(p, w, states, m.prefetch);
        const bool has_stream = problem.machine.rank_threads.comm_thread;
        // What an asynchronous layer sends last may end during the update.
        const double behind_s = m.async_tensor_parallel ? 0 : update_s;
        const double beside_s = has_stream ? of_step(all_s + behind_s, m.ranks(), 0) : 0;
        const double step_s = std::max(of_step(end_s + first_gather_s + behind_s, m.ranks(), p.more_s), beside_s);
        return {slack_of(m) * step_s, Limit::Communication};
    }
};

Bounds::Bounds(const Problem& problem) : impl_(std::make_unique<Impl>(problem)) {}
Bounds::~Bounds() = default;

std::string Bounds::refusal(const Choice& family) {
    const auto layout = compile::layout_of(impl_->problem.config(family), impl_->problem.space.dims);
    const UserError* no = compile::refusal_of(layout);
    return no ? no->what() : "";
}

TimeBound Bounds::coarse(const Choice& f) {
    if (!impl_->bounded()) return {};
    // What asynchronous tensor parallelism cuts is not computed in less time. At best all of its communication is hidden.
    const Whole& w = impl_->costs.plain(f);
    const BlockCost& c = w.sum;
    const bool splits = Impl::splits(f);
    const double both_s = c.forward_s + (splits ? std::min(c.backward_s, c.input_s + c.weight_s) : c.backward_s);
    const double mean_s = (f.async_tensor_parallel ? w.computing_s : both_s) / static_cast<double>(f.pipeline());
    return {slack_of(f) * impl_->of_step(0, f.ranks(), mean_s * static_cast<double>(f.microbatches)), Limit::Computation};
}

TimeBound Bounds::of_family(const Choice& f) {
    if (!impl_->bounded()) return {};
    const Played& p = impl_->play(f);
    return {slack_of(f) * impl_->of_step(p.step_s, f.ranks(), p.more_s), Limit::Pipeline};
}

TimeBound Bounds::of_member(const Choice& m) { return impl_->bounded() ? impl_->of_member(m) : TimeBound{}; }

int64_t Bounds::least_bytes(const Choice& family) const {
    return impl_->problem.is_of_described_stack() ? 0 : impl_->least_bytes(family);
}

Fullest Bounds::fullest(const Choice& member) {
    return impl_->problem.is_of_described_stack() ? Fullest{} : impl_->fullest(member);
}

}  // namespace lockstep::tune
