#include "passes/check_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ir/happens_before.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::PortKind;

constexpr int kBefore = -1;  // written before the step began
constexpr int kNobody = -2;  // holds nothing

// Bytes of the arena that have had the same history in this step.
struct Stretch {
    int64_t end;
    int writer = kNobody, buffer = -1;
    bool freed = false;         // the last write was its end
    int readers[2] = {-1, -1};  // the last reader of each stream since the write
};

struct Bytes {
    int64_t begin, end;
};

class Memory {
public:
    Memory(const ir::Program& program, const ir::Entry& entry) : p_(program), e_(entry), happens_before_(entry.calls) {
        stretches_[0] = {std::max<int64_t>(p_.arena_bytes, 1), kNobody, -1, false, {-1, -1}};
    }

    std::string run() {
        bounds();
        if (wrong_.empty()) states();
        for (size_t i = 0; i < e_.calls.size() && wrong_.empty(); ++i) call(static_cast<int>(i));
        if (wrong_.empty() && !gathered_.empty())
            wrong_ = fmt::format("{} is gathered and never freed", p_.buffers[*gathered_.begin()].name);
        return wrong_;
    }

private:
    // Everything that this entry uses lies in the arena: buffers, tensors in their ports, temporaries and workspaces in scratch.
    void bounds() {
        std::set<int> routines;
        for (size_t i = 0; i < e_.calls.size() && wrong_.empty(); ++i) {
            const ir::Call& c = e_.calls[i];
            const ir::Routine& r = p_.routines[c.routine];
            for (const ir::Binding& b : c.bindings) inside_arena(static_cast<int>(i), b.buffer);
            if (c.scratch >= 0) inside_arena(static_cast<int>(i), c.scratch);
            else if (r.scratch_bytes > 0) wrong_ = fmt::format("call {} of {} has no scratch", i, r.name);
            if (wrong_.empty() && routines.insert(c.routine).second) inside_routine(r);
        }
    }
    void inside_arena(int call, int buffer) {
        const ir::Buffer& b = p_.buffers[buffer];
        if (!is_inside({b.offset_bytes, b.bytes}, p_.arena_bytes)) fail(call, buffer, "lies outside the arena");
    }
    void inside_routine(const ir::Routine& r) {
        const auto wrong = [&](const std::string& what) {
            if (wrong_.empty()) wrong_ = fmt::format("{}: {}", r.name, what);
        };
        for (size_t k = 0; k < r.ports.size(); ++k) {
            for (const bool writes : {false, true}) {
                for (const Bytes& b : bytes_within_port(r, static_cast<int>(k), writes)) {
                    if (!is_inside({b.begin, b.end - b.begin}, r.ports[k].bytes))
                        wrong(fmt::format("a tensor of port {} lies outside it", r.ports[k].name));
                }
            }
        }
        for (const ir::Tensor& t : r.tensors) {
            if (t.port >= 0 || t.view_of >= 0) continue;
            if (!is_inside({t.offset_bytes, ir::local_bytes(p_.mesh, r, t)}, r.scratch_bytes))
                wrong(fmt::format("{} lies outside the scratch", t.name));
        }
        for (const ir::Op& op : r.ops) {
            if (op.workspace_bytes != 0 && !is_inside({op.workspace_offset_bytes, op.workspace_bytes}, r.scratch_bytes))
                wrong(fmt::format("the workspace of {} lies outside the scratch", op.kind));
        }
    }
    struct Extent {
        int64_t offset, bytes;
    };
    static bool is_inside(Extent inner, int64_t outer_bytes) {
        return inner.offset >= 0 && inner.bytes >= 0 && inner.offset <= outer_bytes && inner.bytes <= outer_bytes - inner.offset;
    }

    // What stands in memory when a step begins: what any entry keeps from one step to the next, so that none destroys another's.
    void states() {
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                const ir::Routine& r = p_.routines[c.routine];
                for (size_t i = 0; i < c.bindings.size(); ++i) {
                    if (lives_on(r.ports[i])) outlives(c.bindings[i].buffer);
                }
            }
        }
    }
    bool lives_on(const ir::Port& port) const {
        switch (port.kind) {
            case PortKind::State: return p_.state_of(port).scope != ir::Scope::Step;
            case PortKind::Input: return true;
            case PortKind::Params: return !p_.unit_of(port)->is_gathered();
            default: return false;
        }
    }
    void outlives(int buffer) {
        const ir::Buffer& b = p_.buffers[buffer];
        if (!persistent_.insert(buffer).second) return;
        for_each({b.offset_bytes, b.offset_bytes + b.bytes}, [&](Stretch& s) {
            if (s.writer == kBefore && wrong_.empty())
                wrong_ = fmt::format("{} shares bytes with {}, and both outlive a step", b.name, p_.buffers[s.buffer].name);
            s.writer = kBefore;
            s.buffer = buffer;
        });
    }

    // Calls f on every stretch of the range, cut at its ends.
    template <class F>
    void for_each(Bytes range, const F& f) {
        if (range.begin >= range.end) return;
        cut(range.begin);
        cut(range.end);
        for (auto it = stretches_.lower_bound(range.begin); it != stretches_.end() && it->first < range.end; ++it) f(it->second);
    }
    void cut(int64_t at) {
        auto it = std::prev(stretches_.upper_bound(at));
        if (it->first == at || at >= it->second.end) return;
        Stretch tail = it->second;
        it->second.end = at;
        stretches_[at] = tail;
    }

    void fail(int call, int buffer, const std::string& what) {
        if (!wrong_.empty()) return;
        const ir::Call& c = e_.calls[call];
        wrong_ = fmt::format("call {} of {}[{}] in microbatch {}: {} {}", call, p_.routines[c.routine].name, c.instance,
                             c.microbatch, p_.buffers[buffer].name, what);
    }
    bool ordered(int earlier, int later) const { return earlier < 0 || earlier == later || happens_before_(earlier, later); }

    void read(int call, int buffer, Bytes range) {
        for_each(range, [&](Stretch& s) {
            if (s.writer == kNobody || (s.freed && s.buffer == buffer)) return fail(call, buffer, "is read where nothing stands");
            if (s.buffer != buffer)
                return fail(call, buffer, fmt::format("is read after its bytes were given to {}", p_.buffers[s.buffer].name));
            if (!ordered(s.writer, call)) return fail(call, buffer, "may be read before it is written: a wait is missing");
            int& reader = s.readers[static_cast<int>(e_.calls[call].stream)];
            reader = std::max(reader, call);
        });
    }
    void write(int call, int buffer, Bytes range) {
        for_each(range, [&](Stretch& s) {
            for (int earlier : {s.writer, s.readers[0], s.readers[1]}) {
                if (!ordered(earlier, call)) {
                    return fail(call, buffer,
                                fmt::format("may be written while call {} still uses {}", earlier, p_.buffers[s.buffer].name));
                }
            }
            if (s.buffer != buffer && persistent_.contains(s.buffer) && s.buffer >= 0)
                return fail(call, buffer, fmt::format("overwrites the state {}", p_.buffers[s.buffer].name));
            s.writer = call;
            s.buffer = buffer;
            s.freed = false;
            s.readers[0] = s.readers[1] = -1;
        });
    }
    void free(int call, int buffer, Bytes range) {
        for_each(range, [&](Stretch& s) {
            if (s.writer == kNobody || s.freed || s.buffer != buffer) return fail(call, buffer, "is freed but not held");
            for (int earlier : {s.writer, s.readers[0], s.readers[1]}) {
                if (!ordered(earlier, call)) return fail(call, buffer, "may be freed while it is used");
            }
            s.writer = call;  // its end is an event too: bytes are used again only after it
            s.freed = true;
        });
    }

    // The bytes of a port's tensors, from what it is bound to on.
    std::vector<Bytes> bytes_of_port(const ir::Routine& r, int port, const ir::Binding& b, bool writes) {
        auto& known = bytes_of_port_[{&r, port * 2 + (writes ? 1 : 0)}];
        if (!known) known = bytes_within_port(r, port, writes);
        std::vector<Bytes> out = *known;
        const int64_t base = p_.buffers[b.buffer].offset_bytes + b.offset_bytes;
        for (Bytes& bytes : out) bytes.begin += base, bytes.end += base;
        return out;
    }

    // Of flat gradients only the parameters are read: what lies between is cleared, and so written.
    std::vector<Bytes> bytes_within_port(const ir::Routine& r, int port, bool writes) const {
        const ir::Port& p = r.ports[port];
        std::vector<Bytes> out;
        const bool whole_gradients =
            (p.kind == PortKind::Gradients && p.access == Access::Update) ||
            (p_.has_role(p, ir::StateRole::Gradients) && p.access == Access::Update && p_.unit_of(p)->gradients.empty());
        if (whole_gradients && !writes) {
            const int64_t size = ::lockstep::bytes_of(r.tensors[r.port_tensors(port)[0]].dtype);
            for (const ir::Segment& s : p_.unit_of(p)->segments) {
                for (const ir::Member& m : s.members)
                    out.push_back({(s.begin + m.begin) * size, (s.begin + m.begin + m.count) * size});
            }
            return out;
        }
        for (ir::TensorId t : r.port_tensors(port)) {
            const int64_t begin = std::max<int64_t>(r.tensors[t].offset_bytes, 0);
            out.push_back({begin, begin + ir::local_bytes(p_.mesh, r, r.tensors[t])});
        }
        return out;
    }

    // What one call writes overlaps nothing else that it uses.
    void apart(int i, const ir::Call& c, const ir::Routine& r) {
        struct Use {
            Bytes bytes;
            size_t port;
            int buffer;
            bool writes;
        };
        std::vector<Use> uses;
        for (size_t k = 0; k < c.bindings.size(); ++k) {
            for (const Bytes& b : bytes_of_port(r, static_cast<int>(k), c.bindings[k], r.ports[k].access != Access::Read))
                uses.push_back({b, k, c.bindings[k].buffer, r.ports[k].access != Access::Read});
        }
        if (c.scratch >= 0) {
            const int64_t base = p_.buffers[c.scratch].offset_bytes;
            uses.push_back({{base, base + r.scratch_bytes}, c.bindings.size(), c.scratch, true});
        }
        std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.bytes.begin < b.bytes.begin; });
        for (size_t a = 0; a < uses.size(); ++a) {
            for (size_t b = a + 1; b < uses.size() && uses[b].bytes.begin < uses[a].bytes.end; ++b) {
                if (uses[a].port == uses[b].port || !(uses[a].writes || uses[b].writes)) continue;
                return fail(i, uses[a].buffer,
                            fmt::format("shares bytes with {} inside one call", p_.buffers[uses[b].buffer].name));
            }
        }
    }

    void call(int i) {
        const ir::Call& c = e_.calls[i];
        const ir::Routine& r = p_.routines[c.routine];
        apart(i, c, r);
        for (int pass = 0; pass < 2; ++pass) {  // all reads, then all writes
            for (size_t k = 0; k < c.bindings.size(); ++k) {
                const ir::Port& port = r.ports[k];
                const ir::Binding& b = c.bindings[k];
                const bool reads = port.access == Access::Read || port.access == Access::Update ||
                                   (port.access == Access::Accumulate && !b.fresh);
                const bool writes = port.access != Access::Read;
                for (const Bytes& range : bytes_of_port(r, static_cast<int>(k), b, pass == 1)) {
                    if (r.kind == ir::RoutineKind::Free) {
                        if (pass == 1) free(i, b.buffer, range);
                        continue;
                    }
                    if (pass == 0 && reads) read(i, b.buffer, range);
                    if (pass == 1 && writes) {
                        if (port.access == Access::Write && port.kind != PortKind::State) once(i, b.buffer, range);
                        write(i, b.buffer, range);
                    }
                }
                if (pass == 1 && r.kind == ir::RoutineKind::Gather && port.access == Access::Write) gathered_.insert(b.buffer);
                if (pass == 1 && r.kind == ir::RoutineKind::Free && gathered_.erase(b.buffer) == 0)
                    fail(i, b.buffer, "is freed but not gathered");
            }
        }
        if (c.scratch >= 0) {
            const int64_t base = p_.buffers[c.scratch].offset_bytes;
            write(i, c.scratch, {base, base + r.scratch_bytes});
        }
    }

    // Activations, frames and gathered parameters are written once a step.
    void once(int call, int buffer, Bytes range) {
        std::map<int64_t, int64_t>& written = written_[buffer];
        // No two of them overlap, so the last one that begins before the end of this one is the only one to look at.
        const auto after = written.lower_bound(range.end);
        if (after != written.begin() && std::prev(after)->second > range.begin)
            return fail(call, buffer, "is written a second time in one step");
        if (range.begin < range.end) written[range.begin] = range.end;
    }

    const ir::Program& p_;
    const ir::Entry& e_;
    const ir::HappensBefore happens_before_;
    std::map<int64_t, Stretch> stretches_;  // by begin; they cover the arena
    std::map<std::pair<const ir::Routine*, int>, std::optional<std::vector<Bytes>>> bytes_of_port_;
    std::set<int> persistent_, gathered_;
    std::map<int, std::map<int64_t, int64_t>> written_;
    std::string wrong_;
};

}  // namespace

std::string check_memory(const ir::Program& program, const ir::Entry& entry) { return Memory(program, entry).run(); }

}  // namespace lockstep::passes
