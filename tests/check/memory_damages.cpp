#include "memory_damages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace lockstep::check_test {
namespace {

using ir::Op;
using ir::Routine;
using ir::Tensor;
using ir::TensorId;

class Damager {
public:
    Damager(ir::Program& program, std::mt19937_64& random) : p_(program), random_(random) {}

    std::string apply(MemoryDamage damage) {
        switch (damage) {
            case MemoryDamage::TemporaryElsewhere: return temporary_elsewhere();
            case MemoryDamage::TemporariesShare: return temporaries_share();
            case MemoryDamage::ViewOfAnother: return view_of_another();
            case MemoryDamage::NoView: return no_view();
            case MemoryDamage::ViewsOffset: return views_offset();
            case MemoryDamage::WorkspaceElsewhere: return workspace_elsewhere();
            case MemoryDamage::WorkspaceBytes: return workspace_bytes();
            case MemoryDamage::NoScratch: return no_scratch();
            case MemoryDamage::ScratchBytes: return scratch_bytes();
            case MemoryDamage::OtherScratch: return other_scratch();
            case MemoryDamage::BufferElsewhere: return buffer_elsewhere();
            case MemoryDamage::BufferOfAnotherEntry: return buffer_of_another_entry();
            case MemoryDamage::BufferBytes: return buffer_bytes();
            case MemoryDamage::BindingOffset: return binding_offset();
            case MemoryDamage::BindingBuffer: return binding_buffer();
            case MemoryDamage::PortBytes: return port_bytes();
            case MemoryDamage::PortTensor: return port_tensor();
            case MemoryDamage::ArenaBytes:
                return changed("the arena", p_.arena_bytes[Place::Device], around(p_.arena_bytes[Place::Device]));
            case MemoryDamage::HostArenaBytes:
                return changed("the host's arena", p_.arena_bytes[Place::Host], around(p_.arena_bytes[Place::Host]));
            case MemoryDamage::BufferOfTheOtherPlace: return buffer_of_the_other_place();
            case MemoryDamage::MayNotOverwrite: return may_not_overwrite();
            case MemoryDamage::PaddingRanges: return padding_ranges();
            case MemoryDamage::SwapOps: return swap_ops();
            case MemoryDamage::OtherOperand: return other_tensor(false);
            case MemoryDamage::OtherResult: return other_tensor(true);
        }
        return "";
    }

private:
    static constexpr const char* kNoPlace = "";

    size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
    bool heads() { return random_() % 2 == 0; }
    Routine& routine() { return p_.routines[below(p_.routines.size())]; }
    ir::Call& call() {
        ir::Entry& e = p_.entries[below(p_.entries.size())];
        return e.calls[below(e.calls.size())];
    }
    Routine& routine(const ir::Call& c) { return p_.routines[static_cast<size_t>(c.routine)]; }
    int64_t bytes(const Routine& r, const Tensor& t) const { return ir::local_bytes(p_.mesh, r, t); }

    static std::string changed(const std::string& what, int64_t& number, int64_t to) {
        if (number == to) return kNoPlace;
        const std::string text = fmt::format("{}: {} becomes {}", what, number, to);
        number = to;
        return text;
    }
    // A size near `bytes`, or far from it.
    int64_t around(int64_t bytes) {
        const std::array<int64_t, 9> all = {bytes - 64, bytes + 64, bytes - 4, bytes + 4,   bytes / 2,
                                            bytes * 2,  0,          -64,       bytes + 4096};
        return all[below(all.size())];
    }
    // A place for `bytes` in `whole`, or just outside; mostly aligned.
    int64_t place_in(int64_t whole, int64_t bytes) {
        switch (below(8)) {
            case 0: return whole - bytes;
            case 1: return whole - bytes + 64;
            case 2: return -64;
            case 3: return static_cast<int64_t>(below(static_cast<size_t>(std::max<int64_t>(whole, 1))));
            default: return static_cast<int64_t>(below(static_cast<size_t>(std::max<int64_t>(whole, 64)) / 64)) * 64;
        }
    }

    template <class Is>
    std::vector<Tensor*> tensors(Routine& r, const Is& is) {
        std::vector<Tensor*> out;
        for (Tensor& t : r.tensors) {
            if (is(t)) out.push_back(&t);
        }
        return out;
    }
    static bool is_temporary(const Tensor& t) { return t.port < 0 && t.view_of < 0; }
    static bool is_view(const Tensor& t) { return t.view_of >= 0; }

    std::string temporary_elsewhere() {
        Routine& r = routine();
        const auto all = tensors(r, is_temporary);
        if (all.empty()) return kNoPlace;
        Tensor& t = *all[below(all.size())];
        return changed(r.name + "." + t.name, t.offset_bytes, place_in(r.scratch_bytes, bytes(r, t)));
    }
    std::string temporaries_share() {
        Routine& r = routine();
        const auto all = tensors(r, is_temporary);
        if (all.size() < 2) return kNoPlace;
        Tensor &a = *all[below(all.size())], &b = *all[below(all.size())];
        return changed(fmt::format("{}.{} over {}", r.name, a.name, b.name), a.offset_bytes,
                       heads() ? b.offset_bytes : b.offset_bytes + bytes(r, b) - bytes(r, a));
    }
    std::string view_of_another() {
        Routine& r = routine();
        const auto all = tensors(r, [&](const Tensor& t) { return t.port < 0 && (heads() || is_view(t)); });
        if (all.empty()) return kNoPlace;
        Tensor& t = *all[below(all.size())];
        const auto others = tensors(r, [&](const Tensor& o) { return bytes(r, o) == bytes(r, t); });
        Tensor& other = *others[below(others.size())];
        if (t.view_of == static_cast<TensorId>(&other - r.tensors.data())) return kNoPlace;
        t.view_of = static_cast<TensorId>(&other - r.tensors.data());
        return fmt::format("{}.{} views {}", r.name, t.name, other.name);
    }
    std::string no_view() {
        Routine& r = routine();
        const auto all = tensors(r, is_view);
        if (all.empty()) return kNoPlace;
        Tensor& t = *all[below(all.size())];
        t.view_of = -1;
        t.offset_bytes = place_in(r.scratch_bytes, bytes(r, t));
        return fmt::format("{}.{} is no view, at {}", r.name, t.name, t.offset_bytes);
    }
    std::string views_offset() {
        Routine& r = routine();
        const auto all = tensors(r, is_view);
        if (all.empty()) return kNoPlace;
        Tensor& t = *all[below(all.size())];
        return changed(fmt::format("offset of the view {}.{}", r.name, t.name), t.offset_bytes, place_in(r.scratch_bytes, 64));
    }
    Op* op_with_workspace(Routine& r) {
        std::vector<Op*> all;
        for (Op& op : r.ops) {
            if (op.workspace_bytes > 0) all.push_back(&op);
        }
        return all.empty() ? nullptr : all[below(all.size())];
    }
    std::string workspace_elsewhere() {
        Routine& r = routine();
        Op* op = op_with_workspace(r);
        if (!op) return kNoPlace;
        const auto all = tensors(r, is_temporary);
        const bool over = heads() && !all.empty();
        return changed(fmt::format("workspace of {}.{}", r.name, op->kind), op->workspace_offset_bytes,
                       over ? all[below(all.size())]->offset_bytes : place_in(r.scratch_bytes, op->workspace_bytes));
    }
    std::string workspace_bytes() {
        Routine& r = routine();
        if (Op* op = op_with_workspace(r))
            return changed(fmt::format("workspace of {}.{}", r.name, op->kind), op->workspace_bytes, around(op->workspace_bytes));
        return kNoPlace;
    }
    std::string no_scratch() {
        ir::Call& one = call();
        if (one.scratch < 0) return kNoPlace;
        if (heads()) {
            for (ir::Entry& e : p_.entries) {
                for (ir::Call& c : e.calls) {
                    if (c.routine == one.routine && &c != &one) c.scratch = -1;
                }
            }
        }
        one.scratch = -1;
        return "no scratch for " + routine(one).name;
    }
    std::string scratch_bytes() {
        Routine& r = routine();
        return changed("scratch of " + r.name, r.scratch_bytes, around(r.scratch_bytes));
    }
    std::string other_scratch() {
        ir::Call& c = call();
        if (c.scratch < 0) return kNoPlace;
        const int old = c.scratch;
        c.scratch = static_cast<int>(below(p_.buffers.size()));
        if (c.scratch == old) return kNoPlace;
        return fmt::format("scratch of {}: {}", routine(c).name, p_.buffers[static_cast<size_t>(c.scratch)].name);
    }
    std::string buffer_elsewhere() {
        ir::Buffer& b = p_.buffers[below(p_.buffers.size())];
        const ir::Buffer& other = p_.buffers[below(p_.buffers.size())];
        const int64_t to = heads() ? other.offset_bytes : place_in(p_.arena_bytes[b.place], b.bytes);
        return changed(fmt::format("buffer {} ({})", b.name, other.name), b.offset_bytes, to);
    }
    std::string buffer_of_another_entry() {
        std::vector<ir::Buffer*> transient, resident;
        for (ir::Buffer& b : p_.buffers) {
            if (b.place == Place::Device) (b.resident ? resident : transient).push_back(&b);
        }
        if (transient.empty()) return kNoPlace;
        ir::Buffer &b = *transient[below(transient.size())], &state = *resident[below(resident.size())];
        const int64_t into = static_cast<int64_t>(below(static_cast<size_t>(state.bytes / 64) + 1)) * 64;
        return changed(fmt::format("buffer {} into {}", b.name, state.name), b.offset_bytes, state.offset_bytes + into);
    }
    // In bytes that nobody else uses, or where it was.
    std::string buffer_of_the_other_place() {
        std::vector<ir::Buffer*> copies;
        for (ir::Buffer& b : p_.buffers) {
            if (b.place == Place::Host) copies.push_back(&b);
        }
        ir::Buffer& b = heads() && !copies.empty() ? *copies[below(copies.size())] : p_.buffers[below(p_.buffers.size())];
        b.place = b.place == Place::Host ? Place::Device : Place::Host;
        int64_t& arena = p_.arena_bytes[b.place];
        if (heads()) b.offset_bytes = arena, arena += (b.bytes + 63) / 64 * 64;
        return fmt::format("buffer {} is in the {}'s memory", b.name, name_of(b.place));
    }
    std::string buffer_bytes() {
        ir::Buffer& b = p_.buffers[below(p_.buffers.size())];
        return changed("bytes of " + b.name, b.bytes, around(b.bytes));
    }
    std::string binding_offset() {
        ir::Call& c = call();
        if (c.bindings.empty()) return kNoPlace;
        const size_t k = below(c.bindings.size());
        ir::Binding& b = c.bindings[k];
        const int64_t bytes = p_.buffers[static_cast<size_t>(b.buffer)].bytes, port = routine(c).ports[k].bytes;
        return changed(fmt::format("binding of {}.{}", routine(c).name, routine(c).ports[k].name), b.offset_bytes,
                       heads() ? port * static_cast<int64_t>(below(4)) : place_in(bytes, port));
    }
    std::string binding_buffer() {
        ir::Call& c = call();
        if (c.bindings.empty()) return kNoPlace;
        const size_t k = below(c.bindings.size());
        std::vector<int> others;
        for (size_t b = 0; b < p_.buffers.size(); ++b) {
            if (p_.buffers[b].bytes >= routine(c).ports[k].bytes) others.push_back(static_cast<int>(b));
        }
        const int to = others[below(others.size())];
        if (std::exchange(c.bindings[k].buffer, to) == to) return kNoPlace;
        return fmt::format("{}.{} binds {}", routine(c).name, routine(c).ports[k].name, p_.buffers[static_cast<size_t>(to)].name);
    }
    std::string port_bytes() {
        Routine& r = routine();
        if (r.ports.empty()) return kNoPlace;
        ir::Port& port = r.ports[below(r.ports.size())];
        return changed(fmt::format("port {}.{}", r.name, port.name), port.bytes, around(port.bytes));
    }
    std::string port_tensor() {
        Routine& r = routine();
        const auto all = tensors(r, [](const Tensor& t) { return t.port >= 0; });
        if (all.empty()) return kNoPlace;
        Tensor& t = *all[below(all.size())];
        const std::string name = fmt::format("{}.{}", r.name, t.name);
        const auto mates =
            tensors(r, [&](const Tensor& o) { return o.port == t.port && bytes(r, o) == bytes(r, t) && &o != &t; });
        if (mates.empty() || heads())
            return changed(name, t.offset_bytes, place_in(r.ports[static_cast<size_t>(t.port)].bytes, bytes(r, t)));
        Tensor& mate = *mates[below(mates.size())];
        std::swap(t.offset_bytes, mate.offset_bytes);
        return fmt::format("{} and {} change places", name, mate.name);
    }
    std::string may_not_overwrite() {
        Routine& r = routine();
        std::vector<Op*> all;
        for (Op& op : r.ops) {
            if (op.attrs.contains("in_place")) all.push_back(&op);
        }
        if (all.empty()) return kNoPlace;
        Op& op = *all[below(all.size())];
        op.attrs.erase("in_place");
        return fmt::format("{}.{} not in place", r.name, op.kind);
    }
    std::string padding_ranges() {
        Routine& r = routine();
        for (Op& op : r.ops) {
            if (op.kind != "zero_padding" || heads()) continue;
            auto& ranges = std::get<std::vector<int64_t>>(op.attrs["ranges"]);
            int64_t& number = ranges[below(ranges.size())];
            return changed("padding in " + r.name, number, number + static_cast<int64_t>(below(9)) - 4);
        }
        return kNoPlace;
    }

    std::string swap_ops() {
        Routine& r = routine();
        if (r.ops.size() < 2) return kNoPlace;
        const size_t a = below(r.ops.size()), b = heads() ? below(r.ops.size()) : std::min(a + 1, r.ops.size() - 1);
        if (a == b) return kNoPlace;
        std::swap(r.ops[a], r.ops[b]);
        return fmt::format("{}: ops {} and {} change places", r.name, a, b);
    }
    std::string other_tensor(bool result) {
        Routine& r = routine();
        if (r.ops.empty()) return kNoPlace;
        Op& op = r.ops[below(r.ops.size())];
        std::vector<TensorId>& list = result ? op.out : op.in;
        if (list.empty()) return kNoPlace;
        TensorId& t = list[below(list.size())];
        const Tensor& now = r.tensors[static_cast<size_t>(t)];
        const auto others = tensors(r, [&](const Tensor& o) {
            return &o != &now && o.dtype == now.dtype && o.dims == now.dims && o.placement == now.placement;
        });
        if (others.empty()) return kNoPlace;
        const Tensor& other = *others[below(others.size())];
        const std::string text = fmt::format("{}.{}: {} instead of {}", r.name, op.kind, other.name, now.name);
        t = static_cast<TensorId>(&other - r.tensors.data());
        return text;
    }

    ir::Program& p_;
    std::mt19937_64& random_;
};

}  // namespace

std::string_view name_of(MemoryDamage damage) {
    constexpr std::array<std::string_view, kMemoryDamages> names = {
        "temporary elsewhere", "temporaries share", "view of another", "no view",          "view's own offset",
        "workspace elsewhere", "workspace bytes",   "no scratch",      "scratch bytes",    "other scratch",
        "buffer elsewhere",    "buffer into state", "buffer bytes",    "binding offset",   "binding buffer",
        "port bytes",          "port's tensor",     "arena bytes",     "host arena bytes", "other place",
        "not in place",        "padding ranges",    "swapped ops",     "another operand",  "another result"};
    return names[static_cast<size_t>(damage)];
}

std::string apply(ir::Program& program, MemoryDamage damage, std::mt19937_64& random) {
    return Damager(program, random).apply(damage);
}

}  // namespace lockstep::check_test
