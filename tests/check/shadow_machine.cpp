#include "shadow_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lockstep::check_test {
namespace {

using ir::Op;
using ir::RoutineKind;
using ir::TensorId;

struct Broken : std::runtime_error {
    using std::runtime_error::runtime_error;
};

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
}
uint64_t mix(uint64_t a, uint64_t b, uint64_t c) { return mix(mix(a, b), c); }
uint64_t hash_of(const std::string& text) {
    uint64_t h = 7;
    for (char c : text) h = mix(h, static_cast<unsigned char>(c));
    return h;
}

struct Range {
    int64_t begin = 0, bytes = 0;  // of the arenas, the host's behind the device's
    int64_t end() const { return begin + bytes; }
    bool operator==(const Range&) const = default;
    bool overlaps(const Range& o) const { return begin < o.end() && o.begin < end(); }
};

// Results that kernels put where they read, by op, result and operand, whatever the program says; `through` where the kernel
// finds the operand at the result's address. Written down from the kernels.
struct Over {
    const char* op;
    size_t result, operand;
    bool through;
};
constexpr Over kOver[] = {{"adamw", 0, 0, false},
                          {"adamw", 1, 2, true},
                          {"adamw", 2, 3, true},
                          {"adam", 0, 0, false},
                          {"adam", 1, 2, true},
                          {"adam", 2, 3, true},
                          {"sgd", 0, 0, false},
                          {"sgd", 1, 2, true},
                          {"muon", 0, 0, false},
                          {"muon_momentum", 1, 1, true},
                          {"step_control", 1, 3, true},
                          {"append", 0, 0, true},
                          {"update_loss_scale", 0, 0, false},
                          {"update_loss_scale", 1, 1, false}};

// The operand over which a kernel that says in_place writes its first result.
size_t in_place_operand(const Op& op) {
    return op.kind == "cross_entropy_backward" || op.kind == "cross_entropy_gradient" ? 2 : 0;
}

// A call that runs: one op at a time, each in two halves.
struct Running {
    const ir::Entry* entry = nullptr;
    std::vector<size_t> calls;  // of the entry, in order
    size_t next = 0;            // in `calls`
    size_t op = 0;
    bool begun = false;  // the op
    uint64_t first_reading = 0;
    bool done() const { return next == calls.size(); }
};

class ShadowMachine {
public:
    ShadowMachine(const ir::Program& program, Order order) : p_(program), order_(order), random_(11) {
        if (p_.arena_bytes[Place::Device] < 0 || p_.arena_bytes[Place::Host] < 0) throw Broken("no arena");
        for (int64_t i = 0; i < all_bytes(); ++i)
            arena_.push_back(mix(1, static_cast<uint64_t>(all_bytes()), static_cast<uint64_t>(i)));
        for (const auto& [buffer, bytes] : kept()) {
            const Range range = in_arena(p_.buffers[buffer], bytes, "a state");
            for (int64_t i = 0; i < bytes; ++i) arena_[range.begin + i] = mix(2, hash_of(p_.buffers[buffer].name), i);
        }
    }

    Shadow run() {
        for (step_ = 0; step_ < 2; ++step_) {
            for (const ir::Entry& e : p_.entries) {
                if (e.kind == ir::EntryKind::Snapshot) continue;
                const ir::Entry* beside = e.kind == ir::EntryKind::Train ? p_.entry(ir::EntryKind::Snapshot) : nullptr;
                run(e, beside);
                observe_results(e);
            }
        }
        for (const auto& [buffer, bytes] : kept())
            observe(hash_of(p_.buffers[buffer].name), in_arena(p_.buffers[buffer], bytes, "a state"));
        return {"", observed_, spoilt_};
    }

private:
    const ir::Routine& routine(const ir::Call& c) const { return p_.routines[static_cast<size_t>(c.routine)]; }

    // Buffers that keep their bytes between entries, and how many of them.
    std::map<size_t, int64_t> kept() const {
        std::map<size_t, int64_t> out;
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                for (size_t k = 0; k < c.bindings.size(); ++k) {
                    const ir::Port& port = routine(c).ports[k];
                    const ir::Buffer& b = p_.buffers[static_cast<size_t>(c.bindings[k].buffer)];
                    const bool weights = port.kind == ir::PortKind::Params && b.state >= 0;
                    const bool state =
                        port.kind == ir::PortKind::State && p_.states[static_cast<size_t>(port.state)].scope != ir::Scope::Step;
                    if (!weights && !state && port.kind != ir::PortKind::Input) continue;
                    int64_t& bytes = out[static_cast<size_t>(c.bindings[k].buffer)];
                    for (TensorId t : routine(c).port_tensors(static_cast<int>(k))) {
                        const ir::Tensor& x = routine(c).tensors[static_cast<size_t>(t)];
                        bytes = std::max(bytes, c.bindings[k].offset_bytes + x.offset_bytes + size_of(routine(c), t));
                    }
                }
            }
        }
        return out;
    }
    int64_t size_of(const ir::Routine& r, TensorId t) const {
        return ir::local_bytes(p_.mesh, r, r.tensors[static_cast<size_t>(t)]);
    }

    static Range within(Range r, int64_t begin, int64_t end, const char* what) {
        if (r.bytes < 0 || r.begin < begin || r.end() > end) throw Broken(fmt::format("{} lies outside", what));
        return r;
    }
    int64_t all_bytes() const { return p_.arena_bytes[Place::Device] + p_.arena_bytes[Place::Host]; }
    static bool is_on_host(const ir::Buffer& b) { return b.place == Place::Host; }
    Range in_arena(const ir::Buffer& b, int64_t bytes, const char* what) const {
        const Range arena = is_on_host(b) ? Range{p_.arena_bytes[Place::Device], p_.arena_bytes[Place::Host]}
                                          : Range{0, p_.arena_bytes[Place::Device]};
        return within({arena.begin + b.offset_bytes, bytes}, arena.begin, arena.end(), what);
    }
    Range buffer(int index) const {
        const ir::Buffer& b = p_.buffers.at(static_cast<size_t>(index));
        return in_arena(b, b.bytes, "a buffer");
    }
    // As Executor::prepare and run_call find it, and inside what it has to be inside.
    Range range_of(const ir::Call& c, TensorId t) const {
        const ir::Routine& r = routine(c);
        TensorId root = t;
        for (size_t i = 0; r.tensors.at(static_cast<size_t>(root)).view_of >= 0; ++i) {
            root = r.tensors[static_cast<size_t>(root)].view_of;
            if (i > r.tensors.size()) throw Broken("views in a circle");
        }
        const ir::Tensor& x = r.tensors[static_cast<size_t>(root)];
        if (x.offset_bytes % bytes_of(r.tensors[static_cast<size_t>(t)].dtype) != 0)
            throw Broken("a tensor begins between elements");
        if (x.port < 0) {
            const Range scratch = scratch_of(c);
            return within({scratch.begin + x.offset_bytes, size_of(r, t)}, scratch.begin, scratch.begin + r.scratch_bytes,
                          "a temporary");
        }
        const ir::Binding& b = c.bindings[static_cast<size_t>(x.port)];
        const Range whole = buffer(b.buffer);
        const Range port = within({whole.begin + b.offset_bytes, r.ports[static_cast<size_t>(x.port)].bytes}, whole.begin,
                                  whole.end(), "a port");
        return within({port.begin + x.offset_bytes, size_of(r, t)}, port.begin, port.end(), "a port's tensor");
    }
    Range scratch_of(const ir::Call& c) const {
        if (c.scratch < 0) throw Broken("no scratch");
        const Range all = buffer(c.scratch);
        return within({all.begin, routine(c).scratch_bytes}, all.begin, all.end(), "the scratch");
    }
    std::vector<Range> ranges(const ir::Call& c, const std::vector<TensorId>& tensors) const {
        std::vector<Range> out;
        for (TensorId t : tensors) out.push_back(range_of(c, t));
        return out;
    }

    uint64_t digest(const Range& r) const {
        uint64_t a = 0, b = 0;
        for (int64_t i = r.begin; i < r.end(); ++i) a += arena_[i], b += a;  // order matters
        return mix(a, b);
    }
    void fill(const Range& r, uint64_t seed) {
        for (int64_t i = 0; i < r.bytes; ++i) arena_[r.begin + i] = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
    }
    uint64_t garbage() { return mix(3, ++garbage_); }
    void observe(uint64_t what, const Range& r) { observed_ += mix(4, what, digest(r)); }

    void observe_results(const ir::Entry& e) {
        for (const ir::Call& c : e.calls) {
            for (size_t k = 0; k < c.bindings.size(); ++k) {
                const ir::Port& port = routine(c).ports[k];
                const bool result = port.role == ir::PortRole::Logits || p_.has_role(port, ir::StateRole::Control) ||
                                    p_.has_role(port, ir::StateRole::TotalLoss) || p_.has_role(port, ir::StateRole::TotalCount);
                if (!result || port.access == ir::Access::Read) continue;
                // Where whoever runs the entry looks: at the buffer's beginning.
                for (TensorId t : routine(c).port_tensors(static_cast<int>(k)))
                    observe(mix(step_, hash_of(port.name), hash_of(routine(c).name)),
                            within({buffer(c.bindings[k].buffer).begin, size_of(routine(c), t)}, 0, all_bytes(), "a result"));
            }
        }
    }

    // The queues of the entry, and behind them the snapshot that is copied at the same time.
    static constexpr size_t kSnapshot = kStepQueues;
    using Streams = std::array<Running, kStepQueues + 1>;
    void run(const ir::Entry& e, const ir::Entry* beside) {
        Streams streams;
        for (Running& s : streams) s.entry = &e;
        streams[kSnapshot].entry = beside;
        for (size_t i = 0; i < e.calls.size(); ++i) streams[static_cast<size_t>(e.calls[i].queue)].calls.push_back(i);
        for (size_t i = 0; beside && i < beside->calls.size(); ++i) streams[kSnapshot].calls.push_back(i);
        std::vector<bool> ended(e.calls.size(), false);
        while (true) {
            std::vector<size_t> ready;
            for (size_t s = 0; s < streams.size(); ++s) {
                if (streams[s].done()) continue;
                const ir::Call& c = streams[s].entry->calls[streams[s].calls[streams[s].next]];
                const bool waits =
                    s != kSnapshot && std::any_of(c.waits.begin(), c.waits.end(), [&](int w) { return !ended[w]; });
                const bool held_up = s != kSnapshot && routine(c).kind == RoutineKind::Update && !streams[kSnapshot].done();
                if (!waits && !held_up) ready.push_back(s);
            }
            if (ready.empty()) break;
            Running& s = streams[choose(ready, streams)];
            const size_t call = s.calls[s.next];
            if (half(s) && &s != &streams[kSnapshot]) ended[call] = true;
        }
        for (const Running& s : streams) {
            if (!s.done()) throw Broken("calls wait for each other");
        }
    }
    size_t choose(const std::vector<size_t>& ready, const Streams& streams) {
        const auto at = [&](size_t s) { return streams[s].calls[streams[s].next]; };
        switch (order_) {
            case Order::ComputeFirst: return ready.front();
            case Order::CommFirst: return ready.back();
            case Order::Random: return ready[random_() % ready.size()];
            case Order::OfTheList: break;
        }
        if (ready.back() == kSnapshot) return kSnapshot;
        return *std::min_element(ready.begin(), ready.end(), [&](size_t a, size_t b) { return at(a) < at(b); });
    }

    // Half an op of the stream's call. True: the call has ended.
    bool half(Running& s) {
        const size_t index = s.calls[s.next];
        const ir::Call& c = s.entry->calls[index];
        const ir::Routine& r = routine(c);
        if (s.op == 0 && !s.begun) start(c);
        if (s.op < r.ops.size()) {
            const Op& op = r.ops[s.op];
            const uint64_t seed = mix(mix(static_cast<uint64_t>(s.entry->kind), step_, index), s.op);
            if ((op.kind == "rename" || op.kind == "block") && r.tensors[static_cast<size_t>(op.out[0])].view_of >= 0) {
                ++s.op;
            } else if (!s.begun) {
                s.first_reading = begin(c, op, seed);
                s.begun = true;
            } else {
                end(c, op, seed, s.first_reading, fresh(c, s.op));
                s.begun = false, ++s.op;
            }
        }
        if (s.op < r.ops.size()) return false;
        s.op = 0, ++s.next;
        return true;
    }

    // Kernels find what they use in the device's memory. A snapshot is copied from there to the host's, where the saver reads it.
    void reach(const ir::Call& c) const {
        const auto is_reached = [&](int buffer, bool is_copy) {
            return is_on_host(p_.buffers.at(static_cast<size_t>(buffer))) == is_copy;
        };
        for (size_t k = 0; k < c.bindings.size(); ++k) {
            const bool is_copy = routine(c).kind == RoutineKind::Snapshot && routine(c).ports[k].access != ir::Access::Read;
            if (!is_reached(c.bindings[k].buffer, is_copy)) throw Broken("a buffer in the other memory");
        }
        if (c.scratch >= 0 && !is_reached(c.scratch, false)) throw Broken("a scratch in the other memory");
    }

    // Every tensor that the call binds is where it can be; and, as with debug_fill, scratch and freed bytes hold garbage.
    void start(const ir::Call& c) {
        const ir::Routine& r = routine(c);
        reach(c);
        for (size_t t = 0; t < r.tensors.size(); ++t) {
            if (r.tensors[t].port >= 0) range_of(c, static_cast<TensorId>(t));
        }
        if (c.scratch >= 0) fill(scratch_of(c), garbage());
        if (r.kind == RoutineKind::Free) fill({buffer(c.bindings.at(0).buffer).begin, r.ports.at(0).bytes}, garbage());
    }

    // Does an op that adds overwrite? As the executor prepares it: by its first sum alone.
    bool fresh(const ir::Call& c, size_t index) const {
        const ir::Routine& r = routine(c);
        const Op& op = r.ops[index];
        if (op.accumulate.empty()) return false;
        const TensorId sum = op.out.at(static_cast<size_t>(op.accumulate[0]));
        for (size_t k = 0; k < index; ++k) {
            if (std::find(r.ops[k].out.begin(), r.ops[k].out.end(), sum) != r.ops[k].out.end()) return false;
        }
        const int port = r.tensors[static_cast<size_t>(sum)].port;
        return port >= 0 && c.bindings[static_cast<size_t>(port)].fresh;
    }

    Range workspace_of(const ir::Call& c, const Op& op) const {
        if (op.workspace_bytes == 0) return {};
        const Range scratch = scratch_of(c);
        if (op.workspace_offset_bytes % 64 != 0) throw Broken("a workspace off its alignment");
        return within({scratch.begin + op.workspace_offset_bytes, op.workspace_bytes}, scratch.begin, scratch.end(),
                      "a workspace");
    }
    // Are the two one place, which the kernel allows?
    static bool may_share(const Op& op, size_t result, size_t operand) {
        if (op.kind == "all_reduce") return result == operand;
        if (op.attrs.contains("in_place") && result == 0 && operand == in_place_operand(op)) return true;
        return std::any_of(std::begin(kOver), std::end(kOver),
                           [&](const Over& o) { return op.kind == o.op && o.result == result && o.operand == operand; });
    }
    // The own block of what is split is a copy of it, or the same bytes. Of what is whole it is a part, as any other block.
    static bool moves(const Op& op, const std::vector<Range>& in, const std::vector<Range>& out) {
        const bool own_block = op.kind == "block" && in[0].bytes == out[0].bytes;
        return op.kind == "rename" || op.kind == "reshape" || op.kind == "copy" || own_block;
    }

    // Operands as the kernel reads them.
    uint64_t read(const Op& op, const std::vector<Range>& in, const std::vector<Range>& out) const {
        uint64_t all = 5;
        for (size_t k = 0; k < in.size(); ++k) {
            Range from = in[k];
            for (const Over& o : kOver) {
                if (o.through && op.kind == o.op && o.operand == k && o.result < out.size())
                    from = {out[o.result].begin, from.bytes};
            }
            all = mix(all, digest(within(from, 0, all_bytes(), "an operand")));
        }
        return all;
    }

    uint64_t begin(const ir::Call& c, const Op& op, uint64_t seed) {
        if (op.kind == "zero_padding") return 0;
        const std::vector<Range> in = ranges(c, op.in), out = ranges(c, op.out);
        const Range workspace = workspace_of(c, op);
        fill(workspace, mix(6, seed));
        const uint64_t reading = read(op, in, out);
        if (!moves(op, in, out)) {
            for (size_t i = 0; i < out.size(); ++i) {
                const bool in_use = std::any_of(in.begin(), in.end(), [&](const Range& r) { return r.overlaps(out[i]); });
                if (!in_use && !op.accumulates(static_cast<int>(i))) fill(out[i], mix(7, seed, i));
            }
        }
        return reading;
    }

    void end(const ir::Call& c, const Op& op, uint64_t seed, uint64_t first_reading, bool is_fresh) {
        const std::vector<Range> in = ranges(c, op.in), out = ranges(c, op.out);
        if (op.kind == "zero_padding") return zero(c, op, out[0]);
        if (op.kind == "send" || op.kind == "wait") observe(seed, in[0]);
        const Range workspace = workspace_of(c, op);
        bool spoilt = !holds(workspace, mix(6, seed));
        std::vector<bool> reserved(out.size(), false);
        for (size_t i = 0; i < out.size(); ++i) {
            bool in_use = false;
            for (size_t k = 0; k < in.size(); ++k) {
                if (!in[k].overlaps(out[i])) continue;
                in_use = true;
                spoilt |= !(in[k] == out[i] && (moves(op, in, out) || may_share(op, i, k)));
            }
            for (size_t k = 0; k < i; ++k) spoilt |= out[k].overlaps(out[i]);
            for (const Over& o : kOver) spoilt |= o.through && op.kind == o.op && o.result == i && in[o.operand] != out[i];
            reserved[i] = !in_use && !op.accumulates(static_cast<int>(i)) && !moves(op, in, out);
            spoilt |= reserved[i] && !holds(out[i], mix(7, seed, i));
        }
        uint64_t value = mix(first_reading, read(op, in, out));
        for (char letter : op.kind) value = mix(value, static_cast<unsigned char>(letter));
        if (op.kind == "recv") value = mix(8, seed);
        for (size_t i = 0; i < out.size(); ++i) {
            if (op.accumulates(static_cast<int>(i))) value = mix(value, is_fresh ? 0 : digest(out[i]));
        }
        if (spoilt) value = garbage(), ++spoilt_;
        if (moves(op, in, out) && !spoilt) {
            std::vector<uint64_t> moved(arena_.begin() + in[0].begin, arena_.begin() + in[0].end());
            within({out[0].begin, in[0].bytes}, 0, all_bytes(), "a copy");
            std::copy(moved.begin(), moved.end(), arena_.begin() + out[0].begin);
        } else {
            for (size_t i = 0; i < out.size(); ++i) fill(out[i], mix(value, i, op.out[i]));
        }
        fill(workspace, garbage());
    }
    bool holds(const Range& r, uint64_t seed) const {
        for (int64_t i = 0; i < r.bytes; ++i) {
            if (arena_[r.begin + i] != seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u) return false;
        }
        return true;
    }
    void zero(const ir::Call& c, const Op& op, const Range& out) {
        const int64_t size = bytes_of(routine(c).tensors[static_cast<size_t>(op.out[0])].dtype);
        const auto& ranges = std::get<std::vector<int64_t>>(op.attrs.at("ranges"));
        for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
            const Range r =
                within({out.begin + ranges[i] * size, (ranges[i + 1] - ranges[i]) * size}, out.begin, out.end(), "padding");
            for (int64_t b = r.begin; b < r.end(); ++b) arena_[b] = 0;
        }
    }

    const ir::Program& p_;
    const Order order_;
    std::mt19937_64 random_;
    std::vector<uint64_t> arena_;  // by byte
    uint64_t step_ = 0, garbage_ = 0, observed_ = 0;
    int spoilt_ = 0;
};

}  // namespace

Shadow run_shadow(const ir::Program& program, Order order) {
    try {
        return ShadowMachine(program, order).run();
    } catch (const Broken& e) {
        return {e.what(), 0, 0};
    }
}

ir::Program roomy(ir::Program p) {
    const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64 + 64; };
    for (ir::Routine& r : p.routines) {
        r.scratch_bytes = 0;
        for (ir::Tensor& t : r.tensors) {
            if (t.port >= 0) continue;
            t.view_of = -1;
            t.offset_bytes = r.scratch_bytes;
            r.scratch_bytes += rounded(ir::local_bytes(p.mesh, r, t));
        }
        for (ir::Op& op : r.ops) {
            op.workspace_offset_bytes = r.scratch_bytes;
            r.scratch_bytes += rounded(op.workspace_bytes);
        }
    }
    for (ir::Entry& e : p.entries) {
        for (ir::Call& c : e.calls) {
            c.scratch = static_cast<int>(p.buffers.size());
            ir::Buffer scratch;
            scratch.name = "scratch";
            scratch.bytes = p.routines[static_cast<size_t>(c.routine)].scratch_bytes;
            p.buffers.push_back(scratch);
        }
    }
    p.arena_bytes = {};
    for (ir::Buffer& b : p.buffers) {
        int64_t& end = p.arena_bytes[b.place];
        b.offset_bytes = end;
        end += rounded(b.bytes);
    }
    return p;
}

}  // namespace lockstep::check_test
