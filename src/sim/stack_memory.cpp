#include "sim/stack_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/rule.h"

namespace lockstep::sim {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

bool is_product(const Op& op) { return ops::rule(op.kind).kept.of_product; }

double bytes_of(const ir::Program& p, const Routine& r, TensorId t) {
    return static_cast<double>(ir::local_bytes(p.mesh, r, r.tensors[static_cast<size_t>(t)]));
}

// What earlier parts of the same forward keep, by name, and what tensors are made of that are blocks or copies of others.
struct EarlierParts {
    std::set<std::string> kept;
    std::map<std::string, std::string> source;
};

// What autograd keeps of one routine of a forward.
class Saved {
public:
    // This routine's names are added to those of earlier parts.
    Saved(const ir::Program& program, const Routine& routine, const StackMemory& memory, EarlierParts& earlier)
        : p_(program), r_(routine), m_(memory), earlier_(earlier) {
        for (const Op& op : r_.ops) {
            find_source(op);
            keep(op);
        }
        for (std::set<TensorId>* tensors : {&kept_, &operands_})
            std::erase_if(*tensors, [&](TensorId t) { return earlier.kept.contains(name_of(t)); });
        for (const TensorId t : kept_) earlier.kept.insert(name_of(t));
    }

    // Until the backward.
    double all() const { return bytes_of(kept_) + beside_; }
    // Between the backward of its input and that of its weights: the operands of both sides of the weights' gradients.
    double for_weights() const { return bytes_of(operands_) + bytes_of(results_); }

private:
    const std::string& name_of(TensorId t) const { return r_.tensors[static_cast<size_t>(t)].name; }
    // The name of what a tensor is a block of, or, if gathered operands are gathered again, a copy of; its own if of none.
    std::string source_of(TensorId t) const {
        std::string name = name_of(root(t));
        for (auto at = earlier_.source.find(name); at != earlier_.source.end(); at = earlier_.source.find(name))
            name = at->second;
        return name;
    }
    TensorId root(TensorId t) const {
        while (r_.tensors[static_cast<size_t>(t)].view_of >= 0) t = r_.tensors[static_cast<size_t>(t)].view_of;
        return t;
    }
    // Of an all-gather in one op, or in blocks (passes/async_tensor_parallel.h). PyTorch's float8 products keep the rows that they
    // cast, and not their codes.
    void find_source(const Op& op) {
        const bool moves = ir::is_collective(op, mesh::Collective::AllGather) || ir::is_collective(op, mesh::Collective::Permute);
        const bool joins = op.kind == "join_blocks";
        const bool is_its = op.kind == ir::kBlock || op.kind == ir::kToFloat8;
        if (!is_its && (m_.saves_gathered || !(moves || joins))) return;
        const std::string source = source_of(op.in[0]), own = name_of(op.out[0]);
        if (source == own) return;
        if (joins) {
            const auto is_of_it = [&](TensorId t) { return source_of(t) == source && name_of(t) != source; };
            if (!std::all_of(op.in.begin(), op.in.end(), is_of_it)) return;
        }
        earlier_.source[own] = source;
    }

    void keep(const Op& op) {
        if (const auto it = m_.saved_bytes.find(op.kind); it != m_.saved_bytes.end())
            beside_ += it->second * elements(op.subject());
        const ops::OpRule& rule = ops::rule(op.kind);
        for (const int i : rule.kept.operands) {
            if (static_cast<size_t>(i) >= op.in.size()) continue;
            add(kept_, op.in[static_cast<size_t>(i)]);
            if (rule.kept.of_product) add(operands_, op.in[static_cast<size_t>(i)]);
        }
        for (const int i : rule.kept.results) add(kept_, op.out[static_cast<size_t>(i)]);
        // GELU's operand, whether or not Lockstep's kernel writes it.
        if (op.kind == ir::kLinearGelu && op.out.size() > 1) add(kept_, op.out[1]);
        if (op.kind == ir::kLinearGelu && op.out.size() == 1)
            beside_ += static_cast<double>(ir::local_bytes(p_.mesh, r_, r_.tensors[static_cast<size_t>(op.out[0])]));
        if (rule.kept.of_product) results_.insert(op.out.begin(), op.out.end());
        if (rule.norm_weight >= 0) beside_ += m_.mask_bytes * elements(op.out[0]);
        if (rule.queries >= 0) {
            const double rows = elements(op.out[0]) / static_cast<double>(last_size(op.out[0]));
            beside_ += rows * (sizeof(float) + m_.score_bytes * static_cast<double>(last_but_head(op)));
        }
        const bool drops = op.kind == ir::kBiasDropoutAdd || op.kind == ir::kDropout;
        if (drops && op.attrs.contains("dropout") && m_.mask_bytes == 0) beside_ += elements(op.out[0]);
    }

    // Parameters and what the loader gives are there anyway.
    void add(std::set<TensorId>& to, TensorId t) const {
        t = root(t);
        if (const std::string source = source_of(t); source != name_of(t)) {
            const auto at = std::find_if(r_.tensors.begin(), r_.tensors.end(), [&](const auto& of) { return of.name == source; });
            if (at == r_.tensors.end()) return;  // an earlier part has it, and its first block
            t = root(static_cast<TensorId>(at - r_.tensors.begin()));
        }
        const int port = r_.tensors[static_cast<size_t>(t)].port;
        if (port < 0) {
            to.insert(t);
            return;
        }
        const ir::PortKind kind = r_.ports[static_cast<size_t>(port)].kind;
        if (kind == ir::PortKind::Value || kind == ir::PortKind::Frame) to.insert(t);
    }

    double bytes_of(const std::set<TensorId>& tensors) const {
        double sum = 0;
        for (const TensorId t : tensors)
            sum += static_cast<double>(ir::local_bytes(p_.mesh, r_, r_.tensors[static_cast<size_t>(t)]));
        return sum;
    }
    double elements(TensorId t) const {
        return static_cast<double>(ir::local_elements(p_.mesh, r_, r_.tensors[static_cast<size_t>(t)]));
    }
    int64_t last_size(TensorId t) const {
        const ir::Tensor& tensor = r_.tensors[static_cast<size_t>(t)];
        return ir::local_size(p_.mesh, r_, tensor, static_cast<int>(tensor.dims.size()) - 1);
    }
    // Keys that a query attends to.
    int64_t last_but_head(const Op& attention) const {
        const ir::DimId kv = r_.dim(ir::DimRole::KvSeq);
        return kv >= 0 ? r_.dims[static_cast<size_t>(kv)].size : last_size(attention.out[0]);
    }

    const ir::Program& p_;
    const Routine& r_;
    const StackMemory& m_;
    EarlierParts& earlier_;
    std::set<TensorId> kept_, operands_, results_;
    double beside_ = 0;
};

// Products whose result has the vocabulary for its last dim.
double logits_of(const ir::Program& p, const Routine& r) {
    double elements = 0;
    for (const Op& op : r.ops) {
        if (!is_product(op)) continue;
        const ir::Tensor& out = r.tensors[static_cast<size_t>(op.out[0])];
        if (out.dims.empty() || r.dims[static_cast<size_t>(out.dims.back())].role != ir::DimRole::Vocab) continue;
        elements += static_cast<double>(ir::local_elements(p.mesh, r, out) * r.chunks);
    }
    return elements;
}

using BlockPass = std::tuple<std::string, int64_t, int64_t>;  // block, instance, microbatch
BlockPass place_of(const ir::Program& p, const ir::Call& c) {
    return {p.routines[static_cast<size_t>(c.routine)].block, c.instance, c.microbatch};
}

// A backward's gradients of activations: while an op runs, that of its result and that of its operand.
double gradients_of_activations(const ir::Program& p, const Routine& r) {
    std::array<double, 2> largest{};
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        const ir::Tensor& tensor = r.tensors[t];
        if (tensor.port >= 0 || tensor.view_of >= 0) continue;
        if (!tensor.dims.empty() && r.dims[static_cast<size_t>(tensor.dims.back())].role == ir::DimRole::Vocab) continue;
        const double bytes = bytes_of(p, r, static_cast<TensorId>(t));
        if (bytes > largest[0]) largest = {bytes, largest[0]};
        else largest[1] = std::max(largest[1], bytes);
    }
    return largest[0] + largest[1];
}

bool computes_again(const Routine& r) {
    return std::any_of(r.ops.begin(), r.ops.end(),
                       [](const Op& op) { return is_product(op) && op.attrs.contains("recomputed"); });
}

// What the routine leaves for its backward in Lockstep's program, and its own operand.
double kept_by_frame(const ir::Program& p, const Routine& r, bool policy_keeps_last) {
    double bytes = 0;
    bool holds_product = false;
    std::set<TensorId> in_frame;
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        const int port = r.tensors[t].port;
        if (port < 0) continue;
        const ir::Port& of = r.ports[static_cast<size_t>(port)];
        if (of.kind == ir::PortKind::Frame) in_frame.insert(static_cast<TensorId>(t));
        if (of.kind == ir::PortKind::Frame || (of.role == ir::PortRole::X && r.part == 0))
            bytes += bytes_of(p, r, static_cast<TensorId>(t));
    }
    TensorId last = -1;
    for (const Op& op : r.ops) {
        if (!is_product(op)) continue;
        last = op.out[0];
        holds_product |= in_frame.contains(last);
    }
    if (policy_keeps_last && holds_product && !in_frame.contains(last)) bytes += bytes_of(p, r, last);
    return bytes;
}

double states_of(const ir::Program& p, const StackMemory& m) {
    const auto data_ranks = static_cast<double>(p.mesh.degree(mesh::Axis::dp_replicate) * p.mesh.degree(mesh::Axis::dp_shard));
    double bytes = 0;
    for (const ir::Unit& u : p.units) {
        const auto n = static_cast<double>(u.padded) * static_cast<double>(p.instances(u).size());
        const auto over = [&](const ir::AxisList& axes) { return n / static_cast<double>(p.mesh.size(axes)); };
        bytes += m.gradient_bytes * over(u.gradients) + m.sum_bytes * (m.whole_sums ? n : over(u.optimizer));
        // Parameters that are whole are there as products read them, also where Lockstep converts them for each use.
        if (u.weights.empty()) bytes += n * static_cast<double>(bytes_of(u.compute));
        for (const ir::State& s : p.states) {
            const bool counts = s.is_weights() || s.role == ir::StateRole::Moment;
            if (s.unit != u.name || s.scope == ir::Scope::Step || !counts) continue;
            if (s.role == ir::StateRole::Weights && u.weights.empty() && s.dtype == u.compute) continue;
            bytes += static_cast<double>(bytes_of(s.dtype)) * (m.splits_optimizer ? n / data_ranks : over(s.split));
        }
    }
    return bytes;
}

// Names of a layer's parameters hold its number.
bool is_of_layers(const ir::Program& p, const std::string& block) {
    return std::any_of(p.params.begin(), p.params.end(),
                       [&](const ir::Parameter& x) { return x.block == block && x.name.find("{}") != std::string::npos; });
}

double gathered_of(const ir::Program& p, const StackMemory& m) {
    double all = 0, largest = 0, others = 0;  // bytes of parameters that are split, whole
    double reduced = 0;                       // of the gradients of the largest unit
    bool split = false;
    const ir::Block* layers = nullptr;
    for (const ir::Block& b : p.blocks) {
        if (!layers || b.count > layers->count) layers = &b;
    }
    for (const ir::Unit& u : p.units) {
        if (u.weights.empty()) continue;
        split = true;
        const auto of_one = static_cast<double>(u.padded);
        const auto compute = of_one * static_cast<double>(bytes_of(u.compute));
        const auto reduce = of_one * static_cast<double>(bytes_of(u.reduce));
        const auto count = static_cast<double>(p.instances(u).size());
        all += count * (compute + reduce);
        if (layers && (u.block == layers->name || is_of_layers(p, u.block)))
            largest = std::max(largest, m.gathered_layers * compute), reduced = std::max(reduced, compute + reduce);
        else others += count * compute;
    }
    if (!split) return 0;
    if (m.keeps_gathered && p.mesh.degree(mesh::Axis::pp) > 1) return all;
    return std::max(largest + others, m.gathered_bytes) + reduced + m.bucket_bytes;
}

}  // namespace

StackBytes stack_bytes(const ir::Program& p, const Stack& stack) {
    const StackMemory& m = stack.memory;
    ensure(m.is_described(), "stack_bytes: the stack's memory is not described");
    const ir::Entry* train = p.entry(ir::EntryKind::Train);
    ensure(train, "stack_bytes: no entry train");

    std::map<BlockPass, size_t> last_backward;
    std::map<BlockPass, bool> again;
    for (size_t i = 0; i < train->calls.size(); ++i) {
        const Routine& r = p.routines[static_cast<size_t>(train->calls[i].routine)];
        if (!ir::is_backward(r.kind)) continue;
        const BlockPass place = place_of(p, train->calls[i]);
        last_backward[place] = i, again[place] |= computes_again(r);
    }

    struct Of {
        double all = 0, for_weights = 0, by_frame = 0, logits = 0, gradients = 0;
    };
    std::vector<Of> of(p.routines.size());
    EarlierParts earlier;
    for (size_t i = 0; i < p.routines.size(); ++i) {
        const Routine& r = p.routines[i];
        if (r.entry != ir::EntryKind::Train) continue;
        if (ir::is_forward(r.kind)) {
            if (r.part == 0) earlier = {};
            const Saved saved(p, r, m, earlier);
            of[i] = {.all = saved.all(),
                     .for_weights = saved.for_weights(),
                     .by_frame = kept_by_frame(p, r, m.policy_keeps_last),
                     .logits = m.logit_bytes * logits_of(p, r)};
        } else if (ir::is_backward(r.kind)) {
            of[i].gradients = gradients_of_activations(p, r);
        }
    }

    struct Live {
        double kept = 0, computed_again = 0, for_weights = 0;
    };
    std::map<BlockPass, Live> live;
    double now = 0;
    StackBytes out;
    out.states = states_of(p, m), out.gathered = gathered_of(p, m);
    const auto see = [&](double working) {
        if (now + working > out.activations + out.working) out.activations = now, out.working = working;
    };
    for (size_t i = 0; i < train->calls.size(); ++i) {
        const ir::Call& c = train->calls[i];
        const Routine& r = p.routines[static_cast<size_t>(c.routine)];
        const Of& o = of[static_cast<size_t>(c.routine)];
        const BlockPass place = place_of(p, c);
        if (ir::is_forward(r.kind)) {
            if (c.chunk > 0) continue;
            const bool recomputes = again[place];
            Live& l = live[place];
            const double kept = (recomputes ? o.by_frame : o.all) + o.logits;
            l.kept += kept, now += kept;
            l.for_weights += o.for_weights;
            if (recomputes) l.computed_again += std::max(0.0, o.all - o.by_frame);
            see(0);
        } else if (ir::is_backward(r.kind)) {
            Live& l = live[place];
            see(l.computed_again + o.gradients);
            double left = l.kept;
            if (last_backward[place] == i) left = 0;
            else if (r.kind == ir::RoutineKind::BackwardInput) left = std::min(l.kept, l.for_weights), l.computed_again = 0;
            now += left - l.kept, l.kept = left;
        }
    }
    return out;
}

}  // namespace lockstep::sim
