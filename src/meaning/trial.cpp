#include "meaning/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/float8.h"
#include "check/layout.h"
#include "ir/sources.h"

namespace lockstep::meaning {

using ir::Access;
using ir::PortKind;
using ir::PortRole;

namespace {

std::tuple<int, int, int64_t> role_key(PortRole role) { return {static_cast<int>(role), -1, 0}; }

// A port whose calls take slices, and others: which slice is the call's, and where its bytes begin apart from that.
struct Slice {
    int64_t index = 0, offset = 0;
};
Slice slice_of(const ir::Routine& r, const ir::Call& call, int port) {
    const int64_t offset = call.bindings[static_cast<size_t>(port)].offset_bytes,
                  bytes = r.ports[static_cast<size_t>(port)].bytes;
    if (!check::is_sliced(r, port) || bytes <= 0) return {0, offset};
    return {offset / bytes, offset % bytes};
}

}  // namespace

// Any largest sizes of weights do: codes are not rounded or clamped here. Each group of weights has another one.
double Runner::amax_of(std::string_view group) const {
    std::set<std::string_view> groups;
    for (const ir::Routine& r : p_.routines) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port >= 0 && p_.has_role(r.ports[static_cast<size_t>(t.port)], ir::StateRole::WeightsAmax))
                groups.insert(t.source);
        }
    }
    return 100 + 10 * static_cast<double>(std::distance(groups.begin(), groups.find(group)));
}

// By what a parameter is multiplied that a routine reads as codes of this type.
double Runner::scale_of_codes(std::string_view key, Dtype type) const {
    for (const ir::Routine& r : p_.routines) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || !p_.has_role(r.ports[static_cast<size_t>(t.port)], ir::StateRole::WeightsAmax)) continue;
            const std::vector<std::string_view> keys = ir::sources_of(t);
            if (std::find(keys.begin(), keys.end(), key) != keys.end())
                return static_cast<double>(scale_of(amax_of(t.source), largest_of(type), false));
        }
    }
    return 1;
}

Machine& Runner::machine(int routine) {
    std::unique_ptr<Machine>& m = machines_[routine];
    if (!m) m = std::make_unique<Machine>(small_.mesh(), small_.of(p_.routines[static_cast<size_t>(routine)]));
    return *m;
}

Lying Runner::lying(const ir::Routine& r, const ir::Tensor& t) const { return {&small_.mesh(), sizes_of(r, t), t.placement}; }

// As a gradient of the parameter lies until it is reduced: partial as its segment says.
Lying Runner::lying(const ir::Parameter& x) const {
    Lying out{&small_.mesh(), {}, x.placement};
    for (const ir::Dim& d : x.dims) out.sizes.push_back(small_.of(d).size);
    out.placement.dims.resize(x.dims.size());
    for (const ir::Unit& u : p_.units) {
        for (const ir::Segment& s : u.segments) {
            const bool has =
                std::any_of(s.members.begin(), s.members.end(), [&](const ir::Member& m) { return m.param == x.key; });
            if (has) out.placement.partial = s.grad_partial;
        }
    }
    return out;
}

const ByRank& Runner::parameter(Trial& trial, const std::string& key) const {
    const auto [known, is_new] = trial.params.try_emplace(key);
    if (is_new) {
        Lying whole = lying(*p_.param(key));
        whole.placement.partial.clear();
        known->second = cut_up(trial.given.params.at(key), whole);
    }
    return known->second;
}

const ByRank& Runner::part_of(Trial& trial, PortRole role, const Array& whole, const ir::Placement& placement) const {
    const auto [known, is_new] = trial.parts.try_emplace({role, placement.dims});
    if (is_new) known->second = cut_up(whole, {&small_.mesh(), whole.sizes, placement});
    return known->second;
}

std::string Runner::bring(Trial& trial, const ir::Call& call) {
    Machine& m = machine(call.routine);
    const ir::Routine& r = m.routine();
    const auto set = [&](size_t t, const ByRank& parts, int64_t slice) {
        const int64_t n = ir::local_elements(small_.mesh(), r, r.tensors[t]);
        for (int64_t rank = 0; rank < m.ranks(); ++rank) {
            const Values& all = parts[static_cast<size_t>(rank)];
            if (static_cast<int64_t>(all.size()) < (slice + 1) * n)
                return fmt::format("{} is longer than what is there", r.tensors[t].name);
            m.set(static_cast<ir::TensorId>(t), rank, {all.begin() + slice * n, all.begin() + (slice + 1) * n});
        }
        return std::string();
    };
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        const ir::Tensor& tensor = r.tensors[t];
        if (tensor.port < 0) continue;
        const ir::Port& port = r.ports[static_cast<size_t>(tensor.port)];
        if (port.access == Access::Write) continue;
        const ir::Binding& binding = call.bindings[static_cast<size_t>(tensor.port)];
        const Slice slice = slice_of(r, call, tensor.port);
        ByRank parts(static_cast<size_t>(m.ranks()));
        std::string wrong;
        switch (port.kind) {
            case PortKind::Params:
            case PortKind::Gradients:
                for (const std::string_view source : ir::sources_of(tensor)) {
                    const std::string key(source);
                    const ir::Parameter* x = p_.param(key);
                    if (!x || !trial.given.params.contains(key))
                        return fmt::format("reads {}, which is no parameter of the block", key);
                    if (port.kind == PortKind::Gradients && !trial.gradients.contains(key)) {
                        trial.gradients[key] = cut_up(filled(trial.given.params.at(key).sizes, Trial::kBefore), lying(*x));
                        if (binding.fresh) trial.begun.insert(key);
                    }
                    const ByRank& one = port.kind == PortKind::Params ? parameter(trial, key) : trial.gradients.at(key);
                    const Dtype type = p_.routines[static_cast<size_t>(call.routine)].tensors[t].dtype;
                    const double scale = is_float8(type) ? scale_of_codes(key, type) : 1;
                    for (size_t k = 0; k < parts.size(); ++k) {
                        for (const double value : one[k]) parts[k].push_back(value * scale);
                    }
                }
                if (static_cast<int64_t>(parts[0].size()) != ir::local_elements(small_.mesh(), r, tensor))
                    return fmt::format("reads {} in other sizes than it has", tensor.name);
                wrong = set(t, parts, 0);
                break;
            case PortKind::Input: {
                const auto it = trial.given.inputs.find(port.role);
                if (it == trial.given.inputs.end()) return fmt::format("reads {}, which nobody supplies", port.name);
                wrong = set(t, part_of(trial, port.role, it->second, tensor.placement), slice.index);
                break;
            }
            case PortKind::Value:
            case PortKind::Frame: {
                const bool has_role = port.role != PortRole::None;
                const auto key =
                    has_role ? role_key(port.role) : std::tuple(-1, binding.buffer, tensor.offset_bytes + slice.offset);
                const auto it = trial.values.find(key);
                if (it != trial.values.end()) {
                    wrong = set(t, it->second, slice.index);
                } else if (port.role == PortRole::X || port.role == PortRole::DY) {
                    const Array& from = port.role == PortRole::X ? trial.given.inputs.at(PortRole::X) : trial.dy;
                    wrong = set(t, part_of(trial, port.role, from, tensor.placement), slice.index);
                } else {
                    return fmt::format("reads {} from {}, where no call of the block has put it", tensor.name,
                                       p_.buffers[static_cast<size_t>(binding.buffer)].name);
                }
                break;
            }
            case PortKind::State: {
                if (const auto it = trial.states.find(port.state); it != trial.states.end()) {
                    wrong = set(t, it->second, 0);
                    break;
                }
                if (binding.fresh) trial.begun_states.insert(port.state);
                const auto scalar = trial.scalars.find(p_.state_of(port).role);
                double value = scalar == trial.scalars.end() ? Trial::kBefore : scalar->second;
                if (p_.has_role(port, ir::StateRole::WeightsAmax)) value = amax_of(tensor.source);
                wrong = set(t, cut_up(filled(lying(r, tensor).sizes, value), lying(r, tensor)), 0);
                break;
            }
        }
        if (!wrong.empty()) return wrong;
    }
    return "";
}

void Runner::take(Trial& trial, const ir::Call& call) {
    Machine& m = machine(call.routine);
    const ir::Routine& r = m.routine();
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        const ir::Tensor& tensor = r.tensors[t];
        if (tensor.port < 0) continue;
        const ir::Port& port = r.ports[static_cast<size_t>(tensor.port)];
        if (port.access == Access::Read) continue;
        const int buffer = call.bindings[static_cast<size_t>(tensor.port)].buffer;
        const Slice slice = slice_of(r, call, tensor.port);
        ByRank parts;
        for (int64_t rank = 0; rank < m.ranks(); ++rank) parts.push_back(m.get(static_cast<ir::TensorId>(t), rank));
        if (port.kind == PortKind::Gradients) {
            size_t begin = 0;
            for (const std::string_view source : ir::sources_of(tensor)) {
                ByRank& one = trial.gradients.at(std::string(source));
                for (size_t k = 0; k < parts.size(); ++k)
                    std::copy_n(parts[k].begin() + static_cast<long>(begin), one[k].size(), one[k].begin());
                begin += one[0].size();
            }
        } else if (port.kind == PortKind::State) {
            trial.states[port.state] = parts;
            trial.sums.insert_or_assign(port.state, lying(r, tensor));
        } else {
            const bool has_role = port.role != PortRole::None;
            const auto key = has_role ? role_key(port.role) : std::tuple(-1, buffer, tensor.offset_bytes + slice.offset);
            if (has_role) trial.results.insert_or_assign(port.role, lying(r, tensor));
            ByRank& all = trial.values[key];
            all.resize(parts.size());
            for (size_t k = 0; k < parts.size(); ++k) {
                const size_t begin = static_cast<size_t>(slice.index) * parts[k].size();
                if (all[k].size() < begin + parts[k].size()) all[k].resize(begin + parts[k].size());
                std::copy(parts[k].begin(), parts[k].end(), all[k].begin() + static_cast<long>(begin));
            }
        }
    }
}

std::string Runner::run(const std::vector<const ir::Call*>& calls, Trial& trial) {
    for (const ir::Call* call : calls) {
        const std::string wrong = bring(trial, *call);
        if (!wrong.empty()) return fmt::format("{} {}", p_.routines[static_cast<size_t>(call->routine)].name, wrong);
        std::vector<bool> fresh;
        for (const ir::Binding& b : call->bindings) fresh.push_back(b.fresh);
        machine(call->routine).run(call->instance, fresh);
        take(trial, *call);
    }
    return "";
}

std::string Runner::result(const Trial& trial, PortRole role, const std::vector<int64_t>& sizes, Array& out) const {
    const auto it = trial.results.find(role);
    if (it == trial.results.end()) return fmt::format("no call gives {}", ir::name_of(role));
    bool differ = false;
    out = put_together(trial.values.at(role_key(role)), it->second, sizes, differ);
    return differ ? fmt::format("ranks disagree about {}", ir::name_of(role)) : "";
}

std::string Runner::gradient(const Trial& trial, const std::string& key, const std::vector<int64_t>& sizes, Array& out) const {
    const auto it = trial.gradients.find(key);
    if (it == trial.gradients.end()) return fmt::format("no call adds to the gradient of {}", key);
    bool differ = false;
    const Lying lies = lying(*p_.param(key));
    bool is_zero = true;
    out = first_of(put_together(it->second, lies, lies.sizes, differ), sizes, is_zero);
    if (!is_zero) return fmt::format("the gradient of {} has values in its padding", key);
    return differ ? fmt::format("ranks disagree about the gradient of {}", key) : "";
}

std::string Runner::sum(const Trial& trial, ir::StateId state, double& out) const {
    const auto it = trial.sums.find(state);
    if (it == trial.sums.end()) return fmt::format("no call adds to {}", p_.states[static_cast<size_t>(state)].full_name());
    bool differ = false;
    out = put_together(trial.states.at(state), it->second, {}, differ).values[0];
    return differ ? fmt::format("ranks disagree about {}", p_.states[static_cast<size_t>(state)].full_name()) : "";
}

}  // namespace lockstep::meaning
