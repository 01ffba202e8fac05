// What Lockstep knows of an op kind: shape, derivative, sharding, cost and expansion, side by side in one file a family.
// About fifteen kinds are primitives. A composite has `expand` into primitives and inherits the rest from it; a kernel may
// replace it at the end (passes/select_kernels), else it is expanded there.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/kinds.h"
#include "ir/program.h"

namespace lockstep::ops {

using ir::DimId;
using ir::Op;
using ir::Routine;
using ir::TensorId;

class Builder;

struct Flops {
    double model = 0;     // the mathematics; attention in full although causal; nothing for recomputed ops
    double executed = 0;  // what the kernels do
};

enum class AttrType { Integer, Number, Text, Integers };  // the alternatives of ir::Attr, in their order
struct Attribute {
    std::string_view name;
    AttrType type;
    bool optional = false;
};

// A result that is in the bytes of an operand.
struct Rewrite {
    int result, operand;
    bool must = false;
};

// How an op is placed. It runs where the table places its iteration space: all dims of operands and results together.
struct Sharding {
    std::function<std::vector<DimId>(const Routine&, const Op&)> unsplit{};  // dims it cannot have sharded
    std::vector<int> linear{};                                               // operands in which it is linear: see is_linear
    bool linear_unconditionally = false;  // a partial operand stays partial without further conditions (rename, scale)
    bool linear_in_all_together = false;  // add: all operands equally partial
    int addend = -1;                      // an operand that is added: partial as the result is
    ir::Reduce reduce = ir::Reduce::Sum;  // how a result that lost a sharded dim is partial
    // Results that hold what each rank computes of whole operands by itself: they are not partial where others lost a dim.
    std::vector<int> repeated{};
    bool takes_qkv_apart = false;  // knows the rows of a dim of role Qkv; to other ops they are a list
    bool of_blocks = false;        // ops/blocks.cpp: placed by Op::group
    // Works block by block along a dim and what is aligned with it (ir::Dim::of), which are then split alike.
    bool aligned = false;
    // Attention over ranks that each have some of the keys: Op::group splits both seq and kv_seq, and all pairs of blocks are
    // meant. No kernel serves it then (passes/ring_attention).
    bool meets = false;
};

// What is stored under bfloat16 (passes/set_precision). Arithmetic is in float32 in any case.
struct Precision {
    bool wide = false;            // all floats stay float32: maxima and sums of the loss
    std::vector<int> wide_in{};   // operands, and results, that stay float32 where the rest is bfloat16: statistics of a
    std::vector<int> wide_out{};  // norm, lse of attention
    int logits = -1;              // an operand that is logits: float32, or what training.logits says
    bool any_dtype = false;       // operands stay as they are: add, scale, rename, unary
    bool wide_if_any = false;     // a sum: its result is wide if one of its operands is
};

struct Memory {
    bool always_recomputed = false;  // its results are never saved for backward: computed again from its operands
    // Where result 0 and operand 0 are in one place, it has nothing to do: passes/plan_memory makes the result a view.
    bool view = false;
    int in_place = -1;  // the operand in whose bytes result 0 may be, where the kernel's table entry agrees
    // Operands that every kernel of the op may overwrite with a result of the same size. must: the kernel finds the operand
    // through the result, so both are one place. Of a grouped launch each member's own.
    std::vector<Rewrite> rewrites{};
    std::function<std::vector<Rewrite>(const Op&)> rewrites_by_op{};  // instead, where they depend on its operands
};

// What PyTorch's autograd keeps of an op until its backward (sim/stack_memory).
struct Kept {
    std::vector<int> operands{}, results{};
    bool of_product = false;  // the operands are a product's factors: the gradient of its weights may come later
};

// Of the end of a step.
struct StepEnd {
    bool of_states = false;      // on flat states, placed by the pass that writes it (passes/partition_parameters)
    bool obeys_control = false;  // its last operand is the step's `control`, in double
    bool updates = false;        // its first result are the new weights
    bool clears = false;         // reads nothing, and writes zeros to the elements that its attribute `ranges` lists
};

struct OpRule {
    std::string_view name;

    // How many operands and results; -1: checked by `check`. Looked at first, so that `check` may index them.
    int operands = -1, results = -1;
    // What it knows: another attribute, or one of another type, is a violation, and so is one that is missing and not optional.
    std::vector<Attribute> attrs{};
    // Empty if operands, results and attributes agree, else what does not. Dims are global. Callers use check_op.
    std::function<std::string(const Routine&, const Op&)> check;

    // Emits the cotangent of every operand (-1: none) given those of the results (-1: none). Empty: not differentiable.
    std::function<std::vector<TensorId>(Builder&, const Op&, std::span<const TensorId> d_out)> derivative;

    std::function<Flops(const mesh::Mesh&, const Routine&, const Op&)> flops;  // of one rank; empty: one a result element

    // Composites: results in terms of simpler ops.
    std::function<std::vector<TensorId>(Builder&, const Op&)> expand;

    bool collective = false;
    bool accumulates = false;    // adds operand 0 to a sum in a port, result 0
    bool copies = false;         // result 0 has the elements of operand 0, in their order
    int norm_weight = -1;        // a norm's: the operand that is its weight; the bias is behind it
    int queries = -1;            // attention's: the operand that holds the queries; keys and values are behind it
    std::string_view with_term;  // the kind that takes one operand more, the first, and adds it to result 0: ops/fused.cpp
    bool gives_amax = false;     // may give the largest sizes of its results, too: pieces_of

    Sharding sharding;
    Precision precision;
    Memory memory;
    Kept kept;
    StepEnd step_end;
};

const OpRule* find_rule(std::string_view kind);  // nullptr for an unknown kind
// Throws InternalError for an unknown kind.
const OpRule& rule(std::string_view kind);
const std::vector<OpRule>& all_rules();

// The op and what its kernel does with it: an op that gives amax has a list `amax` of results, and behind its other results the
// amax of each of them. Returned are the op without them, and an amax op for each.
inline const std::string kAmaxOf = "amax";
std::vector<Op> pieces_of(const Op& op);

// The op against its rule: counts, then `check`. Empty, or what is wrong.
std::string check_op(const Routine& routine, const Op& op);

// May a partial sum pass through this operand? A narrowing cast is not linear: a sum is rounded once, when it is whole.
bool is_linear(const Routine& routine, const Op& op, int operand);

// By the rule's sharding: does each rank make this result by itself?
bool is_repeated(const Op& op, int result);

// By the rule's memory, of this op.
std::vector<Rewrite> rewrites_of(const Op& op);

// Model and executed FLOPs of one op on one rank (law: no second formula anywhere).
Flops flops_of(const mesh::Mesh& mesh, const Routine& routine, const Op& op);
// Bytes read and written by one op on one rank.
int64_t bytes_moved(const mesh::Mesh& mesh, const Routine& routine, const Op& op);
// All dims of operands and results, each once, in order of appearance.
std::vector<DimId> iteration_space(const Routine& routine, const Op& op);

// An einsum of two operands that is one product of matrices, row-major on every rank (or the
// product of an addmm):
// out[m, n] = sum_k a[m, k] b[n, k], either operand possibly stored transposed.
struct MatmulShape {
    int64_t m = 0, n = 0, k = 0;  // local sizes
    bool a_transposed = false;    // stored [k, m]
    bool b_transposed = false;    // stored [k, n]
    bool swapped = false;         // a is the second operand and b the first
};
bool is_matmul(const mesh::Mesh& mesh, const Routine& routine, const Op& op, MatmulShape* shape);

// Families; collected by all_rules().
std::vector<OpRule> einsum_rules();
std::vector<OpRule> elementwise_rules();
std::vector<OpRule> norm_rules();
std::vector<OpRule> bias_rules();
std::vector<OpRule> dropout_rules();
std::vector<OpRule> embedding_rules();
std::vector<OpRule> rope_rules();
std::vector<OpRule> attention_rules();
std::vector<OpRule> loss_rules();
std::vector<OpRule> collective_rules();
std::vector<OpRule> block_rules();
std::vector<OpRule> optimizer_rules();
std::vector<OpRule> quantize_rules();
std::vector<OpRule> float8_rules();
std::vector<OpRule> fused_rules();

}  // namespace lockstep::ops
