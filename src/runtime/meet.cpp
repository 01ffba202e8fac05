#include "runtime/meet.h"

#include <fmt/format.h>

#include <vector>

#include "base/checksum.h"

namespace lockstep::runtime {
namespace {

bool outlives_steps(const ir::State& s) { return s.scope == ir::Scope::Run && s.role != ir::StateRole::Copy; }
bool is_common(const ir::State& s) { return s.is_of_all_islands(); }

// f(buffer, offset, bytes) of these states.
template <class F>
void each_piece(const ir::Program& program, bool (*which)(const ir::State&), const F& f) {
    for (size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& b = program.buffers[i];
        if (b.state < 0 || !which(program.states[static_cast<size_t>(b.state)])) continue;
        device::each_access(b.bytes, [&](int64_t at, int64_t bytes) { f(static_cast<int>(i), at, bytes); });
    }
}

}  // namespace

std::string meeting_text(const std::vector<ir::Program>& programs) {
    std::string text;
    for (const ir::Program& p : programs) {
        for (const ir::Buffer& b : p.buffers) {
            if (b.state < 0 || !outlives_steps(p.states[static_cast<size_t>(b.state)])) continue;
            text += fmt::format("{} {} {}\n", p.states[static_cast<size_t>(b.state)].full_name(), b.instance, b.bytes);
        }
        for (const ir::Entry& e : p.entries) {
            if (e.kind != ir::EntryKind::Outer) continue;
            for (const ir::Call& c : e.calls)
                text += fmt::format("{} {} {}\n", e.fragment, p.routines[static_cast<size_t>(c.routine)].name, c.instance);
        }
    }
    return hex_checksum(text);
}

std::string anchor_text(Executor& e) {
    std::string sums;
    each_piece(e.program(), is_common, [&](int buffer, int64_t at, int64_t bytes) {
        e.read(buffer, at, bytes, [&](const char* data) { sums += hex_checksum({data, static_cast<size_t>(bytes)}); });
    });
    return hex_checksum(sums);
}

void give_state(comm::islands::Member& member, Executor& e, std::span<const int64_t> numbers) {
    member.give({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
    each_piece(e.program(), outlives_steps, [&](int buffer, int64_t at, int64_t bytes) {
        e.read(buffer, at, bytes, [&](const char* data) { member.give({data, static_cast<size_t>(bytes)}); });
    });
    member.done();
}

void take_state(comm::islands::Member& member, Executor& e, std::span<int64_t> numbers) {
    member.take({reinterpret_cast<char*>(numbers.data()), numbers.size_bytes()});
    each_piece(e.program(), outlives_steps, [&](int buffer, int64_t at, int64_t bytes) {
        e.write(buffer, at, bytes, [&](char* data) { member.take({data, static_cast<size_t>(bytes)}); });
    });
    member.done();
}

}  // namespace lockstep::runtime
