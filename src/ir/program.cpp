#include "ir/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace lockstep::ir {
namespace {

template <class T>
const T& attr(const Op& op, std::string_view key) {
    auto it = op.attrs.find(std::string(key));
    if (it == op.attrs.end() || !std::holds_alternative<T>(it->second))
        throw InternalError(fmt::format("op {}: attribute {} is missing", op.kind, key));
    return std::get<T>(it->second);
}

template <class T, class Is>
int index_where(const std::vector<T>& items, const Is& is) {
    const auto it = std::find_if(items.begin(), items.end(), is);
    return it == items.end() ? -1 : static_cast<int>(it - items.begin());
}

template <class T>
int index_by_name(const std::vector<T>& items, std::string_view name) {
    return index_where(items, [&](const T& x) { return x.name == name; });
}

template <class T>
const T* find_by_name(const std::vector<T>& items, std::string_view name) {
    const int i = index_by_name(items, name);
    return i < 0 ? nullptr : &items[i];
}

}  // namespace

std::vector<int64_t> Block::all() const {
    std::vector<int64_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
}
std::vector<int64_t> Block::instances() const { return held ? *held : all(); }
bool Block::holds(int64_t instance) const {
    return held ? std::binary_search(held->begin(), held->end(), instance) : instance >= first && instance <= last();
}

AxisList Placement::used() const {
    AxisList out;
    for (const AxisList& d : dims) out.insert(out.end(), d.begin(), d.end());
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

int64_t Op::integer(std::string_view key) const { return attr<int64_t>(*this, key); }
double Op::number(std::string_view key) const { return attr<double>(*this, key); }
const std::string& Op::text(std::string_view key) const { return attr<std::string>(*this, key); }
bool Op::accumulates(int position) const { return std::find(accumulate.begin(), accumulate.end(), position) != accumulate.end(); }

TensorId Op::subject() const { return out.empty() ? in.at(0) : out[0]; }

DimId Routine::dim(std::string_view n) const { return index_by_name(dims, n); }
DimId Routine::dim(DimRole role) const {
    return index_where(dims, [&](const Dim& d) { return d.role == role; });
}
TensorId Routine::find(std::string_view n) const { return index_by_name(tensors, n); }
int Routine::port(std::string_view n) const { return index_by_name(ports, n); }
int Routine::port(PortRole role) const {
    return index_where(ports, [&](const Port& p) { return p.role == role; });
}
int Routine::port_of_state(StateId state) const {
    return index_where(ports, [&](const Port& p) { return p.state == state; });
}

std::vector<TensorId> Routine::port_tensors(int p) const {
    std::vector<TensorId> out;
    for (size_t t = 0; t < tensors.size(); ++t) {
        if (tensors[t].port == p) out.push_back(static_cast<TensorId>(t));
    }
    return out;
}

const Parameter* Program::param(std::string_view key) const {
    auto it = std::find_if(params.begin(), params.end(), [&](const Parameter& p) { return p.key == key; });
    return it == params.end() ? nullptr : &*it;
}
bool Routine::serves(int64_t instance) const {
    return instances.empty() || std::binary_search(instances.begin(), instances.end(), instance);
}
const Block* Program::block(std::string_view n) const { return find_by_name(blocks, n); }
std::vector<BlockInstance> Program::block_instances() const {
    std::vector<BlockInstance> out;
    for (const Block& b : blocks) {
        for (int64_t i : b.instances()) out.push_back({b.name, i});
    }
    return out;
}
std::vector<int64_t> Program::instances(const Unit& unit) const {
    const Block* of = block(unit.block);
    if (!of) return {};
    return unit.mirror ? of->all() : of->instances();
}
const Unit* Program::unit(std::string_view n) const { return find_by_name(units, n); }
const Routine* Program::routine(std::string_view n) const { return find_by_name(routines, n); }
int Program::routine_index(std::string_view n) const { return index_by_name(routines, n); }
const Routine* Program::routine(RoutineKind kind, std::string_view of, EntryKind entry) const {
    const int i = index_where(routines, [&](const Routine& r) {
        return r.kind == kind && r.entry == entry && (r.block.empty() ? r.unit : r.block) == of;
    });
    return i < 0 ? nullptr : &routines[i];
}
const Entry* Program::entry(EntryKind kind, int64_t fragment) const {
    const int i = index_where(entries, [&](const Entry& e) { return e.kind == kind && e.fragment == fragment; });
    return i < 0 ? nullptr : &entries[i];
}
int Program::buffer(std::string_view n) const { return index_by_name(buffers, n); }
int Program::buffer(StateId state, int64_t instance) const {
    return index_where(buffers, [&](const Buffer& b) { return b.state == state && b.instance == instance; });
}

std::optional<size_t> rows_of_matrix(const Parameter& param) {
    size_t parts = 0, rows = 0;
    for (size_t i = 0; i < param.dims.size(); ++i) {
        const Dim& d = param.dims[i];
        if (d.role == DimRole::Vocab || d.role == DimRole::Positions) return std::nullopt;
        const bool goes_on = i > 0 && is_of_heads(d.role) && is_of_heads(param.dims[i - 1].role);
        if (!goes_on && ++parts == 2) rows = i;
    }
    return parts == 2 ? std::optional(rows) : std::nullopt;
}

std::string State::full_name() const {
    const std::string& of = unit.empty() ? block : unit;
    return of.empty() ? name : name + "." + of;
}
StateId Program::state(StateRole role, std::string_view unit) const {
    return index_where(states, [&](const State& s) { return s.role == role && s.unit == unit; });
}
StateId Program::add(State state) {
    states.push_back(std::move(state));
    return static_cast<StateId>(states.size()) - 1;
}
Port Program::port(StateId state, Access access) const {
    Port out{states.at(static_cast<size_t>(state)).name, PortKind::State, access};
    out.state = state;
    return out;
}
bool Program::has_role(const Port& port, StateRole role) const { return port.state >= 0 && state_of(port).role == role; }
bool Program::covers(const State& state, int segment) {
    return state.segments.empty() || std::binary_search(state.segments.begin(), state.segments.end(), segment);
}
int64_t Program::begin_in(const State& state, int segment) const {
    const Unit& u = *unit(state.unit);
    int64_t begin = 0;
    for (int i = 0; i < segment; ++i) begin += covers(state, i) ? u.segments[static_cast<size_t>(i)].padded : 0;
    return begin;
}
int64_t Program::elements(const State& state) const {
    return begin_in(state, static_cast<int>(unit(state.unit)->segments.size()));
}
bool leaves_device(const Program& program, const Routine& routine, const Op& op) {
    const auto is_elsewhere = [&](TensorId t) {
        const int port = routine.tensors[static_cast<size_t>(t)].port;
        return port >= 0 && program.place_of(routine.ports[static_cast<size_t>(port)]) != Place::Device;
    };
    return std::any_of(op.in.begin(), op.in.end(), is_elsewhere) || std::any_of(op.out.begin(), op.out.end(), is_elsewhere);
}

const Unit* Program::unit_of(const Port& port) const {
    const std::string& name = port.state >= 0 ? state_of(port).unit : port.unit;
    return name.empty() ? nullptr : unit(name);
}

mesh::Collective collective_of(const Op& op) { return mesh::collective_of(op.kind); }

Op point_to_point(const mesh::Mesh& mesh, mesh::Collective kind, TensorId t, int64_t peer) {
    Op op;
    op.kind = mesh::name_of(kind);
    (kind == mesh::Collective::Recv ? op.out : op.in) = {t};
    op.group = mesh.whole(mesh::Axis::pp);
    op.attrs = {{"peer", peer}};
    return op;
}

std::vector<int64_t> members_of(const Program& program, const Op& op, const std::vector<int64_t>& group) {
    if (traits_of(op).symmetric) return group;
    const int64_t own = group.at(static_cast<size_t>(program.pipeline_rank)),
                  peer = group.at(static_cast<size_t>(op.integer("peer")));
    return op.in.empty() ? std::vector<int64_t>{peer, own} : std::vector<int64_t>{own, peer};
}

bool crosses_pipeline(const Program& program, const Op& op) {
    return std::any_of(op.group.begin(), op.group.end(),
                       [&](int a) { return program.mesh.sub_axes[static_cast<size_t>(a)].axis == mesh::Axis::pp; });
}

bool exchanges_states(const Routine& routine) {
    return routine.kind == RoutineKind::Transfer && routine.ports.at(0).kind == PortKind::State;
}

int64_t local_size(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor, int position) {
    const int64_t size = routine.dims[tensor.dims[position]].size;
    return tensor.placement.dims.empty() ? size : size / mesh.size(tensor.placement.dims[position]);
}

int64_t local_elements(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor) {
    int64_t n = global_elements(routine, tensor);
    for (const AxisList& split : tensor.placement.dims) n /= mesh.size(split);  // no sub-axis splits two dims
    return n;
}

int64_t local_bytes(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor) {
    return local_elements(mesh, routine, tensor) * bytes_of(tensor.dtype);
}

int64_t local_elements(const mesh::Mesh& mesh, const Parameter& param) {
    int64_t n = 1;
    for (const Dim& d : param.dims) n *= d.size;
    return n / mesh.size(param.placement.used());
}

int64_t global_elements(const Routine& routine, const Tensor& tensor) {
    int64_t n = 1;
    for (DimId d : tensor.dims) n *= routine.dims[d].size;
    return n;
}

std::string_view name_of(PortKind kind) {
    constexpr std::array<std::string_view, kPortKinds> names = {"value", "frame", "params", "gradients", "input", "state"};
    return names[static_cast<size_t>(kind)];
}
std::string_view name_of(DimRole role) {
    constexpr std::array<std::string_view, kDimRoles> names = {
        "other", "batch", "seq", "kv_seq", "hidden", "kv_heads", "group", "head_dim", "qkv", "ffn", "vocab", "positions", "flat"};
    return names[static_cast<size_t>(role)];
}
std::string_view name_of(EntryKind kind) {
    constexpr std::array<std::string_view, kEntryKinds> names = {"train", "eval", "prefill", "decode", "snapshot", "outer"};
    return names[static_cast<size_t>(kind)];
}
std::string_view name_of(PortRole role) {
    constexpr std::array<std::string_view, kPortRoles> names = {"none",    "x",   "y",   "d.x",   "d.y",    "logits", "ids",
                                                                "targets", "pos", "doc", "noise", "kv_pos", "kv_doc"};
    return names[static_cast<size_t>(role)];
}
std::string_view name_of(StateRole role) {
    constexpr std::array<std::string_view, kStateRoles> names = {
        "weights",       "secondary", "master",         "moment",        "gradients",      "reduced",
        "copy",          "anchor",    "outer_momentum", "cache",         "weights_amax",   "steps",
        "learning_rate", "loss_sum",  "target_count",   "inverse_count", "total_loss",     "total_count",
        "squared_norm",  "control",   "loss_scale",     "loss_seed",     "growth_tracker", "loss_scale_window"};
    return names[static_cast<size_t>(role)];
}
std::string_view name_of(Scope scope) {
    constexpr std::array<std::string_view, kScopes> names = {"step", "entry", "run"};
    return names[static_cast<size_t>(scope)];
}
std::string_view name_of(Access access) {
    constexpr std::array<std::string_view, 4> names = {"read", "write", "accumulate", "update"};
    return names[static_cast<size_t>(access)];
}
std::string_view name_of(RoutineKind kind) {
    constexpr std::array<std::string_view, kRoutineKinds> names = {
        "begin",  "forward", "loss",         "backward",    "backward_input", "backward_weight", "transfer", "fetch",
        "gather", "free",    "reduce_micro", "reduce_step", "stats",          "update",          "snapshot", "outer"};
    return names[static_cast<size_t>(kind)];
}
std::string_view name_of(MemoryKind kind) {
    constexpr std::array<std::string_view, kMemoryKinds> names = {
        "weights", "gathered", "gradients", "optimizer", "activations", "workspace", "communication", "input", "snapshot"};
    return names[static_cast<size_t>(kind)];
}
std::string_view name_of(InitKind kind) {
    constexpr std::array<std::string_view, 3> names = {"normal", "ones", "zeros"};
    return names[static_cast<size_t>(kind)];
}
std::string_view name_of(Reduce reduce) { return reduce == Reduce::Sum ? "sum" : "max"; }

}  // namespace lockstep::ir
