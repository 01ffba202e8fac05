#include "check/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "check/layout.h"
#include "ir/happens_before.h"

namespace lockstep::check {
namespace {

using ir::Access;
using ir::PortKind;

constexpr int kBefore = -1;  // written before the step began
constexpr int kNobody = -2;  // holds nothing

// Bytes of an arena that have had the same history in this step.
struct Stretch {
    int64_t end;
    int writer = kNobody, buffer = -1;
    bool freed = false;            // the last write was its end
    ByStepQueue<int> readers{-1};  // the last reader of each queue since the write
};

class Memory {
public:
    Memory(const ir::Program& program, const ir::Entry& entry)
        : p_(program),
          e_(entry),
          happens_before_(entry.calls),
          outlives_step_(program.buffers.size(), false),
          is_result_(program.buffers.size(), false),
          frames_(program.buffers.size(), {-1, -1}) {
        stretches_[0] = {std::max<int64_t>(p_.arena_bytes[Place::Device] + p_.arena_bytes[Place::Host], 1)};
        for (const ir::Routine& r : p_.routines) {
            std::vector<PortBytes>& ports = bytes_.emplace_back(r.ports.size());
            for (const ir::Tensor& t : r.tensors) {
                if (t.port < 0) continue;
                PortBytes& port = ports[static_cast<size_t>(t.port)];
                port.written.push_back(bytes_in_port(p_, r, t));
                for (const Bytes& b : arriving_bytes(p_, r, t)) port.read.push_back(b);
            }
        }
    }

    std::string run() {
        states();
        for (size_t i = 0; i < e_.calls.size() && wrong_.empty(); ++i) call(static_cast<int>(i));
        if (wrong_.empty() && !gathered_.empty())
            wrong_ = fmt::format("{} is gathered and never freed", p_.buffers[*gathered_.begin()].name);
        return wrong_;
    }

private:
    struct PortBytes {
        std::vector<Bytes> read, written;
    };

    // What is in memory when a step begins: what any entry keeps from one step to the next, so that none destroys another's.
    void states() {
        std::map<int, int64_t> used_bytes;
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                const ir::Routine& r = p_.routines[c.routine];
                for (size_t i = 0; i < c.bindings.size(); ++i) {
                    const ir::Binding& b = c.bindings[i];
                    if (outlives_step(r.ports[i])) {
                        int64_t& bytes = used_bytes[b.buffer];
                        bytes = std::max(bytes, b.offset_bytes + r.ports[i].bytes);
                    } else if (&e == &e_ && is_result(r.ports[i])) {
                        is_result_[static_cast<size_t>(b.buffer)] = true;
                    }
                }
            }
        }
        for (const auto& [buffer, bytes] : used_bytes) outlives(buffer, bytes);
    }
    bool outlives_step(const ir::Port& port) const {
        switch (port.kind) {
            case PortKind::State: return p_.state_of(port).scope != ir::Scope::Step;
            case PortKind::Input: return true;
            case PortKind::Params: return !p_.unit_of(port)->is_gathered() && !p_.unit_of(port)->is_fetched();
            default: return false;
        }
    }
    // Does the caller read it after the entry has ended?
    bool is_result(const ir::Port& port) const {
        using enum ir::StateRole;
        if (port.kind != PortKind::State) return port.role == ir::PortRole::Logits;
        return p_.has_role(port, Control) || p_.has_role(port, TotalLoss) || p_.has_role(port, TotalCount);
    }
    void outlives(int buffer, int64_t bytes) {
        const ir::Buffer& b = p_.buffers[buffer];
        outlives_step_[static_cast<size_t>(buffer)] = true;
        for_each({begin_of(buffer), begin_of(buffer) + bytes}, [&](Stretch& s) {
            if (s.writer == kBefore && wrong_.empty())
                wrong_ = fmt::format("{} shares bytes with {}, and both outlive a step", b.name, p_.buffers[s.buffer].name);
            s.writer = kBefore;
            s.buffer = buffer;
        });
    }

    // In both arenas, one behind the other.
    int64_t begin_of(int buffer) const {
        const ir::Buffer& b = p_.buffers[buffer];
        return b.offset_bytes + (b.place == Place::Host ? p_.arena_bytes[Place::Device] : 0);
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
    // The first call whose use of the bytes may not have ended when `call` begins, or -1.
    int still_used_by(const Stretch& s, int call) const {
        if (!ordered(s.writer, call)) return s.writer;
        const auto reader = std::ranges::find_if(s.readers, [&](int r) { return !ordered(r, call); });
        return reader == s.readers.end() ? -1 : *reader;
    }

    void read(int call, int buffer, Bytes range) {
        for_each(range, [&](Stretch& s) {
            if (s.writer == kNobody || (s.freed && s.buffer == buffer))
                return fail(call, buffer, "is read before anything is written there");
            if (s.buffer != buffer)
                return fail(call, buffer, fmt::format("is read after its bytes were given to {}", p_.buffers[s.buffer].name));
            if (!ordered(s.writer, call)) return fail(call, buffer, "may be read before it is written: a wait is missing");
            int& reader = s.readers[e_.calls[call].queue];
            reader = std::max(reader, call);
        });
    }
    // No later call may read what a call leaves in its scratch, and scratch may not overwrite what is kept.
    void write(int call, int buffer, Bytes range, bool is_scratch = false) {
        for_each(range, [&](Stretch& s) {
            if (const int user = still_used_by(s, call); user >= 0)
                return fail(call, buffer,
                            fmt::format("may be written while call {} still uses {}", user, p_.buffers[s.buffer].name));
            if (s.buffer >= 0 && (s.buffer != buffer || is_scratch)) {
                if (outlives_step_[static_cast<size_t>(s.buffer)])
                    return fail(call, buffer, fmt::format("overwrites the state {}", p_.buffers[s.buffer].name));
                if (is_result_[static_cast<size_t>(s.buffer)])
                    return fail(call, buffer, fmt::format("overwrites the entry's result {}", p_.buffers[s.buffer].name));
            }
            s.writer = call;
            s.buffer = buffer;
            s.freed = is_scratch;
            s.readers = ByStepQueue<int>(-1);
        });
    }
    void free(int call, int buffer, Bytes range) {
        for_each(range, [&](Stretch& s) {
            if (s.writer == kNobody || s.freed || s.buffer != buffer) return fail(call, buffer, "is freed but not held");
            if (still_used_by(s, call) >= 0) return fail(call, buffer, "may be freed while it is used");
            s.writer = call;  // its end is an event too: bytes are used again only after it
            s.freed = true;
        });
    }

    // Calls f on the bytes of each tensor of a port.
    template <class F>
    void for_each_tensor(const ir::Call& c, size_t port, bool writes, const F& f) const {
        const PortBytes& bytes = bytes_[static_cast<size_t>(c.routine)][port];
        const ir::Binding& b = c.bindings[port];
        const int64_t base = begin_of(b.buffer) + b.offset_bytes;
        for (const Bytes& range : writes ? bytes.written : bytes.read) f(Bytes{range.begin + base, range.end + base});
    }

    struct Use {
        Bytes bytes;
        size_t port;
        int buffer;
        bool writes;
    };
    // What one call writes overlaps nothing else that it uses.
    void apart(int i, const ir::Call& c, const ir::Routine& r) {
        std::vector<Use>& uses = uses_;
        uses.clear();
        for (size_t k = 0; k < c.bindings.size(); ++k) {
            const bool writes = r.ports[k].access != Access::Read;
            for_each_tensor(c, k, writes, [&](const Bytes& b) { uses.push_back({b, k, c.bindings[k].buffer, writes}); });
        }
        if (c.scratch >= 0) {
            const int64_t base = begin_of(c.scratch);
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
        if (e_.kind == ir::EntryKind::Snapshot) beside_training(i, c, r);
        for (int pass = 0; pass < 2; ++pass) {  // all reads, then all writes
            for (size_t k = 0; k < c.bindings.size(); ++k) {
                const ir::Port& port = r.ports[k];
                const ir::Binding& b = c.bindings[k];
                if (pass == 0 && port.kind == PortKind::Frame) frame(i, c, static_cast<int>(k));
                const bool reads = port.access == Access::Read || port.access == Access::Update ||
                                   (port.access == Access::Accumulate && !b.fresh);
                const bool writes = port.access != Access::Read;
                for_each_tensor(c, k, pass == 1, [&](const Bytes& range) {
                    if (r.kind == ir::RoutineKind::Free) {
                        if (pass == 1) free(i, b.buffer, range);
                        return;
                    }
                    if (pass == 0 && reads) read(i, b.buffer, range);
                    if (pass == 1 && writes) {
                        if (port.access == Access::Write && port.kind != PortKind::State) once(i, b.buffer, range);
                        write(i, b.buffer, range);
                    }
                });
                if (pass == 1 && r.kind == ir::RoutineKind::Gather && port.access == Access::Write) gathered_.insert(b.buffer);
                if (pass == 1 && r.kind == ir::RoutineKind::Free && gathered_.erase(b.buffer) == 0)
                    fail(i, b.buffer, "is freed but not gathered");
            }
        }
        if (c.scratch >= 0) {
            const int64_t base = begin_of(c.scratch);
            write(i, c.scratch, {base, base + r.scratch_bytes}, true);
        }
    }

    // A snapshot is copied while a step runs.
    void beside_training(int i, const ir::Call& c, const ir::Routine& r) {
        for (const ir::Binding& b : c.bindings) {
            if (!outlives_step_[static_cast<size_t>(b.buffer)])
                fail(i, b.buffer, "is used during a step that may use its bytes for something else");
        }
        if (c.scratch >= 0 && r.scratch_bytes > 0)
            fail(i, c.scratch, "is used during a step that may use its bytes for something else");
    }

    // Who reads a frame finds each value where the frame's writer put it.
    void frame(int i, const ir::Call& c, int port) {
        const int buffer = c.bindings[static_cast<size_t>(port)].buffer;
        RoutinePort& writer = frames_[static_cast<size_t>(buffer)];
        const RoutinePort here = {c.routine, port};
        if (p_.routines[c.routine].ports[port].access == Access::Write) {
            writer = here;
        } else if (writer.first >= 0 && agreed_.insert({writer, here}).second) {
            const std::string wrong = disagreement(p_, p_.routines[c.routine], port, p_.routines[writer.first], writer.second);
            if (!wrong.empty()) fail(i, buffer, "is read otherwise than written: " + wrong);
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
    std::map<int64_t, Stretch> stretches_;         // by begin; they cover the arenas, the host's behind the device's
    std::vector<std::vector<PortBytes>> bytes_;    // by routine and port
    std::vector<bool> outlives_step_, is_result_;  // by buffer
    std::vector<Use> uses_;                        // of one call
    using RoutinePort = std::pair<int, int>;
    std::vector<RoutinePort> frames_;                       // by buffer: who writes it
    std::set<std::pair<RoutinePort, RoutinePort>> agreed_;  // writers and readers of frames
    std::set<int> gathered_;
    std::map<int, std::map<int64_t, int64_t>> written_;
    std::string wrong_;
};

}  // namespace

std::string wrong_memory(const ir::Program& program, const ir::Entry& entry) { return Memory(program, entry).run(); }

}  // namespace lockstep::check
