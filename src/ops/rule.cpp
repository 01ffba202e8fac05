#include "ops/rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ops/rope.h"

namespace lockstep::ops {

const std::vector<OpRule>& all_rules() {
    static const std::vector<OpRule> rules = [] {
        std::vector<OpRule> all;
        for (auto family : {einsum_rules, elementwise_rules, norm_rules, bias_rules, dropout_rules, embedding_rules, rope_rules,
                            attention_rules, loss_rules, collective_rules, block_rules, optimizer_rules, quantize_rules,
                            float8_rules, fused_rules}) {
            for (OpRule& r : family()) all.push_back(std::move(r));
        }
        return all;
    }();
    return rules;
}

const OpRule* find_rule(std::string_view kind) {
    static const std::unordered_map<std::string_view, const OpRule*> by_name = [] {
        std::unordered_map<std::string_view, const OpRule*> map;
        for (const OpRule& r : all_rules()) map[r.name] = &r;
        return map;
    }();
    const auto it = by_name.find(kind);
    return it == by_name.end() ? nullptr : it->second;
}

const OpRule& rule(std::string_view kind) {
    const OpRule* found = find_rule(kind);
    if (!found) throw InternalError(fmt::format("no op kind is called {}", kind));
    return *found;
}

namespace {

// What any op may have: the dim of passes/shard, and marks of passes/recompute and for passes/part_routines.
constexpr Attribute kCommon[] = {
    {"beside", AttrType::Text, true}, {"recomputed", AttrType::Integer, true}, {"aside", AttrType::Integer, true}};
// And one of passes/select_kernels, where the rule names an operand.
constexpr Attribute kInPlace[] = {{"in_place", AttrType::Integer, true}};

std::string check_attrs(const OpRule& r, const Op& op) {
    constexpr std::string_view types[] = {"an integer", "a number", "a text", "a list of integers"};  // as Attr's alternatives
    const std::span<const Attribute> lists[] = {r.attrs, kCommon, std::span(kInPlace, r.memory.in_place >= 0 ? 1 : 0)};
    size_t expected = 0;
    const auto check = [&](const Attribute& a) -> std::string {
        const auto at = op.attrs.find(std::string(a.name));
        if (at == op.attrs.end()) return a.optional ? "" : fmt::format("needs the attribute {}", a.name);
        ++expected;
        const auto type = static_cast<size_t>(a.type);
        return at->second.index() == type ? "" : fmt::format("the attribute {} is {}", a.name, types[type]);
    };
    for (const std::span<const Attribute> list : lists) {
        for (const Attribute& a : list) {
            if (const std::string wrong = check(a); !wrong.empty()) return wrong;
        }
    }
    if (expected == op.attrs.size()) return "";
    const auto known = [&](const std::string& name) {
        return std::any_of(std::begin(lists), std::end(lists), [&](std::span<const Attribute> list) {
            return std::any_of(list.begin(), list.end(), [&](const Attribute& a) { return a.name == name; });
        });
    };
    for (const auto& [name, value] : op.attrs) {
        if (!known(name)) return fmt::format("has no attribute {}", name);
    }
    return "";
}

}  // namespace

std::vector<Op> pieces_of(const Op& op) {
    std::vector<Op> pieces = {op};
    if (!op.attrs.contains(kAmaxOf)) return pieces;
    const std::vector<int64_t>& of = std::get<std::vector<int64_t>>(op.attrs.at(kAmaxOf));
    const size_t results = op.out.size() - of.size();
    for (size_t i = 0; i < of.size(); ++i) {
        Op amax;
        amax.kind = ir::kAmax, amax.in = {op.out[static_cast<size_t>(of[i])]}, amax.out = {op.out[results + i]};
        pieces.push_back(std::move(amax));
    }
    pieces[0].attrs.erase(kAmaxOf);
    pieces[0].out.resize(results);
    return pieces;
}

std::string check_op(const Routine& routine, const Op& op) {
    const OpRule& r = rule(op.kind);
    if (r.gives_amax && op.attrs.contains(kAmaxOf)) {
        const auto* of = std::get_if<std::vector<int64_t>>(&op.attrs.at(kAmaxOf));
        if (!of || of->empty() || of->size() >= op.out.size()) return "amax is a list of results";
        const auto results = static_cast<int64_t>(op.out.size() - of->size());
        for (const int64_t i : *of) {
            if (i < 0 || i >= results) return fmt::format("gives amax of result {} of {}", i, results);
        }
        for (const Op& piece : pieces_of(op)) {
            if (const std::string wrong = check_op(routine, piece); !wrong.empty()) return wrong;
        }
        return "";
    }
    const bool counts_agree = (r.operands < 0 || r.operands == static_cast<int>(op.in.size())) &&
                              (r.results < 0 || r.results == static_cast<int>(op.out.size()));
    if (!counts_agree)
        return fmt::format("takes {} operands and gives {} results, not {} and {}", r.operands, r.results, op.in.size(),
                           op.out.size());
    const std::string wrong = check_attrs(r, op);
    return wrong.empty() ? r.check(routine, op) : wrong;
}

bool is_linear(const Routine& routine, const Op& op, int operand) {
    const OpRule& r = rule(op.kind);
    if (r.sharding.linear_in_all_together) return true;
    const auto bytes = [&](TensorId t) { return bytes_of(routine.tensors[t].dtype); };
    if (op.kind == ir::kCast && bytes(op.out[0]) < bytes(op.in[0])) return false;
    return std::find(r.sharding.linear.begin(), r.sharding.linear.end(), operand) != r.sharding.linear.end();
}

bool is_repeated(const Op& op, int result) {
    const std::vector<int>& repeated = rule(op.kind).sharding.repeated;
    return std::find(repeated.begin(), repeated.end(), result) != repeated.end();
}

std::vector<Rewrite> rewrites_of(const Op& op) {
    const Memory& memory = rule(op.kind).memory;
    return memory.rewrites_by_op ? memory.rewrites_by_op(op) : memory.rewrites;
}

std::vector<DimId> iteration_space(const Routine& routine, const Op& op) {
    std::vector<DimId> space;
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (TensorId t : *list) {
            for (DimId d : routine.tensors[t].dims) {
                if (std::find(space.begin(), space.end(), d) == space.end()) space.push_back(d);
            }
        }
    }
    return space;
}

Flops flops_of(const mesh::Mesh& mesh, const Routine& routine, const Op& op) {
    const OpRule& r = rule(op.kind);
    if (r.collective) return {};
    Flops f;
    if (r.flops) {
        f = r.flops(mesh, routine, op);
    } else {
        for (TensorId t : op.out) f.executed += static_cast<double>(ir::local_elements(mesh, routine, routine.tensors[t]));
    }
    if (op.attrs.contains("recomputed")) f.model = 0;
    return f;
}

int64_t bytes_moved(const mesh::Mesh& mesh, const Routine& routine, const Op& op) {
    int64_t bytes = 0;
    for (TensorId t : op.in) bytes += ir::local_bytes(mesh, routine, routine.tensors[t]);
    for (TensorId t : op.out) bytes += ir::local_bytes(mesh, routine, routine.tensors[t]);
    return bytes - untouched_bytes(mesh, routine, op);
}

}  // namespace lockstep::ops
