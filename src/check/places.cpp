#include "check/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "check/layout.h"
#include "check/routine_memory.h"

namespace lockstep::check {
namespace {

// What a routine needs of its calls.
struct Needs {
    std::vector<bool> sliced;  // ports
    bool scratch = false;
};

// Everything that an entry binds lies where it says, inside the arena of its place: that of the port's state, and the device's
// for what is no state's.
std::string wrong_bindings(const ir::Program& p, const ir::Entry& e, const std::vector<Needs>& needs) {
    for (size_t i = 0; i < e.calls.size(); ++i) {
        const ir::Call& c = e.calls[i];
        const ir::Routine& r = p.routines[c.routine];
        const auto wrong = [&](int buffer, std::string_view what) {
            return fmt::format("{}: call {} of {}[{}] in microbatch {}: {} {}", name_of(e.kind), i, r.name, c.instance,
                               c.microbatch, buffer < 0 ? "it" : p.buffers[buffer].name, what);
        };
        const auto in_arena = [&](int buffer) {
            const ir::Buffer& b = p.buffers[buffer];
            return is_inside(b.offset_bytes, b.bytes, p.arena_bytes[b.place]);
        };
        const auto misplaced = [&](int buffer, Place place) {
            const Place at = p.buffers[buffer].place;
            return at == place
                       ? std::string()
                       : fmt::format("lies in the {}'s memory, where the call needs it in the {}'s", name_of(at), name_of(place));
        };
        for (size_t k = 0; k < c.bindings.size(); ++k) {
            const ir::Binding& b = c.bindings[k];
            if (!in_arena(b.buffer)) return wrong(b.buffer, "lies outside the arena");
            if (const std::string text = misplaced(b.buffer, p.place_of(r.ports[k])); !text.empty()) return wrong(b.buffer, text);
            if (b.offset_bytes != (needs[c.routine].sliced[k] ? c.chunk * r.ports[k].bytes : 0))
                return wrong(b.buffer,
                             fmt::format("is bound at {}, which is not where port {} begins", b.offset_bytes, r.ports[k].name));
        }
        if (c.scratch < 0 && needs[c.routine].scratch) return wrong(-1, "has no scratch");
        if (c.scratch >= 0 && !in_arena(c.scratch)) return wrong(c.scratch, "lies outside the arena");
        if (c.scratch >= 0) {
            if (const std::string text = misplaced(c.scratch, Place::Device); !text.empty()) return wrong(c.scratch, text);
        }
    }
    return "";
}

}  // namespace

std::string wrong_places(const ir::Program& program) {
    std::vector<bool> called(program.routines.size(), false);
    for (const ir::Entry& e : program.entries) {
        for (const ir::Call& c : e.calls) called[static_cast<size_t>(c.routine)] = true;
    }
    std::vector<Needs> needs;  // by routine
    for (const ir::Routine& r : program.routines) {
        Needs& n = needs.emplace_back();
        if (!called[needs.size() - 1]) continue;
        if (std::string wrong = wrong_routine_memory(program, r); !wrong.empty()) return wrong;
        for (const ir::Op& op : r.ops) {
            if (op.kernel != ir::kDeviceCopy && ir::leaves_device(program, r, op))
                return fmt::format("{}: {} uses the host's memory, which no kernel reaches", r.name, op.kind);
        }
        for (size_t k = 0; k < r.ports.size(); ++k) n.sliced.push_back(is_sliced(r, static_cast<int>(k)));
        n.scratch = std::any_of(r.tensors.begin(), r.tensors.end(), [](auto& t) { return t.port < 0 && t.view_of < 0; }) ||
                    std::any_of(r.ops.begin(), r.ops.end(), [](auto& op) { return op.workspace_bytes > 0; });
    }
    for (const ir::Entry& e : program.entries) {
        if (std::string wrong = wrong_bindings(program, e, needs); !wrong.empty()) return wrong;
    }
    return "";
}

}  // namespace lockstep::check
