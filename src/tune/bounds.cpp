#include "tune/bounds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"
#include "compile/stages.h"
#include "ops/rule.h"
#include "schedules/schedules.h"
#include "schedules/timeline.h"
#include "sim/profile.h"
#include "sim/simulate.h"

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
        case Limit::Memory: return "weights, optimizer, gradients and saved activations alone exceed a rank's memory";
    }
    throw InternalError("tune: a limit of no kind");
}

namespace {

// Of schedules with several stages a rank only this many rounds are played: what is left out takes at least its computation.
constexpr int64_t kRounds = 3;

// Ops at the edges of stages may differ from those of the whole model: 1.4e-4 of the step of GPT 175B on 16 stages. In a small
// pipeline a transfer may end beside an op: 3e-4.
constexpr double kSlack = 0.997;
// Of the bound with communication: what a layer's last blocks send may end beside the update, 1.1e-2 of a small step.
constexpr double kMemberSlack = 0.98;

// What one microbatch does with an instance of a block, on one rank.
struct BlockCost {
    double forward_s = 0, backward_s = 0, input_s = 0, weight_s = 0;  // input, weight: a backward in two parts
    double computed_backward_s = 0;                                   // without waiting for the other thread
    double busy_s = 0, busy_in_parts_s = 0;  // forward and backward of the computing thread, without waiting for the other
    int64_t saved_bytes = 0;                 // saved for the backward
    double of(Work work) const {
        switch (work) {
            case Work::Forward: return forward_s;
            case Work::Backward: return backward_s;
            case Work::BackwardInput: return input_s;
            case Work::BackwardWeight: return weight_s;
            case Work::Idle: return 0;
        }
        return 0;
    }
    BlockCost& operator+=(const BlockCost& o) {
        forward_s += o.forward_s, backward_s += o.backward_s, input_s += o.input_s, weight_s += o.weight_s;
        busy_s += o.busy_s, busy_in_parts_s += o.busy_in_parts_s, saved_bytes += o.saved_bytes;
        return *this;
    }
};

// The model on one pipeline rank, with chosen kernels.
struct Whole {
    ir::Program program;
    std::vector<BlockInstance> blocks;
    std::vector<BlockCost> costs;  // by position in `blocks`
    BlockCost sum;
    double computing_s = 0;  // of forward and backward, without collectives
    bool has_parts = false;  // backwards in two parts are priced, too
};

// What an instance's unit keeps and does once a step, on one rank.
struct StateCost {
    int64_t bytes = 0, gradient_bytes = 0, full_gradient_bytes = 0;  // between steps; sums, as split; sums that are not split
    int64_t gathered_bytes = 0;
    double gather_s = 0, reduce_micro_s = 0, reduce_s = 0, update_s = 0;
    bool gathered = false;
};
using States = std::vector<StateCost>;  // by position in Whole::blocks

// Seconds of each routine on a rank that has its device to itself.
enum class Collectives { With, Without };
std::vector<double> prices_of(const ir::Program& p, const Problem& problem, Collectives collectives = Collectives::With) {
    ir::Entry all;
    for (size_t i = 0; i < p.routines.size(); ++i) all.calls.emplace_back().routine = static_cast<int>(i);
    const auto profiles =
        sim::profiles_of(p, all, problem.cluster(), problem.machine.rank_threads, {}, [](const ir::Op&) { return 0; });
    std::vector<double> out(p.routines.size(), 0);
    for (size_t i = 0; i < out.size(); ++i) {
        for (const sim::Piece& piece : profiles[i].pieces) {
            const sim::Segment& s = piece.segment;
            if (s.group < 0 || collectives == Collectives::With) out[i] += std::max({s.core_s, s.memory_s, s.link_s});
        }
    }
    return out;
}

// Of a forward its frame; of a backward what it reads of the block's input.
int64_t saved_bytes(const ir::Program& p, const ir::Routine& r) {
    int64_t bytes = 0;
    for (const ir::Tensor& t : r.tensors) {
        if (t.port < 0 || t.view_of >= 0) continue;
        const ir::Port& port = r.ports[static_cast<size_t>(t.port)];
        const bool saved = ir::is_forward(r.kind) ? port.kind == ir::PortKind::Frame : port.role == ir::PortRole::X;
        if (saved) bytes += ir::local_bytes(p.mesh, r, t);
    }
    return bytes;
}

// Adds what the routines of `p` cost to the blocks that they serve.
void add_costs(const std::vector<BlockInstance>& blocks, std::vector<BlockCost>& costs, const ir::Program& p,
               const std::vector<double>& prices, bool in_parts) {
    for (size_t i = 0; i < p.routines.size(); ++i) {
        const ir::Routine& r = p.routines[i];
        if (r.entry != ir::EntryKind::Train || r.block.empty()) continue;
        const double time_s = prices[i] * static_cast<double>(r.chunks);
        for (size_t b = 0; b < blocks.size(); ++b) {
            if (blocks[b].block != r.block || !r.serves(blocks[b].instance)) continue;
            BlockCost& c = costs[b];
            if (in_parts) {
                if (r.kind == ir::RoutineKind::BackwardInput) c.input_s += time_s;
                if (r.kind == ir::RoutineKind::BackwardWeight) c.weight_s += time_s;
                continue;
            }
            if (ir::is_forward(r.kind)) c.forward_s += time_s;
            if (ir::is_backward(r.kind)) c.backward_s += time_s;
            if (r.kind == ir::RoutineKind::Forward || r.kind == ir::RoutineKind::Backward) c.saved_bytes += saved_bytes(p, r);
        }
    }
}

// What a pipeline rank has at a step's fullest moment.
struct Held {
    std::vector<size_t> blocks;  // positions in Whole::blocks
    // When a backward begins: bytes saved, and what the backward of its last layer needs beside them. Of the fullest moment, and
    // of that once each stage of the rank has sums of gradients; -1: never.
    int64_t frames = 0, frames_later = -1;
    std::optional<size_t> layer;  // that the working set of the fullest moment is of: a position in Whole::blocks
    double busy_s = 0;            // of a microbatch
    double end_s = 0;             // of its last backward
    size_t first = 0;             // of its blocks, the one whose gradients come last
};

struct Played {
    std::vector<Held> ranks;
    double step_s = 0;  // of the microbatches that were played
    double more_s = 0;  // of those that were not, at least
    int64_t microbatches = 0;
};

}  // namespace

struct Bounds::Impl {
    const Problem& problem;
    std::map<std::tuple<int64_t, bool, bool, int64_t, RecomputeMode>, Whole> wholes;
    std::map<std::tuple<int64_t, bool, int64_t, int64_t, PartitionPreset>, States> states;
    std::map<std::pair<const Whole*, std::tuple<int64_t, std::string, int64_t>>, passes::Cut> cuts;
    std::pair<Choice, Played> last;  // members of a family are asked for one after the other

    explicit Impl(const Problem& p) : problem(p) {}

    bool bounded() const { return problem.cluster().devices; }

    compile::CompileOptions until(const char* pass) const {
        compile::CompileOptions options = problem.machine.options;
        options.stop_after = pass;
        return options;
    }

    // One data rank and one microbatch, with what decides the routines of blocks.
    ir::Program routines(const Choice& family, bool in_parts) const {
        Choice c = family;
        c.pipeline = in_parts ? 2 : 1, c.data = c.replicate = 1, c.microbatches = in_parts ? 4 : 1;
        c.schedule = in_parts ? "ZB-H1" : "1F1B", c.stages_per_rank = 1, c.partition = PartitionPreset::None;
        const compile::Config config = with(problem.space.base, c, c.microbatch * c.microbatches);
        auto compiled = compile::or_throw(compile::compile(problem.prefix, config, until("select_kernels")));
        return std::move(compiled.programs[0]);
    }

    static bool splits(const Choice& f) { return f.pipeline > 1 && schedules::find_schedule(f.schedule).splits_backward; }

    const Whole& whole(const Choice& f) {
        Whole& w = wholes[std::tuple(f.tensor, f.sequence_parallel, f.async_tensor_parallel, f.microbatch, f.recompute)];
        if (w.blocks.empty()) {
            w.program = routines(f, false);
            w.blocks = w.program.block_instances();
            w.costs.resize(w.blocks.size());
            add(w, w.program, false);
            w.sum.saved_bytes -= std::exchange(w.costs.back().saved_bytes, 0);  // the head's is gone before a layer's backward
            if (bounded()) w.computing_s = computing_s(w);
            if (f.async_tensor_parallel) take_saved(w, plain(f));
        }
        if (splits(f) && bounded() && !w.has_parts) {
            w.has_parts = true;
            add(w, routines(f, true), true);
        }
        return w;
    }

    double computing_s(const Whole& w) const {
        const std::vector<double> prices = prices_of(w.program, problem, Collectives::Without);
        std::vector<BlockCost> costs(w.blocks.size());
        add_costs(w.blocks, costs, w.program, prices, false);
        double sum = 0;
        for (const BlockCost& c : costs) sum += c.forward_s + c.backward_s;
        return sum;
    }

    static Choice plain_of(Choice f) {
        f.async_tensor_parallel = false;
        return f;
    }
    const Whole& plain(const Choice& f) { return whole(plain_of(f)); }

    // Parts of a layer save what the layer saves.
    static void take_saved(Whole& w, const Whole& plain) {
        for (size_t b = 0; b < w.costs.size(); ++b) w.costs[b].saved_bytes = plain.costs[b].saved_bytes;
        w.sum.saved_bytes = plain.sum.saved_bytes;
    }

    // What the routines of `p` cost. Collectives that run beside computation slow it down: a device computes at a part of its
    // rate while something is on a link.
    void add(Whole& w, const ir::Program& p, bool in_parts) const {
        std::vector<double> inline_s = bounded() ? prices_of(p, problem) : std::vector<double>(p.routines.size(), 0);
        std::vector<double> beside_s(p.routines.size(), 0);
        for (size_t i = 0; i < p.routines.size(); ++i) {
            if (is_part_of_others(p, i) && only_communicates(p.routines[i])) beside_s[i] = std::exchange(inline_s[i], 0);
        }
        std::vector<BlockCost> beside(w.blocks.size());
        add_costs(w.blocks, w.costs, p, inline_s, in_parts);
        add_costs(w.blocks, beside, p, beside_s, in_parts);
        const double slowed = 1 - problem.cluster().beside_collective;
        w.sum = {};
        for (size_t b = 0; b < w.costs.size(); ++b) {
            BlockCost& c = w.costs[b];
            if (in_parts) c.busy_in_parts_s = c.busy_s + c.input_s + c.weight_s - c.computed_backward_s;
            else c.busy_s = c.forward_s + c.backward_s, c.computed_backward_s = c.backward_s;
            for (double BlockCost::*part : parts_of(in_parts)) {
                double& computing = w.costs[b].*part;
                computing = std::max(computing + slowed * beside[b].*part, beside[b].*part);
            }
            w.sum += w.costs[b];
        }
    }

    static std::vector<double BlockCost::*> parts_of(bool in_parts) {
        if (in_parts) return {&BlockCost::input_s, &BlockCost::weight_s};
        return {&BlockCost::forward_s, &BlockCost::backward_s};
    }

    static bool is_part_of_others(const ir::Program& p, size_t i) {
        return p.routines[i].part > 0 || (i + 1 < p.routines.size() && p.routines[i + 1].part == 1);
    }
    static bool only_communicates(const ir::Routine& r) {
        return !r.ops.empty() &&
               std::all_of(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return ops::rule(op.kind).collective; });
    }

    const States& states_of(const Choice& m) {
        const auto key = std::tuple(m.tensor, m.sequence_parallel, m.replicate, m.shard(), m.partition);
        const auto [at, is_new] = states.try_emplace(key);
        if (!is_new) return at->second;
        Choice c = m;
        c.pipeline = 1, c.microbatch = c.microbatches = 1, c.recompute = RecomputeMode::Full, c.async_tensor_parallel = false;
        const compile::Config config = with(problem.space.base, c, c.data);
        const auto compiled = compile::or_throw(compile::compile(problem.prefix, config, until("partition_parameters")));
        const ir::Program& p = compiled.programs[0];
        const std::vector<double> prices = bounded() ? prices_of(p, problem) : std::vector<double>(p.routines.size(), 0);
        const std::vector<BlockInstance> blocks = p.block_instances();
        at->second.resize(blocks.size());
        for (size_t b = 0; b < blocks.size(); ++b) at->second[b] = state_of(p, prices, blocks[b].block);
        return at->second;
    }

    static StateCost state_of(const ir::Program& p, const std::vector<double>& prices, const std::string& block) {
        StateCost out;
        for (const ir::Unit& u : p.units) {
            if (u.block != block || u.mirror) continue;
            out.full_gradient_bytes += u.padded * 4;
            if (u.is_gathered()) out.gathered_bytes += u.padded * bytes_of(u.compute);
            out.gathered = out.gathered || u.is_gathered();
            for (const ir::State& s : p.states) {
                if (s.unit != u.name) continue;
                const int64_t bytes = p.elements(s) / p.mesh.size(s.split) * bytes_of(s.dtype);
                if (s.scope == ir::Scope::Run) out.bytes += bytes;
                if (s.role == ir::StateRole::Gradients) out.gradient_bytes += bytes;
            }
            for (size_t i = 0; i < p.routines.size(); ++i) {
                const ir::Routine& r = p.routines[i];
                if (r.unit != u.name || r.entry != ir::EntryKind::Train) continue;
                if (r.kind == ir::RoutineKind::Gather) out.gather_s += prices[i];
                if (r.kind == ir::RoutineKind::ReduceMicro) out.reduce_micro_s += prices[i];
                if (r.kind == ir::RoutineKind::ReduceStep) out.reduce_s += prices[i];
                if (r.kind == ir::RoutineKind::Update) out.update_s += prices[i];
            }
        }
        return out;
    }

    // The inputs of the layers on one pipeline rank, of one microbatch, and the states that all ranks share.
    int64_t least_bytes(const Choice& f) const {
        int64_t hidden = 1;
        for (const ir::Dim& d : problem.space.dims) {
            if (d.role == ir::DimRole::Hidden) hidden = d.size;
        }
        const compile::Config& c = problem.space.base;
        const int64_t layers = (c.model.size("n_layers") + f.pipeline - 1) / f.pipeline;
        const int64_t of_value = c.training.mixed_precision_param ? bytes_of(*c.training.mixed_precision_param) : 4;
        return layers * f.microbatch * c.training.seq_len * hidden * std::min<int64_t>(of_value, bytes_of(c.training.dtype)) /
               (f.sequence_parallel ? f.tensor : 1);
    }

    compile::StagePlan plan_of(const Choice& f, int64_t microbatches) {
        Choice c = f;
        c.microbatches = microbatches;
        const compile::Config config = with(problem.space.base, c, microbatches * c.microbatch * c.data);
        const compile::Layout layout = compile::or_throw(compile::layout_of(config, problem.space.dims));
        return compile::or_throw(compile::plan_stages(config, layout, problem.prefix.program.blocks));
    }

    const passes::Cut& cut_of(const Choice& f, const Whole& w) {
        const auto key = std::pair(&w, std::tuple(f.pipeline, f.schedule, f.stages_per_rank));
        const auto [at, is_new] = cuts.try_emplace(key);
        if (is_new) at->second = compile::stages_of(plan_of(f, std::min(f.microbatches, f.pipeline)), w.program).cut;
        return at->second;
    }

    // How many microbatches of the family are played: those that the plan has, or enough to fill the pipeline.
    int64_t played(const Choice& f) const {
        const compile::Config config = problem.config(f);
        const compile::Layout layout = compile::or_throw(compile::layout_of(config, problem.space.dims));
        const int64_t few = compile::representative_microbatches(config, layout);
        if (f.stages_per_rank == 1 || f.microbatches % f.pipeline != 0) return few;
        return std::min(few, kRounds * f.pipeline);
    }

    const Played& play(const Choice& member) {
        Choice f = member;
        f.replicate = 1, f.partition = PartitionPreset::None, f.prefetch = 1;
        if (last.first == f && !last.second.ranks.empty()) return last.second;
        const Whole& w = whole(f);
        last = {f, f.pipeline == 1 ? one_rank(f, w) : play_table(f, w)};
        return last.second;
    }

    Played one_rank(const Choice& f, const Whole& w) const {
        Played out;
        Held& h = out.ranks.emplace_back();
        for (size_t b = 0; b < w.blocks.size(); ++b) h.blocks.push_back(b);
        out.microbatches = played(f);
        h.busy_s = w.sum.busy_s;
        h.end_s = out.step_s = (w.sum.forward_s + w.sum.backward_s) * static_cast<double>(out.microbatches);
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
        std::vector<BlockCost> stages;
        std::vector<std::vector<size_t>> blocks;
        size_t at = 0;
        for (const std::vector<BlockInstance>& stage : cut.stages) {
            stages.emplace_back(), blocks.emplace_back();
            for (size_t i = 0; i < stage.size(); ++i, ++at) stages.back() += w.costs[at], blocks.back().push_back(at);
        }
        Played out;
        out.microbatches = played(f);
        const schedules::Table table = schedules::make_schedule(f.schedule, {f.pipeline, f.stages_per_rank, out.microbatches});
        const auto cost = [&](const Action& a) {
            return a.work == Work::Idle ? 0.0 : stages[static_cast<size_t>(a.stage)].of(a.work);
        };
        const schedules::Timeline timeline = schedules::play(table, cost);
        double most = 0, least = std::numeric_limits<double>::infinity();
        for (size_t r = 0; r < table.rows.size(); ++r) {
            Held& h = out.ranks.emplace_back(held(table.rows[r], stages));
            for (size_t i = 0; i < table.rows[r].size(); ++i) {
                const Action& a = table.rows[r][i];
                if (schedules::is_backward(a.work) || schedules::is_release(a.work))
                    h.end_s = std::max(h.end_s, timeline.start[r][i] + cost(a));
            }
            for (size_t s = 0; s < stages.size(); ++s) {
                if (cut.rank_of[s] != static_cast<int64_t>(r)) continue;
                if (h.blocks.empty()) h.first = blocks[s].front();
                // Of stages with and without layers, or of different ones, the smallest working set counts: the last block's is
                // like that of any other layer.
                if (const auto layer = last_layer(w, blocks[s]); !layer || h.blocks.empty()) h.layer = layer;
                h.blocks.insert(h.blocks.end(), blocks[s].begin(), blocks[s].end());
            }
            for (const size_t b : h.blocks)
                h.busy_s += splits(f) ? std::min(w.costs[b].busy_s, w.costs[b].busy_in_parts_s) : w.costs[b].busy_s;
            if (!follows_table(f)) h.end_s = timeline.busy[r];
            out.step_s = std::max(out.step_s, h.end_s);
            most = std::max(most, h.busy_s), least = std::min(least, h.busy_s);
        }
        const auto more = static_cast<double>(f.microbatches - out.microbatches);
        // Of one stage a rank the plan itself leaves microbatches out, and says that each takes as long as on the busiest rank.
        if (f.stages_per_rank == 1) out.more_s = more * most;
        else out.more_s = std::max(more * least, static_cast<double>(f.microbatches) * most - out.step_s);
        return out;
    }

    // The last block of a stage of which the model has several; none: it has no such block.
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
        Choice none = plain_of(m);
        none.recompute = RecomputeMode::None;
        const int64_t all = whole(none).costs[block].saved_bytes;
        return std::max<int64_t>(all - plain(m).costs[block].saved_bytes, 0);
    }

    int64_t bytes(const Choice& m) {
        const Played& played = play(m);
        const States& states = states_of(m);
        int64_t most = 0;
        // A stage keeps what it gathered from its first microbatch to its last.
        const bool keeps_gathered = m.pipeline > 1 && m.stages_per_rank == 1 && m.partition == PartitionPreset::Zero3;
        for (const Held& h : played.ranks) {
            int64_t resident = 0, gradients = 0;
            for (const size_t b : h.blocks) {
                resident += states[b].bytes + (keeps_gathered ? states[b].gathered_bytes : 0);
                gradients += m.pipeline > 1 ? states[b].full_gradient_bytes : states[b].gradient_bytes;
            }
            int64_t again = 0, of_layer = 0;
            if (h.layer) {
                const StateCost& layer = states[*h.layer];
                again = again_bytes(m, *h.layer) + (keeps_gathered ? 0 : layer.gathered_bytes);
                of_layer = layer.full_gradient_bytes;
            }
            const int64_t first = h.frames + of_layer, later = h.frames_later < 0 ? 0 : h.frames_later + gradients;
            most = std::max(most, resident + again + std::max(first, later));
        }
        return most;
    }

    // With what no op accounts for; `more_s`: of microbatches that were not played.
    double of_step(double played_s, int64_t ranks, double more_s) const {
        return sim::with_host(played_s, problem.cluster(), ranks) + problem.cluster().measured.multiplier * more_s;
    }

    TimeBound of_member(const Choice& m) {
        const Played& p = play(m);
        const States& states = states_of(m);
        const bool last_is_first_block = m.stages_per_rank == 1 && !splits(m);
        double update_s = 0, first_gather_s = 0, end_s = p.step_s, beside_s = 0;
        for (const Held& h : p.ranks) {
            double update = 0, gather = 0, reduce = 0;
            for (const size_t b : h.blocks) {
                const StateCost& s = states[b];
                update += s.update_s, reduce += s.reduce_s;
                if (s.gathered) gather += s.gather_s;
                if (m.pipeline == 1) reduce += s.reduce_micro_s * static_cast<double>(p.microbatches);
            }
            const double gathers =
                m.pipeline == 1 && m.partition == PartitionPreset::Zero3 ? static_cast<double>(p.microbatches) : 1;
            update_s = std::max(update_s, update);
            beside_s = std::max(beside_s, gathers * gather + reduce);
            end_s = std::max(end_s, h.end_s + (last_is_first_block ? states[h.first].reduce_s : 0));
        }
        if (const StateCost& s = states[p.ranks.front().first]; s.gathered) first_gather_s = s.gather_s;
        const bool has_stream = problem.machine.rank_threads.comm_thread;
        const double step_s = std::max(end_s + first_gather_s, has_stream ? beside_s : 0) + update_s;
        return {kMemberSlack * of_step(step_s, m.ranks(), p.more_s), Limit::Communication};
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
    const Whole& w = impl_->plain(f);
    const BlockCost& c = w.sum;
    const bool splits = Impl::splits(f);
    const double both_s = c.forward_s + (splits ? std::min(c.backward_s, c.input_s + c.weight_s) : c.backward_s);
    const double mean_s = (f.async_tensor_parallel ? w.computing_s : both_s) / static_cast<double>(f.pipeline);
    return {kSlack * impl_->of_step(0, f.ranks(), mean_s * static_cast<double>(f.microbatches)), Limit::Computation};
}

TimeBound Bounds::of_family(const Choice& f) {
    if (!impl_->bounded()) return {};
    const Played& p = impl_->play(f);
    return {kSlack * impl_->of_step(p.step_s, f.ranks(), p.more_s), Limit::Pipeline};
}

TimeBound Bounds::of_member(const Choice& m) { return impl_->bounded() ? impl_->of_member(m) : TimeBound{}; }

int64_t Bounds::least_bytes(const Choice& family) const { return impl_->least_bytes(family); }

int64_t Bounds::bytes(const Choice& member) { return impl_->bytes(member); }

}  // namespace lockstep::tune
