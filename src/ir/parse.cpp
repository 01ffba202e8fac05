#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "ir/cursor.h"
#include "ir/text.h"

namespace lockstep::ir {
namespace {

template <class E>
std::optional<E> enum_called(std::string_view word, int count) {
    for (int i = 0; i < count; ++i) {
        if (name_of(static_cast<E>(i)) == word) return static_cast<E>(i);
    }
    return std::nullopt;
}

template <class E>
E enum_from(std::string_view word, int count, int line) {
    if (const auto known = enum_called<E>(word, count)) return *known;
    throw UserError("ir.syntax", "", fmt::format("program text, line {}: '{}' is not a word known here", line, word));
}

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Program run() {
        int number = 0;
        for (std::string_view text = text_; !text.empty();) {
            const size_t end = std::min(text.find('\n'), text.size());
            std::string_view line = text.substr(0, end);
            text.remove_prefix(std::min(end + 1, text.size()));
            ++number;
            const size_t first = line.find_first_not_of(' ');
            if (first == std::string_view::npos || line[first] == '#') continue;  // empty, or a comment
            Cursor c(line, number);
            statement(c);
        }
        return std::move(program_);
    }

private:
    void statement(Cursor& c) {
        if (c.accept_word("mesh")) return mesh(c);
        if (c.accept_word("microbatches")) return void(program_.microbatches = c.integer());
        if (c.accept_word("head_tail")) return void(program_.head_tail = c.integer(2, kMostRanks));
        if (c.accept_word("arena")) return void(program_.arena_bytes[Place::Device] = c.integer());
        if (c.accept_word("host_arena")) return void(program_.arena_bytes[Place::Host] = c.integer());
        if (c.accept_word("block")) return block(c);
        if (c.accept_word("pipeline_rank")) return void(program_.pipeline_rank = c.integer());
        if (c.accept_word("stage")) return stage(c);
        if (c.accept_word("param")) return param(c);
        if (c.accept_word("unit")) return unit(c);
        if (c.accept_word("segment")) return segment(c);
        if (c.accept_word("state")) return state(c);
        if (c.accept_word("routine")) return routine(c);
        if (c.accept_word("buffer")) return buffer(c);
        if (c.accept_word("entry")) return entry(c);
        if (c.accept_word("call")) return call(c);
        if (program_.routines.empty()) c.fail("a statement");
        Routine& r = program_.routines.back();
        if (c.accept_word("instances")) {
            while (!c.at_end()) r.instances.push_back(c.integer());
            return;
        }
        if (c.accept_word("dims")) {
            while (!c.at_end()) r.dims.push_back(dim(c, r.dims));
            return;
        }
        if (c.accept_word("port")) return port(c, r);
        line_of_routine(c, r);
    }

    void block(Cursor& c) {
        Block b;
        b.name = c.name();
        c.expect("x");
        b.count = c.integer(0, kMostInstances);
        if (c.accept_word("first")) b.first = c.integer(0, kMostInstances);
        if (c.accept_word("held")) {
            b.held.emplace();
            while (!c.at_end()) b.held->push_back(c.integer());
        }
        program_.blocks.push_back(std::move(b));
    }

    void stage(Cursor& c) {
        Stage s;
        s.index = c.integer();
        while (!c.at_end()) {
            const std::string block = c.name();
            s.blocks.push_back({block, c.integer()});
        }
        program_.stages.push_back(std::move(s));
    }

    void mesh(Cursor& c) {
        mesh::Mesh& m = program_.mesh;
        for (mesh::Axis a : mesh::kAxes) {
            const bool optional = a == mesh::Axis::island || a == mesh::Axis::pp;  // left out where it is 1
            if (optional && !c.accept_word(mesh::name_of(a))) continue;
            if (!optional) c.expect(mesh::name_of(a));
            c.expect("=");
            m.degrees[static_cast<size_t>(a)] = c.integer(1, kMostRanks);
        }
        while (!c.at_end()) {
            const std::string axis = c.name();
            mesh::SubAxis s{};
            bool known = false;
            for (mesh::Axis a : mesh::kAxes) {
                if (mesh::name_of(a) == axis) s.axis = a, known = true;
            }
            if (!known) c.fail("an axis name");
            c.expect(":(");
            s.pre = c.integer(1, kMostRanks);
            c.expect(")");
            s.size = c.integer(2, kMostRanks / (m.size(m.world()) * m.size(m.whole(mesh::Axis::island))));
            m.sub_axes.push_back(s);
        }
    }

    AxisList axes(Cursor& c, std::string_view stops) {
        std::string text = c.until(stops);
        if (text == "-") return {};
        for (char& ch : text) {
            if (ch == '/') ch = ',';
        }
        auto list = program_.mesh.parse(text);
        if (!list) c.fail(fmt::format("sub-axes of the mesh instead of '{}'", text));
        return *list;
    }

    static Dim dim(Cursor& c, const std::vector<Dim>& before) {
        Dim d;
        d.name = c.name();
        d.role = dim_role_called(d.name);
        if (const size_t at = d.name.find('@'); at != std::string::npos) {
            d.role = enum_from<DimRole>(d.name.substr(at + 1), kDimRoles, c.line());
            d.name.resize(at);
        }
        c.expect("=");
        d.size = d.valid = c.integer(0);
        if (c.accept(":")) d.valid = c.integer(0, d.size);
        if (!c.accept("(")) return d;
        const std::string of = c.until("/");
        const auto at = std::find_if(before.begin(), before.end(), [&](const Dim& other) { return other.name == of; });
        if (at == before.end()) c.fail(fmt::format("a dim before this one instead of '{}'", of));
        d.of = static_cast<DimId>(at - before.begin());
        c.expect("/");
        d.each = c.integer(1);
        c.expect(")");
        return d;
    }

    static Dtype dtype(Cursor& c) {
        const auto t = dtype_from(c.until("["));
        if (!t) c.fail("an element type");
        return *t;
    }

    void param(Cursor& c) {
        Parameter p;
        p.key = c.name();
        c.expect(":");
        p.dtype = dtype(c);
        c.expect("[");
        while (!c.accept("]")) {
            p.dims.push_back(dim(c, p.dims));
            p.placement.dims.push_back(c.accept("/") ? axes(c, ", ]") : AxisList{});
            c.accept(",");
        }
        if (c.accept("?")) p.placement = {};
        c.expect("block");
        p.block = c.name();
        c.expect("name");
        p.name = c.name();
        c.expect("decay");
        p.decay = c.integer() != 0;
        c.expect("init");
        p.init.kind = enum_from<InitKind>(c.name(), 3, c.line());
        p.init.std = c.number();
        p.init.depth_scaled = c.integer() != 0;
        p.shared = c.accept_word("shared");
        p.converted = c.accept_word("converted");
        if (c.accept_word("holders")) {
            while (!c.at_end()) p.holders.push_back(c.integer());
        }
        program_.params.push_back(std::move(p));
    }

    void entry(Cursor& c) {
        program_.entries.push_back({enum_from<EntryKind>(c.name(), kEntryKinds, c.line()), {}});
        if (c.accept_word("fragment")) program_.entries.back().fragment = c.integer();
    }

    void unit(Cursor& c) {
        Unit u;
        u.name = c.name();
        u.block = c.accept_word("of") ? c.name() : u.name;
        c.expect("padded");
        u.padded = c.integer();
        c.expect("weights");
        u.weights = axes(c, " ");
        u.secondary = c.accept_word("secondary") ? axes(c, " ") : u.weights;
        c.expect("gradients");
        u.gradients = axes(c, " ");
        c.expect("optimizer");
        u.optimizer = axes(c, " ");
        c.expect("types");
        for (Dtype* t : {&u.compute, &u.storage, &u.master, &u.reduce}) {
            const auto type = dtype_from(c.name());
            if (!type) c.fail("an element type");
            *t = *type;
        }
        if (c.accept_word("quantized_weights")) u.quantized_weights = c.integer();
        if (c.accept_word("quantized_gradients")) u.quantized_gradients = c.integer();
        u.mirror = c.accept_word("mirror");
        program_.units.push_back(std::move(u));
    }

    void segment(Cursor& c) {
        if (program_.units.empty()) c.fail("a unit before its segment");
        Segment s;
        c.expect("begin");
        s.begin = c.integer();
        c.expect("padded");
        s.padded = c.integer();
        c.expect("decay");
        s.decay = c.integer() != 0;
        if (c.accept_word("rule")) s.rule = static_cast<int>(c.integer());
        c.expect("gradients partial");
        s.grad_partial = axes(c, " ");
        c.expect("sharded");
        s.shards = axes(c, " ");
        c.expect(":");
        while (!c.at_end()) {
            Member m;
            m.param = c.until("+");
            c.expect("+");
            m.begin = c.integer();
            c.expect("=");
            m.count = c.integer();
            s.members.push_back(std::move(m));
        }
        program_.units.back().segments.push_back(std::move(s));
    }

    void state(Cursor& c) {
        State s;
        s.name = c.name();
        if (c.accept_word("unit")) s.unit = c.name();
        if (c.accept_word("block")) s.block = c.name();
        c.expect("role");
        s.role = enum_from<StateRole>(c.name(), kStateRoles, c.line());
        c.expect("scope");
        s.scope = enum_from<Scope>(c.name(), kScopes, c.line());
        const auto type = dtype_from(c.name());
        if (!type) c.fail("an element type");
        s.dtype = *type;
        if (c.accept_word("split")) s.split = axes(c, " ");
        if (c.accept_word("segments")) {
            do s.segments.push_back(static_cast<int>(c.integer(0, kMostInstances)));
            while (c.accept(","));
        }
        if (c.accept_word("owner")) s.owner = c.integer(0, kMostRanks);
        if (c.accept_word("writer")) s.writer = enum_from<RoutineKind>(c.name(), kRoutineKinds, c.line());
        c.expect("init");
        s.init.reset();
        if (!c.accept_word("parameters")) s.init = c.number();
        if (c.accept_word("saved")) s.saved = c.name();
        if (c.accept_word("copy_of")) s.copy_of = state_id(c, c.name());
        s.place = place(c, usual_place(s.role));
        if (!state_ids_.emplace(s.full_name(), static_cast<StateId>(program_.states.size())).second)
            c.fail(fmt::format("a new state instead of '{}'", s.full_name()));
        program_.states.push_back(std::move(s));
    }

    static Place place(Cursor& c, Place usual) {
        return c.accept_word("place") ? enum_from<Place>(c.name(), kPlaces.size(), c.line()) : usual;
    }

    StateId state_id(Cursor& c, const std::string& name) const {
        const auto it = state_ids_.find(name);
        if (it == state_ids_.end()) c.fail(fmt::format("a state instead of '{}'", name));
        return it->second;
    }

    void routine(Cursor& c) {
        Routine r;
        r.name = c.name();
        c.expect("block");
        r.block = c.name();
        if (r.block == "-") r.block.clear();
        if (c.accept_word("unit")) r.unit = c.name();
        c.expect("kind");
        r.kind = enum_from<RoutineKind>(c.name(), kRoutineKinds, c.line());
        c.expect("entry");
        r.entry = enum_from<EntryKind>(c.name(), kEntryKinds, c.line());
        if (c.accept_word("part")) r.part = c.integer();
        c.expect("chunks");
        r.chunks = c.integer();
        c.expect("scratch");
        r.scratch_bytes = c.integer();
        routine_ids_.emplace(r.name, static_cast<int>(program_.routines.size()));
        tensor_ids_.clear();
        program_.routines.push_back(std::move(r));
    }

    void port(Cursor& c, Routine& r) {
        Port p;
        p.name = c.name();
        p.kind = enum_from<PortKind>(c.name(), kPortKinds, c.line());
        p.access = enum_from<Access>(c.name(), 4, c.line());
        p.role = port_role_called(p.name, p.kind);
        if (c.accept_word("role")) p.role = enum_from<PortRole>(c.name(), kPortRoles, c.line());
        if (c.accept_word("unit")) p.unit = c.name();
        if (p.kind == PortKind::State) {
            c.expect("of");
            p.state = state_id(c, c.name());
        }
        if (c.accept_word("bytes")) p.bytes = c.integer();
        r.ports.push_back(std::move(p));
    }

    TensorId tensor(Cursor& c, Routine& r, std::string name, int port) {
        Tensor t;
        t.name = std::move(name);
        t.port = port;
        t.dtype = dtype(c);
        c.expect("[");
        int64_t elements = 1;
        while (!c.accept("]")) {
            const std::string dim = c.until("/, ]");
            t.dims.push_back(r.dim(dim));
            if (t.dims.back() < 0) c.fail(fmt::format("a dim of the routine instead of '{}'", dim));
            const int64_t size = r.dims[static_cast<size_t>(t.dims.back())].size;
            if (size > 0 && elements > kMostBytes / size) c.fail(fmt::format("a tensor of at most {} elements", kMostBytes));
            elements *= size;
            t.placement.dims.push_back(c.accept("/") ? axes(c, ", ]") : AxisList{});
            c.accept(",");
        }
        if (c.accept("?")) t.placement = {};
        if (c.accept_word("partial")) {
            t.placement.reduce = enum_from<Reduce>(c.name(), 2, c.line());
            t.placement.partial = axes(c, " ;");
        }
        if (c.accept_word("from")) t.source = c.name();
        if (c.accept("&")) t.offset_bytes = c.integer();
        if (c.accept_word("view")) t.view_of = known(c, c.until(";= "));
        if (!tensor_ids_.emplace(t.name, static_cast<TensorId>(r.tensors.size())).second)
            c.fail(fmt::format("a new name instead of '{}'", t.name));
        r.tensors.push_back(std::move(t));
        return static_cast<TensorId>(r.tensors.size() - 1);
    }

    // A tensor of the last port, or an op: "a: type; +b = kind(x, y) {k=v} over axes kernel k workspace n at n  # note".
    void line_of_routine(Cursor& c, Routine& r) {
        Op op;
        while (!c.accept("=")) {
            if (c.accept("+")) op.accumulate.push_back(static_cast<int>(op.out.size()));
            const std::string name = c.until(":;= ");
            if (name.empty()) c.fail("the name of a tensor");
            if (c.accept(":")) {
                const bool is_port = !r.ports.empty() && r.ops.empty() && op.out.empty();
                const TensorId t = tensor(c, r, name, -1);
                if (c.at_end() && is_port) return void(r.tensors[t].port = static_cast<int>(r.ports.size()) - 1);
                op.out.push_back(t);
            } else {
                op.out.push_back(known(c, name));
            }
            c.accept(";");
        }
        op.kind = c.until("(");
        c.expect("(");
        while (!c.accept(")")) {
            op.in.push_back(known(c, c.until(",)")));
            c.accept(",");
        }
        if (c.accept("{")) {
            while (!c.accept("}")) {
                const std::string key = c.until("=");
                c.expect("=");
                op.attrs[key] = c.attribute();
                c.accept(",");
            }
        }
        if (c.accept_word("over")) op.group = axes(c, " ");
        if (c.accept_word("kernel")) op.kernel = c.name();
        if (c.accept_word("workspace")) op.workspace_bytes = c.integer();
        if (c.accept_word("at")) op.workspace_offset_bytes = c.integer();
        if (c.accept("#")) op.note = c.rest();
        if (!c.at_end()) c.fail("the end of the op");
        r.ops.push_back(std::move(op));
    }

    TensorId known(Cursor& c, const std::string& name) const {
        const auto it = tensor_ids_.find(name);
        if (it == tensor_ids_.end()) c.fail(fmt::format("a tensor defined before instead of '{}'", name));
        return it->second;
    }

    void buffer(Cursor& c) {
        Buffer b;
        b.name = c.name();
        b.kind = enum_from<MemoryKind>(c.name(), kMemoryKinds, c.line());
        c.expect("bytes");
        b.bytes = c.integer();
        c.expect("resident");
        b.resident = c.integer() != 0;
        c.expect("at");
        b.offset_bytes = c.integer();
        if (c.accept_word("of")) {
            b.state = state_id(c, c.name());
            b.instance = c.integer(0, kMostInstances);
        }
        b.place = place(c, usual_place(b.kind));
        buffer_ids_[b.name] = static_cast<int>(program_.buffers.size());
        program_.buffers.push_back(std::move(b));
    }

    int buffer_id(Cursor& c, const std::string& name) {
        auto it = buffer_ids_.find(name);
        if (it == buffer_ids_.end()) c.fail(fmt::format("a buffer instead of '{}'", name));
        return it->second;
    }

    void call(Cursor& c) {
        if (program_.entries.empty()) c.fail("an entry before its calls");
        Call k;
        const std::string name = c.name();
        const auto routine = routine_ids_.find(name);
        if (routine == routine_ids_.end()) c.fail(fmt::format("a routine instead of '{}'", name));
        k.routine = routine->second;
        c.expect("instance");
        k.instance = c.integer();
        c.expect("microbatch");
        k.microbatch = c.integer();
        c.expect("chunk");
        k.chunk = c.integer();
        c.expect("stream");
        k.queue = enum_from<QueueName>(c.name(), kStepQueues, c.line());
        if (c.accept_word("waits")) {
            do k.waits.push_back(static_cast<int>(c.integer()));
            while (c.accept(","));
        }
        if (c.accept_word("scratch")) k.scratch = buffer_id(c, c.name());
        c.expect(":");
        const std::vector<Port>& ports = program_.routines[static_cast<size_t>(k.routine)].ports;
        while (!c.at_end()) {
            Binding b;
            const std::string port = c.until("=");
            c.expect("=");
            b.buffer = buffer_id(c, c.until("+! "));
            const size_t next = k.bindings.size();
            if (next == ports.size()) c.fail(fmt::format("the end of the call instead of '{}', as all ports are bound", port));
            if (port != ports[next].name) c.fail(fmt::format("the port '{}' instead of '{}'", ports[next].name, port));
            if (c.accept("+")) b.offset_bytes = c.integer();
            b.fresh = c.accept("!");
            k.bindings.push_back(b);
        }
        program_.entries.back().calls.push_back(std::move(k));
    }

    std::string_view text_;
    Program program_;
    // By name, so that long texts take no longer a line than short ones. Tensors: of the last routine.
    std::unordered_map<std::string, int> buffer_ids_, routine_ids_, state_ids_;
    std::unordered_map<std::string, TensorId> tensor_ids_;
};

}  // namespace

Program parse(std::string_view text) { return Parser(text).run(); }

DimRole dim_role_called(std::string_view name) { return enum_called<DimRole>(name, kDimRoles).value_or(DimRole::Other); }

PortRole port_role_called(std::string_view name, PortKind kind) {
    const bool may_have_one = kind == PortKind::Value || kind == PortKind::Input;
    return may_have_one ? enum_called<PortRole>(name, kPortRoles).value_or(PortRole::None) : PortRole::None;
}

}  // namespace lockstep::ir
