// The one data structure of Lockstep: a training step as a value.
//
// A *routine* is code: SSA ops over named dims, no address, layer index, microbatch or learning rate in it. Its *ports* are
// its only connection to the outside. A *call* is a routine whose ports are bound to buffers. An *entry* is the list of
// calls of one kind of step (train, eval), and the only loop of the system. A *state* is what calls leave for later ones.
// Passes turn one Program into the next; print(program) and parse(text) are inverse; verify() states what always holds.
//
// Names are for readers and tell one thing from another. What a thing means is in its kind or role, never in its name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/queues.h"
#include "mesh/collective.h"
#include "mesh/mesh.h"

namespace lockstep::ir {

using mesh::AxisList;
using TensorId = int;  // index into Routine::tensors
using DimId = int;     // index into Routine::dims
using StateId = int;   // index into Program::states

// What a dim counts, as far as passes treat it otherwise than others.
enum class DimRole {
    Other,
    Batch,    // sequences of a microbatch
    Seq,      // tokens of a sequence
    KvSeq,    // the same tokens, as attention's keys and values
    Hidden,   // width of the residual stream
    KvHeads,  // heads of keys and values,
    Group,    // query heads of each,
    HeadDim,  // and their width
    Qkv,      // group + 2. [qkv, kv_heads, head_dim]: the rows of a rank's queries, of its keys, then of its values, in one list
    Ffn,
    Vocab,
    Positions,  // learned ones
    Flat        // elements of a unit's segment
};
constexpr int kDimRoles = 13;
constexpr bool is_of_heads(DimRole role) {
    return role == DimRole::KvHeads || role == DimRole::Group || role == DimRole::HeadDim;
}

// A logical dimension over the whole mesh and one microbatch. Elements at and past `valid` are padding. One that is aligned with
// another (`of`) has an element for each `each` of the other's, in their order: kv_seq where a rank has the keys of its own
// tokens.
struct Dim {
    std::string name;
    int64_t size = 0, valid = 0;
    DimRole role = DimRole::Other;
    DimId of = -1;  // in the list that has this dim; -1: none
    int64_t each = 1;
    bool operator==(const Dim&) const = default;
};

enum class Reduce { Sum, Max };

// Where a tensor is placed. dims: one ordered list of sub-axes per tensor dim, major to minor. partial: the set of sub-axes
// over which the ranks' values must still be combined by `reduce`. The local shape follows and is never stored.
struct Placement {
    std::vector<AxisList> dims;
    AxisList partial;
    Reduce reduce = Reduce::Sum;
    AxisList used() const;  // the sub-axes that shard some dim
    bool operator==(const Placement&) const = default;
};

struct Tensor {
    std::string name;
    Dtype dtype = Dtype::F32;
    std::vector<DimId> dims;
    Placement placement;
    std::string source;         // of a port's tensor: the parameter key, loader input or forward value that it is
    int port = -1;              // index into Routine::ports; -1: a temporary
    int64_t offset_bytes = -1;  // within the port's buffer, or within scratch; -1 until planned
    TensorId view_of = -1;      // a temporary that is another name for this tensor's bytes
    bool operator==(const Tensor&) const = default;
};

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>>;
using Attrs = std::map<std::string, Attr>;

struct Op {
    std::string kind;
    std::vector<TensorId> in, out;
    Attrs attrs;
    AxisList group;               // collectives: the sub-axes they run over, in the order in which ranks are summed
    std::vector<int> accumulate;  // positions in `out` that add into what is there (unless the port is bound fresh)
    std::string kernel;           // set by select_kernels: of the catalog, `comm` or kDeviceCopy
    int64_t workspace_bytes = 0;  // the kernel's own scratch, at workspace_offset_bytes of the routine's scratch
    int64_t workspace_offset_bytes = -1;
    std::string note;  // why it is there, for the reader
    bool operator==(const Op&) const = default;

    int64_t integer(std::string_view key) const;
    double number(std::string_view key) const;
    const std::string& text(std::string_view key) const;
    bool accumulates(int position) const;
    TensorId subject() const;  // its first result; of an op without results, its first operand
};

// The kernel of what copies states for a checkpoint: it goes from one memory to another, which is the device's own work.
inline constexpr std::string_view kDeviceCopy = "device.copy";

enum class EntryKind { Train, Eval, Prefill, Decode, Snapshot, Outer };
constexpr int kEntryKinds = 6;

enum class PortKind {
    Value,      // an activation or cotangent that crosses routines
    Frame,      // values saved by a forward for its backward
    Params,     // parameters, as the unit's gathered (or resident) buffer holds them
    Gradients,  // gradients that this routine adds to
    Input,      // what the loader supplies, in the placement asked for
    State       // what one call leaves for later ones: Program::states
};
constexpr int kPortKinds = 6;
enum class Access { Read, Write, Accumulate, Update };  // Update: reads, then overwrites

// Which value or input it is, where others than its own routine must know.
enum class PortRole {
    None,
    X,   // Value: what the block before gives to this one,
    Y,   // what this block gives to the next,
    DX,  // and their gradients
    DY,
    Logits,
    Ids,  // Input
    Targets,
    Positions,
    Documents,
    Noise,
    KvPositions,
    KvDocuments
};
constexpr int kPortRoles = 13;

struct Port {
    std::string name;
    PortKind kind = PortKind::Value;
    Access access = Access::Read;
    PortRole role = PortRole::None;  // Value, Input
    std::string unit = {};           // Params, Gradients: the parameter unit; empty before partition_parameters
    StateId state = -1;              // State
    int64_t bytes = -1;              // of a bound buffer; set by plan_memory
    bool operator==(const Port&) const = default;
};

enum class RoutineKind {
    Begin,
    Forward,
    Loss,
    Backward,
    BackwardInput,   // only the gradient of a block's input,
    BackwardWeight,  // and, later, those of its weights: together a Backward
    Transfer,        // sends, receives or waits: to or from another pipeline rank
    Fetch,           // a copy of the weights for one entry, split less than they are
    Gather,
    Free,
    ReduceMicro,
    ReduceStep,
    Stats,
    Update,
    Snapshot,
    Outer  // islands meet: the outer optimizer's step on the mean of what they changed
};
constexpr int kRoutineKinds = 16;
inline bool is_forward(RoutineKind kind) { return kind == RoutineKind::Forward || kind == RoutineKind::Loss; }
inline bool is_backward(RoutineKind kind) {
    return kind == RoutineKind::Backward || kind == RoutineKind::BackwardInput || kind == RoutineKind::BackwardWeight;
}

// Does it change weights that outlive the step?
inline bool updates_weights(RoutineKind kind) { return kind == RoutineKind::Update || kind == RoutineKind::Outer; }

struct Routine {
    std::string name;
    std::string block;  // of Forward, Loss, Backward and transfers of their values
    std::string unit;   // of the kinds that serve a unit of parameters; empty as `block` is: once for the whole program
    RoutineKind kind = RoutineKind::Forward;
    EntryKind entry = EntryKind::Train;
    std::vector<int64_t> instances;  // of the block that it serves, ascending; empty: all
    int64_t part = 0;    // its place among the parts of one routine, which are called one after the other (passes/parts.h)
    int64_t chunks = 1;  // the routine is called this many times a microbatch, each time on the next slice of its ports
    std::vector<Dim> dims;
    std::vector<Tensor> tensors;
    std::vector<Port> ports;
    std::vector<Op> ops;
    int64_t scratch_bytes = 0;
    bool operator==(const Routine&) const = default;

    DimId dim(std::string_view name) const;      // -1 where absent
    DimId dim(DimRole role) const;               // the first; -1 where absent
    TensorId find(std::string_view name) const;  // -1 where absent
    int port(std::string_view name) const;       // -1 where absent
    int port(PortRole role) const;               // the first; -1 where absent
    int port_of_state(StateId state) const;      // -1 where absent
    bool serves(int64_t instance) const;
    std::vector<TensorId> port_tensors(int port) const;
};

// Instances have consecutive numbers, which they keep on whichever pipeline rank they are. Those of layers are the layers'
// numbers in the model: of three dense layers before 58 with experts, the first block has 0 to 2 and the second 3 to 60.
struct Block {
    std::string name;
    int64_t count = 1;                         // in the model
    int64_t first = 0;                         // the number of the first of them
    std::optional<std::vector<int64_t>> held;  // by this program, ascending; nothing: all
    bool operator==(const Block&) const = default;

    int64_t last() const { return first + count - 1; }
    std::vector<int64_t> all() const;
    std::vector<int64_t> instances() const;  // that are held
    bool holds(int64_t instance) const;
};

struct BlockInstance {
    std::string block;
    int64_t instance = 0;
    auto operator<=>(const BlockInstance&) const = default;
};

// What a cell of a pipeline schedule runs: consecutive blocks of the model.
struct Stage {
    int64_t index = 0;  // in the model
    std::vector<BlockInstance> blocks;
    bool operator==(const Stage&) const = default;
};

enum class InitKind { Normal, Ones, Zeros };
struct Init {
    InitKind kind = InitKind::Normal;
    double std = 0;             // Normal: cut off at 3 std
    bool depth_scaled = false;  // std is divided by sqrt(2 (layer + 1))
    bool operator==(const Init&) const = default;
};

// A trainable parameter. One per block instance: `name` holds "{}" where the layer index goes.
struct Parameter {
    std::string key, block, name;
    Dtype dtype = Dtype::F32;
    std::vector<Dim> dims;
    Placement placement;
    bool decay = true;
    Init init;
    bool shared = false;           // several blocks add to its gradient
    bool converted = false;        // its products are in 8 bits, as model.converters asks
    std::vector<int64_t> holders;  // pipeline ranks that have it, the one that updates it first; empty: only this one
    bool operator==(const Parameter&) const = default;
};

struct Member {
    std::string param;
    int64_t begin = 0, count = 0;  // local elements, within the segment
    bool operator==(const Member&) const = default;
};

// Parameters of a unit with the same reduction and the same update. Counts are local elements of one rank.
struct Segment {
    AxisList grad_partial, shards;  // partial axes of the gradient; sub-axes that shard the parameters themselves
    bool decay = true;
    int rule = 0;                   // of the optimizer's update rules, the one that serves it: passes/optimizer.h
    int64_t begin = 0, padded = 0;  // within the unit's full buffer
    std::vector<Member> members;
    bool operator==(const Segment&) const = default;
};

// A parameter as a matrix: how many of its dims make its rows; the others make its columns. Dims of heads are one, as in
// Hugging Face's checkpoints. Nothing: it is none, or a table with a row for each token or position.
std::optional<size_t> rows_of_matrix(const Parameter& param);

// Flat padded storage of parameters of one block and one element type. weights | gradients | optimizer: the data sub-axes over
// which each is split.
struct Unit {
    std::string name, block;
    bool mirror = false;  // a copy of parameters that another pipeline rank updates
    int64_t padded = 0;
    AxisList weights, gradients, optimizer;
    // Over which what is gathered is split: the weights; or a copy in the type of forward and backward that each entry fetches,
    // split over fewer ranks (hpZ of arXiv 2306.10209), or whole, and then read as it is.
    AxisList secondary;
    // Element types: of the parameters in forward and backward; of the weights between steps; of the optimizer's weights and
    // moments; of gradients on their way between ranks. (What adds gradients up is float32 at least.)
    Dtype compute = Dtype::F32, storage = Dtype::F32, master = Dtype::F32, reduce = Dtype::F32;
    // Bits of an element of what is gathered of segments with decay, and of their gradients on the way to their shards (qwZ and
    // qgZ of arXiv 2306.10209): 8, 4, or 0, which is as they are.
    int64_t quantized_weights = 0, quantized_gradients = 0;
    std::vector<Segment> segments;
    bool operator==(const Unit&) const = default;

    // Does a call of this routine bind the unit's instance of its own number?
    bool is_of(const Routine& r) const { return r.unit.empty() ? r.block == block : r.unit == name; }

    // Do forward and backward read a buffer that lives for a while, made by `gather` from weights that are split, wider or
    // quantized?
    bool is_gathered() const {
        return is_fetched() ? !secondary.empty() : !weights.empty() || storage != compute || quantized_weights != 0;
    }
    bool is_fetched() const { return secondary != weights; }
    // Do the optimizer's weights lie next to its moments, apart from the weights that forward and backward read?
    bool has_master() const { return master != storage || (quantized_weights != 0 && weights != optimizer); }
};

// What a state is for.
enum class StateRole {
    // Of a unit's parameters:
    Weights,        // as forward and backward read, gather or fetch them
    Secondary,      // the copy of an entry, from which forward and backward gather
    Master,         // the weights that the optimizer changes, where those are apart from Weights
    Moment,         // what the optimizer remembers of past gradients
    Gradients,      // sums over the step
    Reduced,        // the same on the optimizer's shards, where these are smaller than the gradients'
    Copy,           // of the state `copy_of`, made by the entry `snapshot`
    Anchor,         // the weights on which islands agreed when they met last,
    OuterMomentum,  // and what the outer optimizer remembers of its steps
    // Of a block:
    Cache,        // keys and values of sequences that are being generated
    WeightsAmax,  // the largest sizes of weights that are cast to float8; Tensor::source says of which
    // Of the program, one value each:
    Steps,         // optimizer steps that counted
    LearningRate,  // set from outside before each step
    LossSum,
    TargetCount,   // targets of the step that are not masked,
    InverseCount,  // and one divided by it
    TotalLoss,     // of an evaluation, over all ranks that have a part of it
    TotalCount,
    SquaredNorm,  // of the gradients
    Control,      // what updates obey: kernels/step_control.h
    // Where gradients are scaled against underflow:
    LossScale,        // the loss is multiplied by it before backward,
    LossSeed,         // which so begins with InverseCount x LossScale
    GrowthTracker,    // steps since the scale changed that counted,
    LossScaleWindow,  // and how many of them double it
};
constexpr int kStateRoles = 24;

// The state that forward and backward bind as the unit's parameters, or from which these are gathered.
inline StateRole read_role(const Unit& unit) { return unit.is_fetched() ? StateRole::Secondary : StateRole::Weights; }

// How long a state keeps its value.
enum class Scope {
    Step,   // from its first write in a step to the step's end; each entry has its own
    Entry,  // from one step to the next; no checkpoint holds it
    Run     // as long as the training, over restarts too
};
constexpr int kScopes = 3;

struct State {
    std::string name;  // unique among the states of its unit or block, and among those of neither
    StateRole role = StateRole::Weights;
    Scope scope = Scope::Run;
    std::string unit;   // for each instance of the unit one buffer, with an element for each element of its parameters
    std::string block;  // for each instance of the block one buffer. Neither: one in the program, or in each entry (Step)
    Dtype dtype = Dtype::F32;
    AxisList split;                     // of a unit: the data sub-axes over which each segment is split
    std::vector<int> segments;          // of a unit: those that it covers, ascending; empty: all
    int64_t owner = 0;                  // the pipeline rank that changes it; others that have it take it from there
    std::optional<RoutineKind> writer;  // of Entry and Run: the kind of routine that changes it; nothing: set from outside
    std::optional<double> init = 0.0;   // of every element before the first step; nothing: as the parameters' Init says
    std::string saved;     // the name in checkpoints; "{}" stands for a parameter's own name. Empty: not in checkpoints
    StateId copy_of = -1;  // the state whose values it repeats in its own type and split
    Place place = Place::Device;
    bool operator==(const State&) const = default;

    std::string full_name() const;  // "weights.layer"
    bool is_weights() const { return role == StateRole::Weights || role == StateRole::Master; }
    // Has it the values of the weights before the first step?
    bool begins_as_weights() const { return is_weights() || role == StateRole::Anchor; }
    // Do islands have the same values of it between steps?
    bool is_of_all_islands() const { return role == StateRole::Anchor || role == StateRole::OuterMomentum; }
};

enum class MemoryKind { Weights, Gathered, Gradients, Optimizer, Activations, Workspace, Communication, Input, Snapshot };
constexpr int kMemoryKinds = 9;

// Where states and buffers are, if their text does not say otherwise: copies of states in the host's memory, where a device's
// kernels need no room for them; all else in the device's.
constexpr Place usual_place(StateRole role) { return role == StateRole::Copy ? Place::Host : Place::Device; }
constexpr Place usual_place(MemoryKind kind) { return kind == MemoryKind::Snapshot ? Place::Host : Place::Device; }

struct Buffer {
    std::string name;
    MemoryKind kind = MemoryKind::Activations;
    int64_t bytes = 0;
    bool resident = false;      // lives through steps; never shares bytes
    int64_t offset_bytes = -1;  // in the arena of its place; -1 until planned
    StateId state = -1;         // that it holds, of this instance of the state's unit or block
    int64_t instance = 0;
    Place place = Place::Device;  // that of its state
    bool operator==(const Buffer&) const = default;
};

struct Binding {
    int buffer = -1;  // index into Program::buffers; one per port of the routine
    int64_t offset_bytes = 0;
    bool fresh = false;  // Accumulate: the first write of this window, overwrites
    bool operator==(const Binding&) const = default;
};

struct Call {
    int routine = -1;
    int64_t instance = 0, microbatch = 0, chunk = 0;
    std::vector<Binding> bindings;
    int scratch = -1;  // buffer, or -1
    QueueName queue = QueueName::Compute;
    std::vector<int> waits;  // indices of earlier calls of the entry that must have ended
    bool operator==(const Call&) const = default;
};

struct Entry {
    EntryKind kind = EntryKind::Train;
    std::vector<Call> calls;
    int64_t fragment = 0;  // of Outer: which part of the model
    bool operator==(const Entry&) const = default;
};

// What one pipeline rank runs: every rank of its mesh the same.
struct Program {
    mesh::Mesh mesh;
    int64_t pipeline_rank = 0;
    std::vector<Stage> stages;  // of this pipeline rank, ascending; none: one stage of all blocks
    int64_t microbatches = 1;
    int64_t head_tail = 1;  // blocks of the sequence in training and evaluation, whose order is that of mesh/order.h
    std::vector<Block> blocks;
    std::vector<Parameter> params;
    std::vector<Unit> units;
    std::vector<State> states;
    std::vector<Routine> routines;
    std::vector<Buffer> buffers;
    std::vector<Entry> entries;
    ByPlace<int64_t> arena_bytes;  // 0 before plan_memory
    bool operator==(const Program&) const = default;

    const Parameter* param(std::string_view key) const;
    const Block* block(std::string_view name) const;
    std::vector<BlockInstance> block_instances() const;      // that are held, in the order of the model
    std::vector<int64_t> instances(const Unit& unit) const;  // that are here: those its block holds, of a mirror all
    const Unit* unit(std::string_view name) const;
    const Routine* routine(std::string_view name) const;
    // The first of a block or unit, or of neither ("").
    const Routine* routine(RoutineKind kind, std::string_view of, EntryKind entry = EntryKind::Train) const;
    int routine_index(std::string_view name) const;
    const Entry* entry(EntryKind kind, int64_t fragment = 0) const;
    int buffer(std::string_view name) const;
    int buffer(StateId state, int64_t instance) const;  // -1 where absent

    // The first state of a role, of a unit or of none; -1 where absent.
    StateId state(StateRole role, std::string_view unit = "") const;
    StateId add(State state);
    Port port(StateId state, Access access) const;  // called as the state is
    // Of a State port.
    const State& state_of(const Port& port) const { return states[static_cast<size_t>(port.state)]; }
    bool has_role(const Port& port, StateRole role) const;
    // Of its state; the device's, if it is not of a state.
    Place place_of(const Port& port) const { return port.state >= 0 ? state_of(port).place : Place::Device; }
    // Of a unit's state: does it cover the segment; where the segment begins in it, and how long it is, in elements of one rank
    // before it is split.
    static bool covers(const State& state, int segment);
    int64_t begin_in(const State& state, int segment) const;
    int64_t elements(const State& state) const;
    // Whose parameters, gradients or states the port binds; nullptr: of none.
    const Unit* unit_of(const Port& port) const;
};

// The row of the op in the table of collectives (mesh/collective.h). Throws InternalError for an op that is none.
mesh::Collective collective_of(const Op& op);
inline const mesh::CollectiveTraits& traits_of(const Op& op) { return mesh::traits_of(collective_of(op)); }
inline bool is_collective(const Op& op, mesh::Collective kind) { return mesh::collective_named(op.kind) == kind; }
// Send, Recv or Wait: `t` goes to pipeline rank `peer`, or comes from it.
Op point_to_point(const mesh::Mesh& mesh, mesh::Collective kind, TensorId t, int64_t peer);

// The most sends from one rank to another that may be in flight: sent, and not waited for.
constexpr int kSendsInFlight = 64;

// The members of a collective, by position: `group`, which is that of its sub-axes (Mesh::group); of a send, receive or wait
// (attribute `peer`) the sender, then the receiver.
std::vector<int64_t> members_of(const Program& program, const Op& op, const std::vector<int64_t>& group);

// Is it a collective with ranks of other stages?
bool crosses_pipeline(const Program& program, const Op& op);

// Is an operand or a result outside of the device's memory, where no kernel reaches it?
bool leaves_device(const Program& program, const Routine& routine, const Op& op);

// Does it send or receive gradients or weights of a parameter that several pipeline ranks have?
bool exchanges_states(const Routine& routine);

// Local sizes of a tensor on any rank (sizes never depend on the rank).
int64_t local_size(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor, int position);
int64_t local_elements(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor);
int64_t local_bytes(const mesh::Mesh& mesh, const Routine& routine, const Tensor& tensor);
int64_t local_elements(const mesh::Mesh& mesh, const Parameter& param);
int64_t global_elements(const Routine& routine, const Tensor& tensor);

std::string_view name_of(DimRole role);
std::string_view name_of(EntryKind kind);
std::string_view name_of(PortKind kind);
std::string_view name_of(PortRole role);
std::string_view name_of(StateRole role);
std::string_view name_of(Scope scope);
std::string_view name_of(Access access);
std::string_view name_of(RoutineKind kind);
std::string_view name_of(MemoryKind kind);
std::string_view name_of(InitKind kind);
std::string_view name_of(Reduce reduce);

}  // namespace lockstep::ir
