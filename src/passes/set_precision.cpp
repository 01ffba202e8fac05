#include "passes/set_precision.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ir/sources.h"
#include "ops/builder.h"
#include "ops/einsum.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

bool has(const std::vector<int>& positions, size_t i) {
    return std::find(positions.begin(), positions.end(), static_cast<int>(i)) != positions.end();
}

using Types = std::map<std::string, Dtype>;  // of a forward's saved values, or of parameters, by source

// Weights and biases of norms, by key.
std::set<std::string> read_by_norms(const ir::Program& program) {
    std::set<std::string> out;
    for (const Routine& r : program.routines) {
        for (const Op& op : r.ops) {
            const int weight = ops::rule(op.kind).norm_weight;
            for (size_t i = static_cast<size_t>(weight); weight >= 0 && i < op.in.size(); ++i)
                out.insert(r.tensors[op.in[i]].source);
        }
    }
    return out;
}

// Chooses a type for every tensor of one routine: what its port says, else wide if it is a sum with a wide term, else what all
// its users ask for, else what its op says. float32 means "not decided yet" on entry; other types are what they are.
class Precision {
public:
    Precision(const ir::Program& p, Routine& r, const PrecisionOptions& options, const Types& params, const Types& saved)
        : p_(p), r_(r), o_(options), params_(params), saved_(saved), type_(r.tensors.size()), asked_(r.tensors.size()) {
        for (const ir::Tensor& t : r.tensors) free_.push_back(t.dtype == Dtype::F32);
    }

    void run() {
        for (size_t t = 0; t < r_.tensors.size(); ++t) {
            if (free_[t] && r_.tensors[t].port >= 0) type_[t] = of_port(r_.tensors[t]);
        }
        for (const Op& op : r_.ops) {
            if (ops::rule(op.kind).precision.wide_if_any && free_[op.out[0]] && !type_[op.out[0]] && any_wide(op))
                type_[op.out[0]] = o_.wide;
        }
        if (o_.wide_key_gradients) widen_key_gradients();
        for (auto op = r_.ops.rbegin(); op != r_.ops.rend(); ++op) {  // users first
            for (size_t i = 0; i < op->out.size(); ++i) choose_by_users(*op, i);
            for (size_t i = 0; i < op->in.size(); ++i) asked_[op->in[i]].push_back(asks(*op, i));
        }
        for (const Op& op : r_.ops) {  // makers first
            for (TensorId t : op.out) {
                if (free_[t] && !type_[t]) type_[t] = accepts_any_dtype(op) && any_wide(op) ? o_.wide : o_.narrow;
            }
        }
        for (size_t t = 0; t < r_.tensors.size(); ++t) {
            if (free_[t]) r_.tensors[t].dtype = type_[t].value_or(o_.narrow);
        }
        insert_casts();
    }

private:
    // Those of keys and values, also under another name.
    void widen_key_gradients() {
        for (const Op& op : r_.ops) {
            const bool renames = op.kind == ir::kRename && type_[op.in[0]] == o_.wide;
            if (op.kind != ir::kAttentionBackward && !renames) continue;
            for (size_t i = renames ? 0 : 1; i < op.out.size(); ++i) {
                if (free_[op.out[i]]) type_[op.out[i]] = o_.wide;
            }
        }
    }

    std::optional<Dtype> of_port(const ir::Tensor& t) const {
        const ir::Port& port = r_.ports[t.port];
        if (port.kind == PortKind::Gradients || port.role == ir::PortRole::Logits) return o_.wide;
        if (port.kind == PortKind::State) return p_.has_role(port, ir::StateRole::Cache) ? o_.narrow : o_.wide;
        if (port.kind == PortKind::Value && o_.wide_residual) return o_.wide;
        if (port.kind == PortKind::Params) {
            if (const auto known = params_.find(std::string(ir::sources_of(t)[0])); known != params_.end()) return known->second;
        }
        if (port.kind != PortKind::Frame) return o_.narrow;
        if (port.access == ir::Access::Write) return std::nullopt;  // as it is made
        return saved_.at(t.source);
    }

    bool is_parameter(TensorId t) const {
        return r_.tensors[t].port >= 0 && r_.ports[r_.tensors[t].port].kind == PortKind::Params;
    }
    // An einsum that is no product of matrices is a sum or a broadcast.
    bool accepts_any_dtype(const Op& op) const {
        return ops::rule(op.kind).precision.any_dtype || (op.kind == ir::kEinsum && !ops::is_product(r_, op));
    }
    // Among the operands that may be of either type, weights of norms apart.
    bool any_wide(const Op& op) const {
        for (size_t i = 0; i < op.in.size(); ++i) {
            if (is_parameter(op.in[i])) continue;
            if (free_[op.in[i]] && type_[op.in[i]] == o_.wide && !has(ops::rule(op.kind).precision.wide_in, i)) return true;
        }
        return false;
    }

    // The type in which an op reads an operand; nothing: as it comes.
    std::optional<Dtype> wanted(const Op& op, size_t operand) const {
        const ops::OpRule& rule = ops::rule(op.kind);
        if (rule.precision.logits == static_cast<int>(operand)) return o_.narrow_logits ? o_.narrow : o_.wide;
        if (rule.precision.wide || has(rule.precision.wide_in, operand)) return o_.wide;
        if (accepts_any_dtype(op)) return std::nullopt;
        return o_.narrow;
    }
    // The type that an op asks of an operand. An op that accepts any type asks for the type of its result; if that type is
    // fixed, as a float64 sum's is, for the wide type.
    // nullopt: no preference, as for the rows of a scatter, which are added one by one.
    std::optional<Dtype> asks(const Op& op, size_t operand) const {
        std::optional<Dtype> type = wanted(op, operand);
        if (type || op.kind == ir::kScatter) return type;
        type = free_[op.out[0]] ? type_[op.out[0]] : o_.wide;
        return type;
    }

    void choose_by_users(const Op& op, size_t result) {
        const TensorId t = op.out[result];
        if (type_[t] || !free_[t]) return;
        const ops::OpRule& rule = ops::rule(op.kind);
        const std::vector<std::optional<Dtype>>& asked = asked_[t];
        const bool agreed = !asked.empty() && std::all_of(asked.begin(), asked.end(), [&](auto a) { return a == asked[0]; });
        if (rule.precision.wide || has(rule.precision.wide_out, result)) type_[t] = o_.wide;
        else if (agreed) type_[t] = asked[0];
    }

    void insert_casts() {
        const std::vector<Op> before = std::exchange(r_.ops, {});
        std::map<TensorId, TensorId> cast_of;
        for (Op op : before) {
            for (size_t i = 0; i < op.in.size(); ++i) {
                const TensorId from = op.in[i];
                const auto want = wanted(op, i);
                if (!want || !free_[from] || r_.tensors[from].dtype == *want) continue;
                if (!cast_of.contains(from)) cast_of[from] = cast(from, *want);
                op.in[i] = cast_of[from];
            }
            r_.ops.push_back(std::move(op));
        }
    }
    TensorId cast(TensorId from, Dtype to) {
        const ir::Tensor t = r_.tensors[from];
        const std::string name = t.name + "." + std::string(name_of(to));
        const TensorId made = ops::Builder(r_).op(ir::kCast, {from}, {{name, t.dims, to}}, {}, "wanted in both types")[0];
        free_.push_back(false);
        return made;
    }

    const ir::Program& p_;
    Routine& r_;
    const PrecisionOptions& o_;
    const Types &params_, &saved_;
    std::vector<bool> free_;
    std::vector<std::optional<Dtype>> type_;
    std::vector<std::vector<std::optional<Dtype>>> asked_;
};

// States are of the type in which routines bind them.
ir::Program with_types_of_states(ir::Program program) {
    for (const Routine& r : program.routines) {
        for (const ir::Tensor& t : r.tensors) {
            const ir::StateId state = t.port < 0 ? -1 : r.ports[t.port].state;
            if (state >= 0) program.states[static_cast<size_t>(state)].dtype = t.dtype;
        }
    }
    return program;
}

}  // namespace

ir::Program set_precision(ir::Program program, const PrecisionOptions& options) {
    const std::set<std::string> wide = options.wide_norms ? read_by_norms(program) : std::set<std::string>{};
    Types params;
    for (ir::Parameter& p : program.params) params[p.key] = p.dtype = wide.contains(p.key) ? options.wide : options.narrow;
    if (options.wide == options.narrow) {
        for (Routine& r : program.routines) {
            for (ir::Tensor& t : r.tensors) {
                if (t.dtype == Dtype::F32) t.dtype = options.wide;
            }
        }
        return with_types_of_states(std::move(program));
    }
    std::map<std::string, Types> saved;  // by block; a forward comes before its backward
    for (Routine& r : program.routines) {
        Precision(program, r, options, params, saved[r.block]).run();
        for (const ir::Tensor& t : r.tensors) {
            if (t.port >= 0 && r.ports[t.port].kind == PortKind::Frame) saved[r.block][t.source] = t.dtype;
        }
    }
    return with_types_of_states(std::move(program));
}

}  // namespace lockstep::passes
