#include "tune/costs.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "mesh/ring.h"
#include "passes/overlap.h"
#include "passes/parts.h"
#include "passes/plan_memory.h"
#include "planning/plan.h"
#include "schedules/schedules.h"
#include "sim/profile.h"
#include "sim/simulate.h"

namespace lockstep::tune {

using compile::PartitionPreset;
using compile::RecomputeMode;
using ir::BlockInstance;
using schedules::Work;

double BlockCost::of(Work work) const {
    switch (work) {
        case Work::Forward: return forward_s;
        case Work::Backward: return backward_s;
        case Work::BackwardInput: return input_s;
        case Work::BackwardWeight: return weight_s;
        case Work::Idle: return 0;
    }
    return 0;
}

BlockCost& BlockCost::operator+=(const BlockCost& o) {
    forward_s += o.forward_s, backward_s += o.backward_s, input_s += o.input_s, weight_s += o.weight_s;
    saved_bytes += o.saved_bytes;
    return *this;
}

void BlockCost::raise_to(const BlockCost& o) {
    for (double BlockCost::*const time :
         {&BlockCost::forward_s, &BlockCost::backward_s, &BlockCost::input_s, &BlockCost::weight_s})
        this->*time = std::max(this->*time, o.*time);
}

namespace {

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

StateCost state_of(const ir::Program& p, const std::vector<double>& prices, const std::string& block,
                   compile::ComputesIn memory) {
    StateCost out;
    for (const ir::Unit& u : p.units) {
        if (u.block != block || u.mirror) continue;
        out.full_gradient_bytes += u.padded * 4;
        if (u.is_gathered()) out.gathered_bytes += u.padded * bytes_of(u.compute);
        out.gathered = out.gathered || u.is_gathered();
        for (const ir::State& s : p.states) {
            if (s.unit != u.name) continue;
            const int64_t bytes = p.elements(s) / p.mesh.size(s.split) * bytes_of(s.dtype);
            const bool is_beside = memory == compile::ComputesIn::DeviceMemory && s.role == ir::StateRole::Copy;
            if (s.scope == ir::Scope::Run && !is_beside) out.bytes += bytes;
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

// A part of a backward that computes again, and may do so before the gradient of the block's result has arrived: neither it nor
// a part before it reads that.
bool may_run_ahead(const ir::Program& p, size_t i) {
    const ir::RoutineKind kind = p.routines[i].kind;
    if ((kind != ir::RoutineKind::Backward && kind != ir::RoutineKind::BackwardInput) || !passes::is_a_part(p, i)) return false;
    for (size_t k = i; p.routines[k].port(ir::PortRole::DY) < 0; --k) {
        if (p.routines[k].part == 0) return true;
    }
    return false;
}

// What the computing thread is in: calls of one work of one microbatch, and of one block instance.
Work work_of(ir::RoutineKind kind) {
    if (ir::is_forward(kind)) return Work::Forward;
    switch (kind) {
        case ir::RoutineKind::Backward: return Work::Backward;
        case ir::RoutineKind::BackwardInput: return Work::BackwardInput;
        case ir::RoutineKind::BackwardWeight: return Work::BackwardWeight;
        default: return Work::Idle;
    }
}

double& time_of(BlockCost& cost, Work work) {
    switch (work) {
        case Work::Backward: return cost.backward_s;
        case Work::BackwardInput: return cost.input_s;
        case Work::BackwardWeight: return cost.weight_s;
        default: return cost.forward_s;
    }
}

// By block and work.
using Seconds = std::map<std::pair<std::string, Work>, double>;

// How long the shortest instance of each block takes: once the one before it has ended, or what it needs has been received.
class Shortest {
public:
    Shortest(Seconds& out, const ir::Program& p) : out_(out), p_(p) {}

    void read(const ir::Entry& entry, const std::vector<double>& ends_s) {
        for (size_t i = 0; i < entry.calls.size(); ++i) {
            const ir::Call& call = entry.calls[i];
            if (is_receive(call)) arrived_s_ = ends_s[i];
            if (call.queue != QueueName::Compute) continue;
            const Work work = work_of(routine(call).kind);
            const bool same_work = before_ && work != Work::Idle && work == work_of(routine(*before_).kind) &&
                                   call.microbatch == before_->microbatch;
            if (!same_work || call.instance != before_->instance || routine(call).block != routine(*before_).block) {
                close();
                first_ = work == Work::Idle ? nullptr : &call;
                begin_s_ = same_work ? end_s_ : std::max(end_s_, arrived_s_);
            }
            before_ = &call, end_s_ = ends_s[i];
        }
        close();
    }

private:
    const ir::Routine& routine(const ir::Call& call) const { return p_.routines[static_cast<size_t>(call.routine)]; }
    bool is_receive(const ir::Call& call) const {
        const ir::Routine& r = routine(call);
        return r.kind == ir::RoutineKind::Transfer && ir::collective_of(r.ops.front()) == mesh::Collective::Recv;
    }
    // The instance at hand has ended with the call before.
    void close() {
        if (!first_) return;
        const auto [at, is_new] = out_.try_emplace({routine(*first_).block, work_of(routine(*first_).kind)}, end_s_ - begin_s_);
        at->second = std::min(at->second, end_s_ - begin_s_);
    }

    Seconds& out_;
    const ir::Program& p_;
    const ir::Call *before_ = nullptr, *first_ = nullptr;  // the last call; the first of the instance at hand
    double end_s_ = 0, begin_s_ = 0, arrived_s_ = 0;       // of the last call; of the instance; of the last receive
};

}  // namespace

bool Costs::splits(const Choice& f) { return f.pipeline() > 1 && schedules::find_schedule(f.schedule).splits_backward; }

Choice Costs::plain_of(Choice f) {
    f.async_tensor_parallel = false;
    return f;
}

const Whole& Costs::plain(const Choice& f) { return whole(plain_of(f)); }

compile::CompileOptions Costs::until(const char* pass) const {
    compile::CompileOptions options = problem_.machine.options;
    options.stop_after = pass;
    return options;
}

namespace {

// With their scratch planned: an op that only renames bytes takes no time.
ir::Program routines_of(compile::OrRefusal<compile::Compiled> compiled) {
    return passes::plan_memory(std::move(compile::or_throw(std::move(compiled)).programs[0]));
}

// One data rank and few microbatches, with what decides the routines of blocks.
Choice reduced(Choice c, int64_t pipeline, bool in_parts) {
    c.degrees = c.of_blocks();
    c.degree(mesh::Axis::pp) = pipeline, c.microbatches = pipeline == 1 ? 1 : 4;
    c.schedule = in_parts ? "ZB-H1" : "1F1B", c.stages_per_rank = 1, c.partition = PartitionPreset::None, c.prefetch = 1;
    return c;
}

}  // namespace

ir::Program Costs::routines(const Choice& family, bool in_parts) const {
    const Choice c = reduced(family, in_parts ? 2 : 1, in_parts);
    const compile::Config config = with(problem_.space.base, c, c.microbatch * c.microbatches);
    return routines_of(problem_.compiled(config, until("select_kernels")));
}

const Whole& Costs::whole(const Choice& f) {
    Whole& w = wholes_[std::tuple(f.of_blocks(), f.sequence_parallel, f.async_tensor_parallel, f.rotate_method, f.head_degree,
                                  f.microbatch, f.recompute)];
    const bool is_new = w.blocks.empty();
    if (is_new) {
        w.program = routines(f, false);
        w.blocks = w.program.block_instances();
        w.costs.resize(w.blocks.size()), w.busy.resize(w.blocks.size());
        add(w, w.program, false);
        if (f.async_tensor_parallel) measure(w, f, false);
        if (are_priced()) w.computing_s = computing_s(w);
        w.costs.back().saved_bytes = 0;  // the head's is gone before a layer's backward
        if (f.async_tensor_parallel) {   // parts of a layer save what the layer saves
            const Whole& plain = this->plain(f);
            for (size_t b = 0; b < w.costs.size(); ++b) w.costs[b].saved_bytes = plain.costs[b].saved_bytes;
        }
    }
    if (splits(f) && are_priced() && !w.has_parts) {
        w.has_parts = true;
        add(w, routines(f, true), true);
        if (f.async_tensor_parallel) measure(w, f, true);
    } else if (!is_new) {
        return w;
    }
    w.sum = w.sum_busy = {};
    for (size_t b = 0; b < w.blocks.size(); ++b) {
        w.busy[b].raise_to(w.costs[b]);
        w.sum += w.costs[b], w.sum_busy += w.busy[b];
    }
    return w;
}

double Costs::computing_s(const Whole& w) const {
    std::vector<BlockCost> costs(w.blocks.size());
    add_costs(w.blocks, costs, w.program, prices_of(w.program, problem_, Collectives::Without), false);
    double sum = 0;
    for (const BlockCost& c : costs) sum += c.whole_s();
    return sum;
}

// What the routines of `p` cost. What overlaps with computation is not counted.
void Costs::add(Whole& w, const ir::Program& p, bool in_parts) const {
    std::vector<double> prices = are_priced() ? prices_of(p, problem_) : std::vector<double>(p.routines.size(), 0);
    const std::vector<QueueName> queues = passes::queues_of(p);
    for (size_t i = 0; i < p.routines.size(); ++i) {
        if (queues[i] == QueueName::Tensor) prices[i] = 0;
    }
    add_costs(w.blocks, w.busy, p, prices, in_parts);
    for (size_t i = 0; i < p.routines.size(); ++i) {
        if (may_run_ahead(p, i)) prices[i] = 0;
    }
    add_costs(w.blocks, w.costs, p, prices, in_parts);
}

// Collectives that overlap with computation slow it down, and some of their time stays exposed: a step of few layers is played.
void Costs::measure(Whole& w, const Choice& family, bool in_parts) {
    constexpr int64_t kLayers = 8;
    if (!are_priced()) return;
    const Choice c = reduced(family, 2, in_parts);
    compile::Config few = problem_.space.base;
    if (few.model.size("n_layers") > kLayers) few.model.shape["n_layers"] = kLayers;
    const compile::Config config = with(few, c, c.microbatch * c.microbatches);
    if (!few_layers_) few_layers_.emplace(config, problem_.machine.options);
    const auto result = compile::compile(few_layers_->of(config), config, until("plan_memory"));
    if (compile::refusal_of(result)) return;  // too few layers for two ranks
    const std::vector<ir::Program>& programs = std::get<compile::Compiled>(result).programs;
    sim::Cluster cluster = problem_.cluster();
    if (planning::may_run_as_graph(config, cluster)) cluster.host.launch_s = 0;
    const auto ends_s = sim::ends_of_calls(programs, ir::EntryKind::Train, cluster, problem_.machine.rank_threads);
    Seconds shortest;
    for (size_t rank = 0; rank < programs.size(); ++rank)
        Shortest(shortest, programs[rank]).read(*programs[rank].entry(ir::EntryKind::Train), ends_s[rank]);
    for (const auto& [of, time_s] : shortest) {
        const auto& [block, work] = of;
        const bool is_part = work == Work::BackwardInput || work == Work::BackwardWeight;
        if (w.program.block(block)->count == 1 || (in_parts && !is_part)) continue;
        for (size_t b = 0; b < w.blocks.size(); ++b) {
            if (w.blocks[b].block == block) tune::time_of(w.costs[b], work) = std::max(tune::time_of(w.costs[b], work), time_s);
        }
    }
}

double Costs::transfer_s(const Whole& whole, const BlockInstance& behind, const Choice& f, int64_t from, int64_t to) const {
    const sim::Cluster& cluster = problem_.cluster();
    if (from == to || !cluster.devices || cluster.stack.split_sends) return 0;
    const ir::PortRole role = from < to ? ir::PortRole::Y : ir::PortRole::DY;
    double bytes = 0;
    for (const ir::Routine& r : whole.program.routines) {
        if (r.entry != ir::EntryKind::Train || r.block != behind.block || !r.serves(behind.instance) || r.port(role) < 0)
            continue;
        bytes = static_cast<double>(ir::local_bytes(whole.program.mesh, r, r.tensors[r.port_tensors(r.port(role)).at(0)]));
    }
    mesh::RingTraffic traffic;
    traffic.add(mesh::Collective::Recv, 2, bytes);
    const int64_t of_stage = f.ranks() / f.pipeline();
    const sim::GroupLink link =
        sim::link_of(cluster, {std::min(from, to) * of_stage, std::max(from, to) * of_stage}, f.ranks(), true);
    return sim::collective_s(cluster, link, mesh::Collective::Recv, 2, traffic);
}

const States& Costs::states_of(const Choice& m) {
    const auto key = std::tuple(m.of_states(), m.sequence_parallel, m.partition);
    const auto [at, is_new] = states_.try_emplace(key);
    if (!is_new) return at->second;
    Choice c = m;
    c.degrees = c.of_states(), c.microbatch = c.microbatches = 1, c.recompute = RecomputeMode::Full,
    c.async_tensor_parallel = false;
    const compile::Config config = with(problem_.space.base, c, c.data());
    const ir::Program p = routines_of(problem_.compiled(config, until("partition_parameters")));
    const std::vector<double> prices = are_priced() ? prices_of(p, problem_) : std::vector<double>(p.routines.size(), 0);
    const std::vector<BlockInstance> blocks = p.block_instances();
    at->second.resize(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b)
        at->second[b] = state_of(p, prices, blocks[b].block, problem_.machine.options.memory);
    return at->second;
}

}  // namespace lockstep::tune
