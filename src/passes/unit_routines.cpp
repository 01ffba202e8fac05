#include "passes/unit_routines.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <numeric>

#include "base/error.h"
#include "ops/builder.h"
#include "passes/collective_op.h"
#include "passes/flat_ops.h"
#include "passes/mean_of_islands.h"
#include "passes/orthogonal_update.h"
#include "passes/parameter_places.h"
#include "passes/quantized_transport.h"
#include "passes/weights_amax.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::AxisList;
using ir::PortKind;
using ir::Routine;
using ir::StateRole;
using ir::TensorId;
using ops::Builder;

// Gaps between members and behind them, as [begin, end) pairs.
std::vector<int64_t> padding_of(const ir::Segment& s) {
    std::vector<int64_t> out;
    int64_t at = 0;
    for (const ir::Member& m : s.members) {
        if (m.begin > at) out.insert(out.end(), {at, m.begin});
        at = m.begin + m.count;
    }
    if (s.padded > at) out.insert(out.end(), {at, s.padded});
    return out;
}

// Writes the routines of one unit.
class UnitRoutines {
public:
    UnitRoutines(const ir::Program& program, const ir::Unit& unit, const PartitionOptions& options)
        : program_(program),
          mesh_(program.mesh),
          unit_(unit),
          options_(options),
          mirrored_(mirrored(program, unit)),
          amax_(program, unit) {}

    std::vector<Routine> reading() {
        std::vector<Routine> out;
        if (unit_.is_fetched() || amax_.is_needed()) out.push_back(fetch());
        if (unit_.is_gathered()) {
            out.push_back(gather());
            out.push_back(free());
        }
        return out;
    }

    std::vector<Routine> training() {
        std::vector<Routine> out;
        if (!unit_.gradients.empty()) out.push_back(reduce_micro());
        out.push_back(reduce_step());
        for (const auto& [peer, segments] : mirrored_) {
            out.push_back(exchange(unit_.mirror ? Exchange::SendGradients : Exchange::AddGradients, peer, segments));
            out.push_back(exchange(unit_.mirror ? Exchange::ReceiveWeights : Exchange::SendWeights, peer, segments));
            if (!options_.outer) continue;
            Routine again = out.back();
            again.name = "outer." + again.name, again.entry = ir::EntryKind::Outer;
            out.push_back(std::move(again));
        }
        if (unit_.mirror) return out;
        out.push_back(stats());
        out.push_back(update());
        if (options_.outer) out.push_back(outer());
        if (program_.state(StateRole::Copy, unit_.name) >= 0) out.push_back(snapshot());
        return out;
    }

private:
    Routine start(const char* verb, ir::RoutineKind kind) const {
        Routine r;
        r.name = fmt::format("{}.{}", verb, unit_.name);
        r.kind = kind;
        r.unit = unit_.name;
        for (size_t i = 0; i < unit_.segments.size(); ++i) {
            const int64_t n = unit_.segments[i].padded;
            r.dims.push_back({fmt::format("flat{}", i), n, n, ir::DimRole::Flat});
        }
        return r;
    }

    std::vector<size_t> all_segments() const {
        std::vector<size_t> all(unit_.segments.size());
        std::iota(all.begin(), all.end(), 0);
        return all;
    }

    ir::StateId id_of(StateRole role) const { return program_.state(role, unit_.name); }
    const ir::State& state(ir::StateId id) const { return program_.states[static_cast<size_t>(id)]; }

    // One tensor a segment that the state covers, in a port of the state.
    std::vector<TensorId> flat(Routine& r, ir::StateId id, Access access) const {
        return flat(r, id, access, segments_of(state(id)));
    }
    std::vector<TensorId> flat(Routine& r, StateRole role, Access access) const { return flat(r, id_of(role), access); }
    std::vector<TensorId> flat(Routine& r, ir::StateId id, Access access, const std::vector<size_t>& segments) const {
        return flat(r, program_.port(id, access), state(id).split, state(id).dtype, segments,
                    [&](size_t i) { return program_.begin_in(state(id), static_cast<int>(i)); });
    }
    // Whole, in a port of the unit's parameters or gradients.
    std::vector<TensorId> flat(Routine& r, const char* name, PortKind kind, Access access, Dtype dtype) const {
        ir::Port port{name, kind, access};
        port.unit = unit_.name;
        return flat(r, std::move(port), {}, dtype, all_segments(), [&](size_t i) { return unit_.segments[i].begin; });
    }
    template <class BeginOf>
    std::vector<TensorId> flat(Routine& r, ir::Port port, const AxisList& axes, Dtype dtype, const std::vector<size_t>& segments,
                               const BeginOf& begin_of) const {
        const auto at = static_cast<int>(r.ports.size());
        const std::string name = port.name;
        r.ports.push_back(std::move(port));
        std::vector<TensorId> out;
        for (size_t i : segments) {
            out.push_back(Builder(r).make({fmt::format("{}{}", name, i), {static_cast<int>(i)}, dtype}));
            ir::Tensor& t = r.tensors[out.back()];
            t.port = at;
            t.placement = {{axes}, {}, ir::Reduce::Sum};
            t.offset_bytes = begin_of(i) / mesh_.size(axes) * bytes_of(dtype);
        }
        return out;
    }
    std::vector<TensorId> temporaries(Routine& r, const char* name, const AxisList& axes, Dtype dtype) const {
        Builder b(r);
        std::vector<TensorId> out;
        for (size_t i = 0; i < unit_.segments.size(); ++i) {
            out.push_back(b.make({fmt::format("{}{}", name, i), {static_cast<int>(i)}, dtype}));
            r.tensors[out.back()].placement = {{axes}, {}, ir::Reduce::Sum};
        }
        return out;
    }

    // Segments of shared parameters, by the pipeline rank that mirrors them; on a mirror, by their owner.
    using Mirrored = std::map<int64_t, std::vector<size_t>>;
    static Mirrored mirrored(const ir::Program& program, const ir::Unit& unit) {
        Mirrored out;
        for (size_t i = 0; i < unit.segments.size(); ++i) {
            const std::vector<int64_t>& holders = program.param(unit.segments[i].members[0].param)->holders;
            for (size_t k = 0; k < holders.size(); ++k) {
                if (unit.mirror ? k == 0 : k > 0) out[holders[k]].push_back(i);
            }
        }
        return out;
    }

    // Between owner and mirror, from or to the rank of the same coordinates: gradients that the mirror sends and the owner adds
    // to its own, weights that the owner sends and the mirror receives.
    enum class Exchange { SendGradients, AddGradients, SendWeights, ReceiveWeights };

    Routine exchange(Exchange what, int64_t peer, const std::vector<size_t>& segments) const {
        constexpr std::array<const char*, 4> names = {"mirror.send_gradients", "mirror.add_gradients", "mirror.send_weights",
                                                      "mirror.receive_weights"};
        constexpr std::array<Access, 4> accesses = {Access::Read, Access::Accumulate, Access::Read, Access::Write};
        const bool weights = what == Exchange::SendWeights || what == Exchange::ReceiveWeights;
        Routine r = start(names[static_cast<size_t>(what)], ir::RoutineKind::Transfer);
        r.name += fmt::format(".{}", peer);
        const auto here = flat(r, weights ? id_of(StateRole::Weights) : reduced(), accesses[static_cast<size_t>(what)], segments);
        const bool gives = accesses[static_cast<size_t>(what)] == Access::Read, adds = what == Exchange::AddGradients;
        for (const TensorId t : here) {
            const TensorId taken = adds ? like(r, t, r.tensors[t].name + ".mirrored") : t;
            r.ops.push_back(ir::point_to_point(mesh_, gives ? mesh::Collective::Send : mesh::Collective::Recv, taken, peer));
            r.ops.back().note = "a parameter that blocks on two pipeline ranks read";
            if (adds) Builder(r).accumulate(t, taken);
        }
        for (const TensorId t : here) {
            if (gives) r.ops.push_back(ir::point_to_point(mesh_, mesh::Collective::Wait, t, peer));
        }
        return r;
    }
    // Padding of gradients is garbage of the arena until it is cleared here.
    void clear_padding(Routine& r, const std::vector<TensorId>& flat) const {
        for (size_t i = 0; i < unit_.segments.size(); ++i) {
            std::vector<int64_t> ranges = padding_of(unit_.segments[i]);
            if (ranges.empty()) continue;
            ir::Op op;
            op.kind = "zero_padding";
            op.in = op.out = {flat[i]};
            op.attrs["ranges"] = std::move(ranges);
            r.ops.push_back(std::move(op));
        }
    }

    Routine fetch() const {
        Routine r = start("fetch", ir::RoutineKind::Fetch);
        const AxisList over(unit_.weights.begin() + static_cast<long>(unit_.secondary.size()), unit_.weights.end());
        const auto weights = flat(r, StateRole::Weights, Access::Read);
        if (amax_.is_needed()) amax_.find(r, weights);
        if (unit_.is_fetched())
            gather_from(r, weights, flat(r, StateRole::Secondary, Access::Write), over, "a copy for the whole entry");
        return r;
    }

    Routine gather() const {
        Routine r = start("gather", ir::RoutineKind::Gather);
        const auto weights = flat(r, unit_.is_fetched() ? StateRole::Secondary : StateRole::Weights, Access::Read);
        const auto full = flat(r, "full", PortKind::Params, Access::Write, unit_.compute);
        gather_from(r, weights, full, unit_.secondary, "one launch for all segments");
        return r;
    }

    // to = all_gather(from) over these axes, in the type of `to`. A copy holds what was quantized when it was fetched.
    void gather_from(Routine& r, std::vector<TensorId> from, const std::vector<TensorId>& to, const AxisList& over,
                     const char* note) const {
        const bool quantizes = unit_.quantized_weights != 0 && !(unit_.is_fetched() && r.kind == ir::RoutineKind::Gather);
        if (r.tensors[from[0]].dtype != unit_.compute) {
            const bool done = over.empty() && !quantizes;
            const auto narrow = done ? to : temporaries(r, "narrow", r.tensors[from[0]].placement.dims[0], unit_.compute);
            if (is_float8(unit_.compute)) amax_.cast(r, from, narrow);
            else cast(r, from, narrow, "forward and backward read a narrower type than is kept");
            from = narrow;
        }
        if (quantizes) gather_quantized(r, unit_, from, to, over);
        else if (!over.empty()) r.ops.push_back(collective("all_gather", from, to, over, note));
    }

    Routine free() const {
        Routine r = start("free", ir::RoutineKind::Free);
        flat(r, "full", PortKind::Params, Access::Update, unit_.compute);
        return r;
    }

    Routine reduce_micro() const {
        Routine r = start("reduce_micro", ir::RoutineKind::ReduceMicro);
        const auto local = flat(r, "local", PortKind::Gradients, Access::Update, sums());
        const auto shard = flat(r, StateRole::Gradients, Access::Accumulate);
        clear_padding(r, local);
        const char* note = "gradients are sharded, so they are reduced after each microbatch";
        const bool quantized = unit_.quantized_gradients != 0;
        const bool narrow = unit_.reduce != sums();
        if (!quantized && !narrow && options_.reduces_into) {
            reduce_scatter(r, local, shard, unit_.gradients, note);
            for (size_t i = 0; i < shard.size(); ++i) r.ops.back().accumulate.push_back(static_cast<int>(i));
            return r;
        }
        const auto reduced = narrow && !quantized ? reduce_scatter_narrow(r, local, unit_.gradients, unit_.reduce, note)
                                                  : temporaries(r, "reduced", unit_.gradients, sums());
        if (quantized) reduce_quantized(r, program_, unit_, options_.round_at_random, local, reduced, unit_.gradients);
        else if (!narrow) reduce_scatter(r, local, reduced, unit_.gradients, note);
        for (size_t i = 0; i < shard.size(); ++i) Builder(r).accumulate(shard[i], reduced[i]);
        return r;
    }

    Routine reduce_step() const {
        Routine r = start("reduce_step", ir::RoutineKind::ReduceStep);
        const bool narrow = unit_.reduce != sums();
        bool arrives_narrow = false;
        auto now = flat(r, StateRole::Gradients, Access::Update);
        if (unit_.gradients.empty()) clear_padding(r, now);
        const AxisList rest(unit_.optimizer.begin() + static_cast<long>(unit_.gradients.size()), unit_.optimizer.end());
        auto carried = now;  // what the collectives work on: `now`, or a narrower copy of it
        const bool quantized = unit_.quantized_gradients != 0;
        const AxisList replicas = quantized ? replicas_of(mesh_, unit_, unit_.segments[0]) : AxisList{};
        if (!rest.empty() || !replicas.empty()) {
            const char* note = "down to the optimizer's shards";
            if (!rest.empty()) now = flat(r, StateRole::Reduced, Access::Write);
            arrives_narrow = narrow && !quantized;
            if (quantized) all_reduce_quantized(r, program_, unit_, options_.round_at_random, carried, now, rest, replicas);
            else if (narrow) carried = reduce_scatter_narrow(r, carried, rest, unit_.reduce, note);
            else reduce_scatter(r, carried, now, rest, note);
            if (!arrives_narrow) carried = now;
        }
        if (narrow && !arrives_narrow) carried = temporaries(r, "partial", unit_.optimizer, unit_.reduce);
        const auto combined = narrow ? temporaries(r, "combined", unit_.optimizer, unit_.reduce) : now;
        // Segments that are partial over the same axes share a launch.
        std::map<AxisList, std::vector<size_t>> by_axes;
        for (size_t i = 0; i < unit_.segments.size(); ++i)
            by_axes[mesh::subtract(unit_.segments[i].grad_partial, mesh::unite(unit_.optimizer, replicas))].push_back(i);
        for (const auto& [axes, segments] : by_axes) {
            std::vector<TensorId> sums, members, reduced;
            for (size_t i : segments) sums.push_back(now[i]), members.push_back(carried[i]), reduced.push_back(combined[i]);
            if (narrow && !arrives_narrow && !axes.empty()) cast(r, sums, members, "gradients cross ranks in this type");
            if (!axes.empty())
                r.ops.push_back(collective("all_reduce", members, reduced, axes, "sums that are still partial, on shards only"));
            if (narrow && (arrives_narrow || !axes.empty()))
                cast(r, axes.empty() ? members : reduced, sums, "the norm and the update read this type");
        }
        return r;
    }

    // Reduced gradients: the optimizer's shard.
    ir::StateId reduced() const {
        return id_of(unit_.optimizer.size() > unit_.gradients.size() ? StateRole::Reduced : StateRole::Gradients);
    }
    Dtype sums() const { return state(id_of(StateRole::Gradients)).dtype; }

    Routine stats() const {
        Routine r = start("stats", ir::RoutineKind::Stats);
        const auto grads = flat(r, reduced(), Access::Read);
        Builder b(r);
        const TensorId norm2 = b.port(program_, program_.state(StateRole::SquaredNorm), Access::Accumulate);
        r.tensors[norm2].placement.partial = mesh_.world();
        for (size_t i = 0; i < unit_.segments.size(); ++i) {
            const AxisList counted = same_along(mesh_, unit_, unit_.segments[i]);
            const TensorId squares = b.op("sum_squares", {grads[i]}, {{"squares", {}, Dtype::F64}},
                                          {{"count_if", std::vector<int64_t>(counted.begin(), counted.end())}})[0];
            r.tensors[squares].placement.partial = mesh_.world();
            b.accumulate(norm2, squares);
        }
        return r;
    }

    Routine update() const {
        Routine r = start("update", ir::RoutineKind::Update);
        change_weights(r, [&](const auto& own, const auto& updated) { apply(r, own, updated); });
        return r;
    }

    Routine outer() const {
        Routine r = start("outer", ir::RoutineKind::Outer);
        r.entry = ir::EntryKind::Outer;
        change_weights(r, [&](const auto& own, const auto& updated) { meet(r, own, updated); });
        return r;
    }

    // f(own, updated) makes new weights from old ones on the optimizer's shards; here is how these come from the weights and go
    // back to them.
    template <class F>
    void change_weights(Routine& r, const F& f) const {
        const AxisList rest(unit_.optimizer.begin() + static_cast<long>(unit_.weights.size()), unit_.optimizer.end());
        const auto weights = flat(r, StateRole::Weights, unit_.has_master() ? Access::Write : Access::Update);
        auto own = weights, updated = weights;
        if (unit_.has_master()) {
            own = updated = flat(r, StateRole::Master, Access::Update);
        } else if (!rest.empty()) {
            own = temporaries(r, "own", unit_.optimizer, unit_.master);
            updated = temporaries(r, "new", unit_.optimizer, unit_.master);
            for (size_t i = 0; i < own.size(); ++i)
                r.ops.push_back(collective(ir::kSlice, {weights[i]}, {own[i]}, rest, "the optimizer's shard of the weights"));
        }
        f(own, updated);
        if (!rest.empty() || unit_.has_master())
            gather_from(r, updated, weights, rest, "weights are split less than the optimizer");
    }

    // The mean of what islands have changed since they met moves the anchor, and the weights follow it.
    void meet(Routine& r, const std::vector<TensorId>& own, const std::vector<TensorId>& updated) const {
        const OuterOptions& o = *options_.outer;
        const auto anchors = flat(r, StateRole::Anchor, Access::Update);
        std::vector<TensorId> buffers;
        if (o.momentum != 0) buffers = flat(r, StateRole::OuterMomentum, Access::Update);
        const auto shares = temporaries(r, "share", unit_.optimizer, sums()),
                   means = temporaries(r, "mean", unit_.optimizer, sums());
        for (size_t i = 0; i < own.size(); ++i) {
            ir::Op op;
            op.kind = "outer_gradient", op.in = {anchors[i], own[i]}, op.out = {shares[i]};
            op.attrs["scale"] = 1 / static_cast<double>(o.islands);
            r.ops.push_back(std::move(op));
        }
        mean_of_islands(r, program_, unit_, o, shares, means);
        for (size_t i = 0; i < own.size(); ++i) {
            ir::Op op;
            op.kind = "outer_sgd";
            op.in = {own[i], anchors[i], means[i]};
            op.out = {updated[i], anchors[i]};
            if (!buffers.empty()) op.in.push_back(buffers[i]), op.out.push_back(buffers[i]);
            op.attrs = {{"lr", o.lr}, {"momentum", o.momentum}, {"nesterov", int64_t{1}}, {"alpha", o.alpha}};
            r.ops.push_back(std::move(op));
        }
    }

    // The optimizer on every segment: new weights from old ones.
    void apply(Routine& r, const std::vector<TensorId>& own, const std::vector<TensorId>& updated) const {
        const auto grads = flat(r, reduced(), Access::Read);
        // What the optimizer remembers, by segment.
        std::vector<std::vector<TensorId>> moments(own.size());
        for (size_t k = 0; k < program_.states.size(); ++k) {
            const ir::State& s = program_.states[k];
            if (s.role != StateRole::Moment || s.unit != unit_.name) continue;
            const auto id = static_cast<ir::StateId>(k);
            const std::vector<size_t> covered = segments_of(s);
            const std::vector<TensorId> tensors = flat(r, id, Access::Update);
            for (size_t i = 0; i < covered.size(); ++i) moments[covered[i]].push_back(tensors[i]);
        }
        r.dims.push_back({"control", 7, 7});
        const TensorId control =
            Builder(r).port(program_, program_.state(StateRole::Control), Access::Read, {static_cast<int>(r.dims.size()) - 1});
        r.tensors[control].placement = {{{}}, {}, ir::Reduce::Sum};
        const Optimizer& optimizer = options_.optimizer;
        const bool draws = optimizer.rules[0].narrow.has_value();
        const TensorId steps = draws ? Builder(r).port(program_, program_.state(StateRole::Steps), Access::Read) : -1;
        for (size_t i = 0; i < own.size(); ++i) {
            const ir::Segment& segment = unit_.segments[i];
            const UpdateRule& rule = optimizer.rules.at(static_cast<size_t>(segment.rule));
            ir::Op op;
            op.kind = rule.op;
            op.in = {own[i]};
            op.out = {updated[i]};
            if (rule.needs == UpdateRule::Needs::Matrix) {
                op.in.push_back(orthogonal_update(r, program_, unit_, rule, i, {grads[i], moments[i].at(0), control}));
            } else {
                op.attrs = rule.attrs;
                op.in.push_back(grads[i]);
                op.in.insert(op.in.end(), moments[i].begin(), moments[i].end());
                op.out.insert(op.out.end(), moments[i].begin(), moments[i].end());
                if (rule.narrow) op.in.push_back(steps), parameter_places(program_, segment).put(op.attrs);
            }
            op.in.push_back(control);
            op.attrs["weight_decay"] = segment.decay ? optimizer.weight_decay : 0.0;
            r.ops.push_back(std::move(op));
        }
    }

    std::vector<size_t> segments_of(const ir::State& s) const {
        std::vector<size_t> out;
        for (size_t i = 0; i < unit_.segments.size(); ++i) {
            if (ir::Program::covers(s, static_cast<int>(i))) out.push_back(i);
        }
        return out;
    }

    // Every state that a checkpoint holds, copied as it is.
    Routine snapshot() const {
        Routine r = start("snapshot", ir::RoutineKind::Snapshot);
        r.entry = ir::EntryKind::Snapshot;
        for (size_t k = 0; k < program_.states.size(); ++k) {
            const ir::State& copy = program_.states[k];
            if (copy.role != StateRole::Copy || copy.unit != unit_.name) continue;
            const auto from = flat(r, copy.copy_of, Access::Read), to = flat(r, static_cast<ir::StateId>(k), Access::Write);
            for (size_t i = 0; i < from.size(); ++i) {
                ir::Op op;
                op.kind = ir::kRename;
                op.in = {from[i]};
                op.out = {to[i]};
                r.ops.push_back(std::move(op));
            }
        }
        return r;
    }

    const ir::Program& program_;
    const mesh::Mesh& mesh_;
    const ir::Unit& unit_;
    const PartitionOptions& options_;
    const Mirrored mirrored_;
    const WeightsAmax amax_;
};

// The loss of this rank's tokens, on one of the ranks that have it; 0 on pipeline ranks without the last block.
TensorId owned_loss(const ir::Program& program, Builder& b) {
    const auto owned = [&](std::vector<TensorId> loss, const AxisList& count_if) {
        return b.op("owned", std::move(loss), {{"loss.owned", {}, Dtype::F64}},
                    {{"count_if", std::vector<int64_t>(count_if.begin(), count_if.end())}})[0];
    };
    const ir::StateId id = program.state(StateRole::LossSum);
    for (const Routine& other : program.routines) {
        const int port = other.port_of_state(id);
        if (port < 0 || other.entry != ir::EntryKind::Train) continue;
        const AxisList partial = other.tensors[other.port_tensors(port)[0]].placement.partial;
        const TensorId loss_sum = b.port(program, id, Access::Read);
        b.routine().tensors[loss_sum].placement.partial = partial;
        return owned({loss_sum}, mesh::subtract(program.mesh.all(), partial));
    }
    return owned({}, {});
}

}  // namespace

std::vector<Routine> reading_routines(const ir::Program& program, const ir::Unit& unit, const PartitionOptions& options) {
    return UnitRoutines(program, unit, options).reading();
}

std::vector<Routine> training_routines(const ir::Program& program, const ir::Unit& unit, const PartitionOptions& options) {
    return UnitRoutines(program, unit, options).training();
}

Routine stats_all(const ir::Program& program, const PartitionOptions& options) {
    Routine r;
    r.name = "stats.all";
    r.kind = ir::RoutineKind::Stats;
    r.dims = {{"control", 7, 7}};
    Builder b(r);
    const AxisList all = program.mesh.world();
    const auto port = [&](StateRole role, Access access, std::vector<ir::DimId> dims = {}) {
        return b.port(program, program.state(role), access, std::move(dims));
    };
    TensorId norm2 = port(StateRole::SquaredNorm, Access::Read);
    r.tensors[norm2].placement.partial = all;
    TensorId loss = owned_loss(program, b);
    r.tensors[loss].placement.partial = all;
    if (!all.empty()) {
        ir::Op op;
        op.kind = "all_reduce";
        op.group = all;
        op.in = {norm2, loss};
        op.note = "one reduction over all ranks";
        norm2 = b.make({"norm2.all", {}, Dtype::F64});
        loss = b.make({"loss.all", {}, Dtype::F64});
        op.out = {norm2, loss};
        r.ops.push_back(std::move(op));
    }
    const TensorId inv_n = port(StateRole::InverseCount, Access::Read), lr = port(StateRole::LearningRate, Access::Read);
    const TensorId steps = port(StateRole::Steps, Access::Update), control = port(StateRole::Control, Access::Write, {0});
    r.tensors[control].placement.dims = {{}};
    ir::Op op;
    op.kind = "step_control";
    op.in = {norm2, loss, inv_n, steps, lr};
    op.out = {control, steps};
    op.attrs = {{"max_norm", options.max_norm}, {"beta1", options.optimizer.beta1}, {"beta2", options.optimizer.beta2}};
    const bool scaled = program.state(StateRole::LossScale) >= 0, grows = program.state(StateRole::GrowthTracker) >= 0;
    const TensorId scale = scaled ? port(StateRole::LossScale, grows ? Access::Update : Access::Read) : -1;
    if (scaled) op.in.push_back(scale);
    r.ops.push_back(std::move(op));
    if (!grows) return r;
    const TensorId tracker = port(StateRole::GrowthTracker, Access::Update);
    ir::Op update;
    update.kind = "update_loss_scale";
    update.in = {scale, tracker, port(StateRole::LossScaleWindow, Access::Read), control};
    update.out = {scale, tracker};
    update.attrs = {{"least", options.least_loss_scale}};
    r.ops.push_back(std::move(update));
    return r;
}

}  // namespace lockstep::passes
