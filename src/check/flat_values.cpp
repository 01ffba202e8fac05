#include "check/flat_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/quantized.h"
#include "check/element_places.h"
#include "ir/sources.h"
#include "ops/rule.h"

namespace lockstep::check {

using ir::AxisList;
using ir::Op;
using ir::StateRole;
using ir::TensorId;

namespace {

// The names in checkpoints of what the optimizer remembers, by the operand of the op that reads it.
std::string_view name_of_moment(std::string_view op, size_t operand) {
    if (op == "adamw" || op == "adam") return operand == 2 ? "exp_avg" : "exp_avg_sq";
    return "momentum_buffer";
}

}  // namespace

AxisList replicas_of(const ir::Program& p, const ir::Unit& unit, const ir::Segment& segment) {
    return mesh::subtract(ascending(p.mesh.all()), mesh::unite(unit.optimizer, segment.shards));
}

FlatValues::FlatValues(const ir::Program& program, const ir::Routine& routine)
    : p_(program),
      r_(routine),
      unit_(program.unit(routine.unit)),
      all_(ascending(program.mesh.all())),
      world_(ascending(program.mesh.world())),
      values_(routine.tensors.size()),
      added_(routine.tensors.size()),
      last_read_(routine.tensors.size(), 0) {}

const std::map<std::string_view, FlatValues::Apply>& FlatValues::known_ops() {
    using V = FlatValues;
    static const std::map<std::string_view, Apply> known = {
        {"all_gather", &V::move},
        {"all_reduce", &V::sum},
        {"reduce_scatter", &V::sum},
        {"all_to_all", &V::exchange_rows},
        {"broadcast", &V::broadcast},
        {"send", &V::send},
        {"recv", &V::receive},
        {"wait", &V::wait},
        {ir::kSlice, &V::move},
        {ir::kCast, &V::move},
        {ir::kRename, &V::move},
        {"copy", &V::move},
        {"reshape", &V::move},
        {"accumulate", &V::move},
        {ir::kQuantize, &V::quantize},
        {"dequantize", &V::dequantize},
        {"dequantize_sum", &V::dequantize},
        {"zero_padding", &V::zero_padding},
        {ir::kMemberAmax, &V::member_amax},
        {ir::kMemberFloat8, &V::member_float8},
        {"sum_squares", &V::sum_squares},
        {"muon_momentum", &V::muon_momentum},
        {ir::kUnpack, &V::unpack},
        {ir::kPack, &V::pack},
        {"outer_gradient", &V::outer_gradient},
        {ir::kMeet, &V::meet},
        {"outer_sgd", &V::outer_sgd},
        {"owned", &V::owned},
        {"step_control", &V::step_control},
        {"update_loss_scale", &V::update_loss_scale},
        {"inverse_count", &V::inverse_count},
    };
    return known;
}

// Where nobody reads a result, another one was meant.
void FlatValues::is_of_use(const Op& op) {
    const auto is_read = [&](TensorId t) { return tensor(t).port >= 0 || last_read_[static_cast<size_t>(t)] > op_; };
    require(op.out.empty() || std::any_of(op.out.begin(), op.out.end(), is_read), "makes what nobody reads");
}

std::string FlatValues::run() {
    for (size_t i = 0; i < r_.ops.size(); ++i) {
        for (const TensorId t : r_.ops[i].in) last_read_[static_cast<size_t>(t)] = i;
    }
    for (op_ = 0; op_ < r_.ops.size() && wrong_.empty(); ++op_) {
        const Op& op = r_.ops[op_];
        alike(op);
        is_of_use(op);
        const auto known = known_ops().find(op.kind);
        if (!wrong_.empty()) break;
        if (known != known_ops().end()) (this->*known->second)(op);
        else if (ops::rule(op.kind).step_end.updates) update(op);
        else compute(op);
    }
    return wrong_;
}

void FlatValues::fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = fmt::format("{}, op {} {}: {}", r_.name, op_, r_.ops[op_].kind, what);
}

void FlatValues::expect(const Op& op, size_t i, const FlatValue& expected) {
    const FlatValue& found = operand(op, i);
    if (found != expected) {
        fail(fmt::format("{} holds {}, where it needs {}", tensor(op.in[i]).name, text_of(p_, found), text_of(p_, expected)));
    }
}

// Of an operand that is of a segment of the routine's unit.
int FlatValues::segment_of(const Op& op, size_t i) {
    const int segment = operand(op, i).segment;
    if (!unit_ || segment < 0)
        fail(fmt::format("{} holds {}, which is of no segment", tensor(op.in[i]).name, text_of(p_, operand(op, i))));
    return segment;
}

void FlatValues::give(const Op& op, size_t i, FlatValue value) {
    if (!wrong_.empty()) return;
    if (op.accumulates(static_cast<int>(i))) added_[static_cast<size_t>(op.out[i])].push_back(std::move(value));
    else set(op.out[i], std::move(value));
}

// Flat operands and results of an op of states are split over the same ranks, unless it is between a segment and what is cut
// otherwise.
void FlatValues::alike(const Op& op) {
    if (!ops::rule(op.kind).step_end.of_states) return;
    const AxisList* split = nullptr;
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (const TensorId t : *list) {
            const ir::Tensor& x = tensor(t);
            if (x.dims.empty() || r_.dims[static_cast<size_t>(x.dims.back())].role != ir::DimRole::Flat) continue;
            if (split && *split != x.placement.dims.back()) fail(fmt::format("{} is split over other ranks", x.name));
            split = &x.placement.dims.back();
        }
    }
}

FlatValue FlatValues::summed(FlatValue v, const AxisList& group) {
    if (!mesh::is_subset(group, v.partial))
        fail(fmt::format("sums {} over {}, where it is no partial sum", text_of(p_, v), p_.mesh.text(group)));
    v.partial = mesh::subtract(v.partial, group);
    if (v.what == kChange && v.partial.empty()) v.what = kMean;
    return v;
}

void FlatValues::counts_once(const Op& op, const AxisList& replicas) {
    AxisList counted;
    for (const int64_t axis : std::get<std::vector<int64_t>>(op.attrs.at("count_if"))) counted.push_back(static_cast<int>(axis));
    if (ascending(counted) != replicas)
        fail(fmt::format("counts one rank along '{}', and the ranks along '{}' have the same", p_.mesh.text(ascending(counted)),
                         p_.mesh.text(replicas)));
}

// The same elements, in other places, in another type, or added to a sum.
void FlatValues::move(const Op& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
        require(operand(op, i).rows.empty(), "moves what is to be added up");
        give(op, i, operand(op, i));
    }
}

void FlatValues::sum(const Op& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
        const FlatValue& v = operand(op, i);
        const bool takes_maxima = tensor(op.in[i]).placement.reduce == ir::Reduce::Max;
        require(takes_maxima == (v.what == kAmax),
                fmt::format("{} {}", takes_maxima ? "takes maxima of" : "adds up", text_of(p_, v)));
        require(v.bits == 0 && v.rows.empty(), fmt::format("sums the bytes of {}", text_of(p_, v)));
        give(op, i, summed(v, op.group));
    }
}

void FlatValues::exchange_rows(const Op& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
        require(operand(op, i).rows == op.group && op.integer("from") == 0 && op.integer("to") == 1,
                fmt::format("exchanges {}, which has no row for each rank", text_of(p_, operand(op, i))));
        give(op, i, operand(op, i));
    }
}

void FlatValues::broadcast(const Op& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
        const int s = segment_of(op, i);
        if (!wrong_.empty()) return;
        expect(op, i, {kMeanOfFirst, s});
        require(ascending(op.group) == replicas_of(p_, *unit_, segment(operand(op, i))) && op.integer("root") == 0,
                "does not come from the rank that met");
        give(op, i, {kMean, s});
    }
}

void FlatValues::quantize(const Op& op) {
    FlatValue v = operand(op, 0);
    if (op.in.size() > 1) expect(op, 1, {name_of(StateRole::Steps)});
    require(v.bits == 0, "quantizes what is quantized");
    const int64_t least = least_exponent(tensor(op.in[0]).dtype);
    require(op.integer("least") == least, fmt::format("its least exponent is {}, not {}", op.integer("least"), least));
    const ir::Tensor& bytes = tensor(op.out[0]);
    v.bits = op.integer("bits");
    if (bytes.dims.size() == 2) {
        v.rows = bytes.placement.dims[0];
        require(p_.mesh.size(v.rows) == r_.dims[static_cast<size_t>(bytes.dims[0])].size, "has not one row for each rank");
    }
    give(op, 0, v);
}

void FlatValues::dequantize(const Op& op) {
    FlatValue v = operand(op, 0);
    require(v.bits == op.integer("bits"), fmt::format("takes {} for {} bits", text_of(p_, v), op.integer("bits")));
    v.bits = 0;
    if (op.kind == "dequantize") {
        require(v.rows.empty(), fmt::format("takes one row of {}", text_of(p_, v)));
    } else {
        const ir::Tensor& bytes = tensor(op.in[0]);
        require(!v.rows.empty() && bytes.dims.size() == 2 && bytes.placement.dims[0].empty(),
                fmt::format("has not the rows of all ranks of {}", text_of(p_, v)));
        const AxisList terms = std::exchange(v.rows, {});
        v = summed(v, terms);
    }
    give(op, 0, v);
}

// Clears what no member has.
void FlatValues::zero_padding(const Op& op) {
    segment_of(op, 0);
    if (!wrong_.empty()) return;
    const FlatValue v = operand(op, 0);
    require(tensor(op.in[0]).placement.dims[0].empty(), "clears a shard");
    std::vector<int64_t> padding;
    int64_t at = 0;
    const auto until = [&](int64_t begin) {
        if (begin > at) padding.insert(padding.end(), {at, begin});
    };
    for (const ir::Member& m : segment(v).members) until(m.begin), at = m.begin + m.count;
    until(segment(v).padded);
    require(std::get<std::vector<int64_t>>(op.attrs.at("ranges")) == padding,
            fmt::format("clears other elements of segment {} than those of no parameter", v.segment));
    give(op, 0, v);
}

// The groups of the state that has largest sizes.
std::vector<std::string_view> FlatValues::groups() const {
    std::vector<std::string_view> out;
    for (size_t k = 0; k < r_.ports.size(); ++k) {
        if (!p_.has_role(r_.ports[k], StateRole::WeightsAmax)) continue;
        for (const TensorId t : r_.port_tensors(static_cast<int>(k))) out.emplace_back(tensor(t).source);
    }
    return out;
}

// Of all members of one group, as all ranks together have them and as forward and backward read them.
void FlatValues::member_amax(const Op& op) {
    const auto& ranges = std::get<std::vector<int64_t>>(op.attrs.at("ranges"));
    const Dtype read = is_float8(unit_->compute) ? unit_->master : unit_->compute;
    std::set<std::string_view> members;
    AxisList partial;
    for (size_t i = 0; i < ranges.size() && wrong_.empty(); i += 3) {
        const auto operand = static_cast<size_t>(ranges[i]);
        const int s = segment_of(op, operand);
        if (!wrong_.empty()) return;
        expect(op, operand, {kWeights, s});
        const ir::Segment& of = unit_->segments[static_cast<size_t>(s)];
        const ir::Tensor& x = tensor(op.in[operand]);
        partial = mesh::unite(partial, mesh::unite(x.placement.dims[0], of.shards));
        members.insert(member_of(of, ranges[i + 1], ranges[i + 2]));
        const bool is_rounded = op.attrs.contains("rounded");
        require(is_rounded ? op.text("rounded") == name_of(read) : x.dtype == read,
                fmt::format("is of {}, and {} is read", name_of(x.dtype), name_of(read)));
    }
    for (const std::string_view group : groups()) {
        const std::vector<std::string_view> keys = ir::sources_of(group);
        if (std::set<std::string_view>(keys.begin(), keys.end()) != members) continue;
        FlatValue found{kAmax};
        found.group = group, found.partial = ascending(partial);
        require(ascending(tensor(op.out[0]).placement.partial) == found.partial, "is not partial over the ranks of the weights");
        return give(op, 0, found);
    }
    fail("finds the largest size of other weights than share a scale");
}

// The member that is these elements of its segment; empty: none.
std::string_view FlatValues::member_of(const ir::Segment& s, int64_t begin, int64_t end) {
    const auto is = [&](const ir::Member& m) { return m.begin == begin && m.begin + m.count == end; };
    const auto found = std::find_if(s.members.begin(), s.members.end(), is);
    return found == s.members.end() ? std::string_view() : std::string_view(found->param);
}

// Every member of a segment, each by the largest size of its own group.
void FlatValues::member_float8(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    expect(op, 0, {kWeights, s});
    const ir::Segment& of = unit_->segments[static_cast<size_t>(s)];
    const auto& ranges = std::get<std::vector<int64_t>>(op.attrs.at("ranges"));
    require(ranges.size() == 3 * of.members.size(), "casts other members than the segment has");
    for (size_t i = 0; i < ranges.size() && wrong_.empty(); i += 3) {
        const std::string_view member = member_of(of, ranges[i + 1], ranges[i + 2]);
        const FlatValue& by = operand(op, static_cast<size_t>(ranges[i] + 1));
        const std::vector<std::string_view> keys = ir::sources_of(by.group);
        require(by.what == kAmax && by.partial.empty() && std::find(keys.begin(), keys.end(), member) != keys.end(),
                fmt::format("casts elements {} to {} by {}", ranges[i + 1], ranges[i + 2], text_of(p_, by)));
    }
    require(tensor(op.out[0]).dtype == unit_->compute, "makes codes of another type than is read");
    give(op, 0, {kWeights, s});
}

void FlatValues::sum_squares(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    expect(op, 0, {kGradient, s});
    counts_once(op, replicas_of(p_, *unit_, segment(operand(op, 0))));
    give(op, 0, {kSquares, s});
}

// A moment of the segment, which checkpoints call `name`.
FlatValue FlatValues::moment(const Op& op, size_t i, int segment, std::string_view name) {
    const FlatValue found = operand(op, i);
    expect(op, i, {kMoment, segment, -1, found.state});
    if (!wrong_.empty()) return found;
    const std::string saved = fmt::format("{}.{{}}", name);
    const ir::State& state = p_.states[static_cast<size_t>(found.state)];
    require(state.saved == saved,
            fmt::format("reads {}, which checkpoints call '{}', in the place of '{}'", state.full_name(), state.saved, saved));
    return {kNewMoment, segment, -1, found.state};
}

// (weights, gradient or update, moments..[, steps], control) -> weights, moments..[, weights in a narrower type]
void FlatValues::update(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    expect(op, 0, {kWeights, s});
    expect(op, 1, {op.kind == "muon" ? kOrthogonal : kGradient, s});
    expect(op, op.in.size() - 1, {name_of(StateRole::Control)});
    std::vector<FlatValue> moments;
    const size_t draws = op.attrs.contains("seed") ? 1 : 0;
    if (draws != 0) {
        expect(op, op.in.size() - 2, {name_of(StateRole::Steps)});
        const std::string wrong = wrong_places(p_, unit_->segments[static_cast<size_t>(s)], op);
        require(wrong.empty(), wrong);
    }
    for (size_t i = 2; i + 1 + draws < op.in.size(); ++i) {
        moments.push_back(moment(op, i, s, name_of_moment(op.kind, i)));
        require(draws != 0 || tensor(op.in[i]).dtype == tensor(op.in[0]).dtype,
                fmt::format("{} is narrower than the weights and not rounded at random", tensor(op.in[i]).name));
    }
    for (size_t i = 0; i < op.out.size(); ++i)
        give(op, i, i > 0 && i <= moments.size() ? moments[i - 1] : FlatValue{kNewWeights, s});
}

void FlatValues::muon_momentum(const Op& op) {
    const int s = segment_of(op, 0);
    expect(op, 0, {kGradient, s});
    expect(op, 2, {name_of(StateRole::Control)});
    const FlatValue buffer = moment(op, 1, s, name_of_moment(op.kind, 1));
    give(op, 0, {kDirection, s});
    give(op, 1, buffer);
}

bool FlatValues::is_param(const ir::Tensor& t, const ir::Parameter& param) const {
    if (t.dims.size() != param.dims.size() || t.placement.dims != param.placement.dims) return false;
    for (size_t i = 0; i < t.dims.size(); ++i) {
        if (r_.dims[static_cast<size_t>(t.dims[i])].size != param.dims[i].size) return false;
    }
    return true;
}

// The parts of a segment's matrices that a rank has, each in the dims of its parameter.
void FlatValues::unpack(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    expect(op, 0, {kDirection, s});
    require(tensor(op.in[0]).placement.dims[0].empty(), "takes a shard apart");
    const std::vector<ir::Member>& members = segment(operand(op, 0)).members;
    const auto& begins = std::get<std::vector<int64_t>>(op.attrs.at("begins"));
    require(members.size() == op.out.size(), "takes apart other matrices than the segment has");
    for (size_t k = 0; k < op.out.size() && wrong_.empty(); ++k) {
        const ir::Parameter* param = p_.param(members[k].param);
        require(begins[k] == members[k].begin && param && is_param(tensor(op.out[k]), *param),
                fmt::format("{} is not {}", tensor(op.out[k]).name, members[k].param));
        give(op, k, {kDirection, s, static_cast<int>(k)});
    }
}

void FlatValues::pack(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    const std::vector<ir::Member>& members = segment(operand(op, 0)).members;
    const auto& begins = std::get<std::vector<int64_t>>(op.attrs.at("begins"));
    require(members.size() == op.in.size() && tensor(op.out[0]).placement.dims[0].empty(),
            "puts together other matrices than the segment has");
    for (size_t k = 0; k < op.in.size() && wrong_.empty(); ++k) {
        const ir::Parameter* param = p_.param(members[k].param);
        expect(op, k, {kOrthogonal, s, static_cast<int>(k)});
        require(begins[k] == members[k].begin && param && is_param(tensor(op.in[k]), *param),
                fmt::format("{} is not {}", tensor(op.in[k]).name, members[k].param));
    }
    give(op, 0, {kOrthogonal, s});
}

// Of this job, or of the jobs that meet.
int64_t FlatValues::islands() const {
    for (const Op& op : r_.ops) {
        if (op.kind == ir::kMeet) return op.integer("islands");
    }
    return p_.mesh.islands();
}

void FlatValues::outer_gradient(const Op& op) {
    const int s = segment_of(op, 1);
    expect(op, 0, {kAnchor, s});
    expect(op, 1, {kWeights, s});
    require(op.number("scale") == 1 / static_cast<double>(islands()),
            fmt::format("takes {} of a change, and there are {} islands", op.number("scale"), islands()));
    give(op, 0, {kChange, s, -1, -1, ascending(p_.mesh.whole(mesh::Axis::island))});
}

void FlatValues::meet(const Op& op) {
    const int s = segment_of(op, 0);
    if (!wrong_.empty()) return;
    expect(op, 0, {kChange, s});
    const AxisList replicas = replicas_of(p_, *unit_, segment(operand(op, 0)));
    counts_once(op, replicas);
    require(op.integer("islands") == islands(), "is of another number of islands");
    give(op, 0, {replicas.empty() ? kMean : kMeanOfFirst, s});
}

void FlatValues::outer_sgd(const Op& op) {
    const int s = segment_of(op, 0);
    expect(op, 0, {kWeights, s});
    expect(op, 1, {kAnchor, s});
    expect(op, 2, {kMean, s});
    if (op.in.size() > 3) expect(op, 3, {kOuterMomentum, s});
    give(op, 0, {kNewWeights, s});
    give(op, 1, {kNewAnchor, s});
    if (op.out.size() > 2) give(op, 2, {kNewOuterMomentum, s});
}

// Between mirrors: what both call the same, each segment that they share once, in the unit's order.
void FlatValues::send(const Op& op) {
    const int s = segment_of(op, 0);
    expect(op, 0, {p_.has_role(r_.ports[0], StateRole::Weights) ? kWeights : kGradient, s});
    require(tensor(op.in[0]).port == 0, fmt::format("sends {}, which is of no port", tensor(op.in[0]).name));
}

void FlatValues::receive(const Op& op) {
    const int s = tensor(op.out[0]).dims.empty() ? -1 : tensor(op.out[0]).dims[0];
    give(op, 0, {p_.has_role(r_.ports[0], StateRole::Weights) ? kWeights : kMirrored, s});
}

// This rank's part of the loss, if none before it along the replicas has counted it. A pipeline rank without the loss has none.
void FlatValues::owned(const Op& op) {
    const ir::StateId loss = p_.state(StateRole::LossSum);
    const bool has_loss = std::any_of(p_.routines.begin(), p_.routines.end(), [&](const ir::Routine& r) {
        return r.entry == r_.entry && &r != &r_ && r.port_of_state(loss) >= 0;
    });
    require(op.in.size() == (has_loss ? 1 : 0), "takes the loss where there is none, or leaves it out");
    if (!op.in.empty() && wrong_.empty()) {
        expect(op, 0, {name_of(StateRole::LossSum), -1, -1, -1, operand(op, 0).partial});
        counts_once(op, mesh::subtract(all_, operand(op, 0).partial));
    }
    give(op, 0, {name_of(StateRole::LossSum), -1, -1, -1, world_});
}

void FlatValues::step_control(const Op& op) {
    std::vector<StateRole> roles = {StateRole::SquaredNorm, StateRole::LossSum, StateRole::InverseCount, StateRole::Steps,
                                    StateRole::LearningRate};
    if (p_.state(StateRole::LossScale) >= 0) roles.push_back(StateRole::LossScale);
    require(op.in.size() == roles.size(), "has not the operands of a step with or without a loss scale");
    for (size_t i = 0; i < roles.size() && wrong_.empty(); ++i) expect(op, i, {name_of(roles[i])});
    give(op, 0, {kNewControl});
    give(op, 1, {kNewSteps});
}

void FlatValues::update_loss_scale(const Op& op) {
    expect(op, 0, {name_of(StateRole::LossScale)});
    expect(op, 1, {name_of(StateRole::GrowthTracker)});
    expect(op, 2, {name_of(StateRole::LossScaleWindow)});
    expect(op, 3, {kNewControl});
    give(op, 0, {kNewLossScale});
    give(op, 1, {kNewGrowthTracker});
}

void FlatValues::inverse_count(const Op& op) {
    expect(op, 0, {name_of(StateRole::TargetCount)});
    give(op, 0, {name_of(StateRole::InverseCount)});
}

// Ops of models that the end of a step uses, too: they count valid targets, make the loss's seed and orthogonalize matrices.
void FlatValues::compute(const Op& op) {
    if (op.in.empty()) return fail("makes what nothing at the end of a step needs");
    const ir::Tensor& out = tensor(op.subject());
    const bool multiplies = op.kind == ir::kEinsum;
    const auto is = [&](size_t i, std::string_view what) { return operand(op, i) == FlatValue{what}; };
    if (op.kind == ir::kUnary && op.text("fn") == "valid" && is(0, name_of(ir::PortRole::Targets)))
        return give(op, 0, {kValidTargets});
    if (multiplies && op.in.size() == 1 && is(0, kValidTargets) && out.dims.empty())
        return give(op, 0, {name_of(StateRole::TargetCount), -1, -1, -1, ascending(out.placement.partial)});
    if (multiplies && op.in.size() == 2 && is(0, name_of(StateRole::InverseCount)) && is(1, name_of(StateRole::LossScale)))
        return give(op, 0, {name_of(StateRole::LossSeed)});
    const FlatValue& v = operand(op, 0);
    if (v.what == kDirection && v.member >= 0) return orthogonalize(op);
    fail(fmt::format("computes with {}, which nothing at the end of a step does", text_of(p_, v)));
}

// All of its ops at once.
void FlatValues::orthogonalize(const Op& op) {
    const FlatValue v = operand(op, 0);
    const Orthogonalized made = orthogonalized(r_, op_);
    if (!made.wrong.empty()) return fail(made.wrong);
    if (!iteration_) iteration_ = made;
    require(made.steps == iteration_->steps && made.matches_rms == iteration_->matches_rms,
            "a matrix has another number of steps, or another kind of factor, than the one before it");
    op_ += made.ops - 1;
    values_[static_cast<size_t>(made.result)] = {kOrthogonal, v.segment, v.member};
}

}  // namespace lockstep::check
