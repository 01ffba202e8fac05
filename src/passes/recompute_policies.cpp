#include "passes/recompute_policies.h"

#include <algorithm>
#include <tuple>

#include "ops/rope.h"
#include "ops/rule.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// May be in a frame: made here, whole, and not as long as all keys of a sequence (those are gathered again).
bool savable(const Routine& r, TensorId t) {
    const ir::Tensor& tensor = r.tensors[t];
    const bool made_here = tensor.port < 0 || in_frame(r, tensor);
    const bool all_keys =
        std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](ir::DimId d) { return r.dims[d].role == ir::DimRole::KvSeq; });
    return made_here && !all_keys && tensor.placement.partial.empty();
}

void save_results(const Routine& r, const Op& op, std::set<std::string>& values) {
    for (TensorId t : op.out) {
        if (savable(r, t)) values.insert(r.tensors[t].name);
    }
}

// The one reader of a tensor, if it leaves some of the bytes as they are: its result is better saved than its operand.
const Op* what_changes_some(const mesh::Mesh& mesh, const Routine& r, TensorId t) {
    const Op* reader = nullptr;
    for (const Op& op : r.ops) {
        if (std::find(op.in.begin(), op.in.end(), t) == op.in.end()) continue;
        if (reader) return nullptr;
        reader = &op;
    }
    return reader && ops::untouched_bytes(mesh, r, *reader) > 0 ? reader : nullptr;
}

// The forward of every block that is between two others and has a backward.
std::vector<std::pair<const ir::Block*, const Routine*>> inner_blocks(const ir::Program& p) {
    std::vector<std::pair<const ir::Block*, const Routine*>> out;
    for (const ir::Block& b : p.blocks) {
        const Routine* forward = p.routine(ir::RoutineKind::Forward, b.name);
        if (!forward || !p.routine(ir::RoutineKind::Backward, b.name)) continue;
        if (forward->port(ir::PortRole::X) >= 0 && forward->port(ir::PortRole::Y) >= 0) out.emplace_back(&b, forward);
    }
    return out;
}

// Prices the choices of one block: bit k of a mask saves the results of the op candidates()[k].
class Pricing {
public:
    Pricing(const mesh::Mesh& mesh, const Routine& r, const OpSeconds& time_s) : mesh_(mesh), r_(r) {
        for (const Op& op : r.ops) time_s_.push_back(time_s(mesh, r, op));
        candidate_.assign(r.ops.size(), -1);
        std::vector<size_t> order;
        for (size_t i = 0; i < r.ops.size(); ++i) {
            const bool any = std::any_of(r.ops[i].out.begin(), r.ops[i].out.end(), [&](TensorId t) { return savable(r, t); });
            if (any && !ops::rule(r.ops[i].kind).memory.always_recomputed) order.push_back(i);
        }
        const auto framed = [&](size_t i) {
            return std::any_of(r.ops[i].out.begin(), r.ops[i].out.end(), [&](TensorId t) { return in_frame(r, r.tensors[t]); });
        };
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return framed(a) != framed(b) ? framed(a) : time_s_[a] > time_s_[b]; });
        if (order.size() > kMost) order.resize(kMost);
        for (size_t k = 0; k < order.size(); ++k) candidate_[order[k]] = static_cast<int>(k);
        count_ = order.size();
    }

    uint32_t masks() const { return uint32_t{1} << count_; }

    // Which values are saved, and what that costs: backward asks for what is in the frame, the ops behind it are computed
    // again up to what is saved. An op with several results is saved whole.
    Saved price(uint32_t mask, bool names) const {
        Saved out;
        std::vector<bool> wanted(r_.tensors.size());
        for (size_t t = 0; t < wanted.size(); ++t) wanted[t] = in_frame(r_, r_.tensors[t]);
        for (size_t i = r_.ops.size(); i-- > 0;) {
            const Op& op = r_.ops[i];
            bool again = false;
            for (TensorId t : op.out) {
                if (!wanted[t]) continue;
                const bool saved = candidate_[i] >= 0 && (mask >> candidate_[i] & 1) && savable(r_, t);
                again = again || !saved;
                if (!saved) continue;
                out.bytes += ir::local_bytes(mesh_, r_, r_.tensors[t]);
                if (names) out.values.insert(r_.tensors[t].name);
            }
            if (!again) continue;
            out.time_s += time_s_[i];
            for (TensorId t : op.in) wanted[t] = true;
        }
        return out;
    }

    // What differentiate had saved.
    Saved everything() const {
        Saved out;
        for (size_t t = 0; t < r_.tensors.size(); ++t) {
            if (!in_frame(r_, r_.tensors[t])) continue;
            out.values.insert(r_.tensors[t].name);
            out.bytes += ir::local_bytes(mesh_, r_, r_.tensors[t]);
        }
        return out;
    }

private:
    static constexpr size_t kMost = 16;
    const mesh::Mesh& mesh_;
    const Routine& r_;
    std::vector<double> time_s_;
    std::vector<int> candidate_;  // of each op, or -1
    size_t count_ = 0;
};

// Does b lie on or above the line from a to c?
bool above(const Saved& a, const Saved& b, const Saved& c) {
    return (b.time_s - a.time_s) * static_cast<double>(c.bytes - a.bytes) >=
           (c.time_s - a.time_s) * static_cast<double>(b.bytes - a.bytes);
}

}  // namespace

double Rates::operator()(const mesh::Mesh& mesh, const Routine& r, const Op& op) const {
    const double bytes = static_cast<double>(ops::bytes_moved(mesh, r, op));
    if (ops::rule(op.kind).collective) return bytes / wire_bytes_per_s;
    return ops::flops_of(mesh, r, op).executed / flops_per_s + bytes / bytes_per_s;
}

std::vector<SaveList> save_nothing(const ir::Program& program) { return recompute_every(program, 1); }

std::vector<SaveList> recompute_every(const ir::Program& program, int64_t n) {
    std::vector<SaveList> lists;
    for (const auto& [block, forward] : inner_blocks(program)) {
        SaveList list{block->name, {}, {}};
        for (int64_t i : block->all()) {
            if ((i + 1) % n == 0) list.instances.push_back(i);
        }
        if (list.instances.empty()) continue;
        if (n == 1) list.instances.clear();
        lists.push_back(std::move(list));
    }
    return lists;
}

std::vector<SaveList> save_costly_ops(const ir::Program& program) {
    std::vector<SaveList> lists;
    for (const auto& [block, forward] : inner_blocks(program)) {
        SaveList list{block->name, {}, {}};
        int products = 0;
        for (const Op& op : forward->ops) {
            const bool product = (op.kind == ir::kEinsum || op.kind == ir::kScaledEinsum) && ++products % 2 == 1;
            const std::optional<mesh::Collective> collective = mesh::collective_named(op.kind);
            const Op* in_its_place = product ? what_changes_some(program.mesh, *forward, op.out[0]) : nullptr;
            if (in_its_place) save_results(*forward, *in_its_place, list.values);
            else if (product || ops::rule(op.kind).queries >= 0 || (collective && mesh::traits_of(*collective).reduces))
                save_results(*forward, op, list.values);
        }
        lists.push_back(std::move(list));
    }
    return lists;
}

Choices least_time_choices(const mesh::Mesh& mesh, const ir::Routine& forward, const OpSeconds& time_s) {
    const Pricing pricing(mesh, forward, time_s);
    std::vector<std::pair<Saved, uint32_t>> all;
    for (uint32_t mask = 0; mask < pricing.masks(); ++mask) all.emplace_back(pricing.price(mask, false), mask);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return std::tuple(a.first.bytes, a.first.time_s, a.second) < std::tuple(b.first.bytes, b.first.time_s, b.second);
    });
    Choices out;
    for (const auto& [saved, mask] : all) {
        if (out.front.empty() || saved.time_s < out.front.back().time_s) out.front.push_back(pricing.price(mask, true));
    }
    if (out.front.back().time_s > 0) out.front.push_back(pricing.everything());
    for (size_t i = 0; i < out.front.size(); ++i) {
        const auto at = [&](size_t back) -> const Saved& { return out.front[out.hull[out.hull.size() - back]]; };
        while (out.hull.size() > 1 && above(at(2), at(1), out.front[i])) out.hull.pop_back();
        out.hull.push_back(i);
    }
    return out;
}

}  // namespace lockstep::passes
