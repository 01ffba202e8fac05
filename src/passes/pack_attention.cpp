#include "passes/pack_attention.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "ops/builder.h"
#include "ops/rule.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// A routine's ops by what they make and read.
class Uses {
public:
    explicit Uses(const Routine& r) : r_(r) {}

    const Op* maker(TensorId t, std::string_view kind) const {
        return find([&](const Op& op) { return op.kind == kind && has(op.out, t); });
    }
    // Of a tensor that nothing else reads, and that is in no port but a frame.
    const Op* only_reader(TensorId t, std::string_view kind) const {
        const ir::Tensor& tensor = r_.tensors[static_cast<size_t>(t)];
        if (tensor.port >= 0 && !in_frame(r_, tensor)) return nullptr;
        const auto reads = [&](const Op& op) { return has(op.in, t); };
        const Op* first = find(reads);
        const bool once = first && std::count_if(r_.ops.begin(), r_.ops.end(), reads) == 1 &&
                          std::count(first->in.begin(), first->in.end(), t) == 1;
        return once && first->kind == kind ? first : nullptr;
    }

private:
    static bool has(const std::vector<TensorId>& all, TensorId t) { return std::find(all.begin(), all.end(), t) != all.end(); }
    template <class F>
    const Op* find(F f) const {
        const auto at = std::find_if(r_.ops.begin(), r_.ops.end(), f);
        return at == r_.ops.end() ? nullptr : &*at;
    }
    const Routine& r_;
};

using Serves = std::function<bool(const Routine&, const Op&)>;

// Queries, keys and values as they are saved, or made.
using Parts = std::array<TensorId, 3>;

// split_qkv, the names of its keys and values along kv_seq, and attention, of one forward.
struct Forward {
    Op split, attention;
    Parts parts;
    std::vector<const Op*> old;
};
// attention_backward and join_qkv of one backward.
struct Backward {
    Op attention, join;
    Parts parts;
    std::vector<const Op*> old;
};

// What attention reads, one after the other, from operand `first` on: tensors that nothing else reads.
bool reads_parts(const Uses& uses, const Op& attention, size_t first, Parts& parts, std::vector<const Op*>& old) {
    parts[0] = attention.in[first];
    if (!attention.group.empty()) return false;  // in a ring, keys travel without the queries
    if (!uses.only_reader(parts[0], attention.kind)) return false;
    for (size_t i = 1; i < 3; ++i) {
        const TensorId all = attention.in[first + i];
        const Op* rename = uses.maker(all, ir::kRename);
        if (!rename || !uses.only_reader(all, attention.kind) || !uses.only_reader(rename->in[0], ir::kRename)) return false;
        parts[i] = rename->in[0];
        old.push_back(rename);
    }
    old.push_back(&attention);
    return true;
}

std::optional<Forward> find_forward(const Routine& r) {
    const Uses uses(r);
    for (const Op& op : r.ops) {
        if (op.kind != "attention" || op.attrs.contains("dropout")) continue;
        Forward f{{}, op, {}, {}};
        if (!reads_parts(uses, op, 0, f.parts, f.old)) continue;
        const Op* split = uses.maker(f.parts[0], ir::kSplitQkv);
        if (!split || !std::equal(f.parts.begin(), f.parts.end(), split->out.begin())) continue;
        f.split = *split;
        f.old.push_back(split);
        return f;
    }
    return std::nullopt;
}

std::optional<Backward> find_backward(const Routine& r) {
    const Uses uses(r);
    for (const Op& op : r.ops) {
        if (op.kind != ir::kAttentionBackward || op.attrs.contains("dropout")) continue;
        Backward b{op, {}, {}, {}};
        if (!reads_parts(uses, op, 1, b.parts, b.old)) continue;
        std::array<TensorId, 3> gradients = {op.out[0], -1, -1};
        for (size_t i = 1; i < 3; ++i) {
            const Op* rename = uses.only_reader(op.out[i], ir::kRename);
            if (!rename) break;
            gradients[i] = rename->out[0];
            b.old.push_back(rename);
        }
        const Op* join = gradients[2] >= 0 ? uses.only_reader(gradients[0], "join_qkv") : nullptr;
        if (!join || !std::equal(gradients.begin(), gradients.end(), join->in.begin())) continue;
        if (!uses.only_reader(gradients[1], "join_qkv") || !uses.only_reader(gradients[2], "join_qkv")) continue;
        b.join = *join;
        b.old.push_back(join);
        return b;
    }
    return std::nullopt;
}

// Puts `made` where the op `at` was, and takes the old ones out.
void replace(Routine& r, const std::vector<const Op*>& old, const Op& at, const std::vector<Op>& made) {
    std::vector<Op> ops;
    for (const Op& op : r.ops) {
        if (op.out == at.out) ops.insert(ops.end(), made.begin(), made.end());
        else if (std::find(old.begin(), old.end(), &op) == old.end()) ops.push_back(op);
    }
    r.ops = std::move(ops);
}

// The rotation of `from` as split_qkv or join_qkv had it.
std::optional<Op> rotation(const Op& of, TensorId from, TensorId to) {
    if (!of.attrs.contains("sign")) return std::nullopt;
    Op rope;
    rope.kind = ir::kRope;
    rope.in = {from, of.in.back()}, rope.out = {to};
    rope.attrs = of.attrs;
    return rope;
}

bool all_served(const Serves& serves, const Routine& r, const std::vector<Op>& made) {
    return std::all_of(made.begin(), made.end(), [&](const Op& op) { return ops::check_op(r, op).empty() && serves(r, op); });
}

ir::Tensor& at(Routine& r, TensorId t) { return r.tensors[static_cast<size_t>(t)]; }

// The tensor of the queries, saved or not, becomes the row, with the dims of `like`; those of keys and values are no more.
void make_row(Routine& r, const Parts& parts, TensorId like, const ir::Placement& placement, const std::string& name) {
    ir::Tensor& row = at(r, parts[0]);
    row.name.clear();
    row.name = ops::Builder(r).fresh(name);
    row.dims = at(r, like).dims, row.dtype = at(r, like).dtype, row.placement = placement;
    if (!row.source.empty()) row.source = name;
    for (size_t i = 1; i < 3; ++i) at(r, parts[i]).port = -1, at(r, parts[i]).source.clear();
}

// False where a kernel is missing.
bool pack(Routine& r, const Forward& f, const std::string& name, const Serves& serves) {
    const TensorId product = f.split.in[0], row = f.parts[0];
    if (!Uses(r).only_reader(product, ir::kSplitQkv) || at(r, product).port >= 0) return false;
    make_row(r, f.parts, product, at(r, product).placement, name);
    Op attention = f.attention;
    attention.in.erase(attention.in.begin() + 1, attention.in.begin() + 3);
    std::vector<Op> made = {attention};
    const std::optional<Op> rope = rotation(f.split, product, row);
    if (rope) made.insert(made.begin(), *rope);
    if (!all_served(serves, r, made)) return false;
    replace(r, f.old, f.attention, made);
    for (Op& op : r.ops) {
        if (!rope) std::replace(op.out.begin(), op.out.end(), product, row);
    }
    return true;
}

bool pack(Routine& r, const Backward& b, const ir::Placement& placement, const std::string& name, const Serves& serves) {
    const TensorId gradient = b.join.out[0];
    make_row(r, b.parts, gradient, placement, name);
    Op attention = b.attention;
    attention.in.erase(attention.in.begin() + 2, attention.in.begin() + 4);
    attention.out.resize(1);
    const std::optional<Op> rope = rotation(b.join, attention.out[0], gradient);
    if (rope) {
        ir::Tensor& before = at(r, attention.out[0]);
        before.dims = at(r, gradient).dims, before.dtype = at(r, gradient).dtype, before.placement = at(r, gradient).placement;
        before.name = ops::Builder(r).fresh("d." + name);
    } else {
        attention.out[0] = gradient;
    }
    std::vector<Op> made = {attention};
    if (rope) made.push_back(*rope);
    if (!all_served(serves, r, made)) return false;
    replace(r, b.old, b.join, made);
    return true;
}

bool are_saved(const Routine& r, const Parts& parts) {
    return std::all_of(parts.begin(), parts.end(), [&](TensorId t) { return in_frame(r, r.tensors[static_cast<size_t>(t)]); });
}
bool are_the_same(const Routine& a, const Parts& in_a, const Routine& b, const Parts& in_b) {
    return std::equal(in_a.begin(), in_a.end(), in_b.begin(), [&](TensorId x, TensorId y) {
        return saved_as(a.tensors[static_cast<size_t>(x)]) == saved_as(b.tensors[static_cast<size_t>(y)]);
    });
}
std::string name_of_row(Routine& r, const Forward& f) { return ops::Builder(r).fresh(at(r, f.split.in[0]).name + "_rot"); }

void pack_pair(Routine& forward, Routine& backward, const Serves& serves) {
    Routine f = forward, b = backward;
    const std::optional<Forward> of_forward = find_forward(f);
    const std::optional<Backward> of_backward = find_backward(b);
    if (!of_forward || !of_backward || !are_saved(f, of_forward->parts) || !are_saved(b, of_backward->parts)) return;
    if (!are_the_same(f, of_forward->parts, b, of_backward->parts)) return;
    const std::string name = name_of_row(f, *of_forward);
    if (!pack(f, *of_forward, name, serves)) return;
    if (!pack(b, *of_backward, at(f, of_forward->parts[0]).placement, name, serves)) return;
    ops::renumber(f), ops::renumber(b);
    forward = std::move(f), backward = std::move(b);
}

void pack_alone(Routine& forward, const Serves& serves) {
    Routine f = forward;
    const std::optional<Forward> found = find_forward(f);
    if (!found || !pack(f, *found, name_of_row(f, *found), serves)) return;
    ops::renumber(f);
    forward = std::move(f);
}

}  // namespace

ir::Program pack_attention(ir::Program program, const ops::KernelCatalog& catalog) {
    const Serves serves = [&](const Routine& r, const Op& op) {
        return std::any_of(catalog.entries.begin(), catalog.entries.end(), [&](const ops::KernelEntry& e) {
            return e.op == op.kind && e.dtype == r.tensors[static_cast<size_t>(op.out[0])].dtype && !e.is_reference && e.serves &&
                   e.serves(program.mesh, r, op);
        });
    };
    if (!catalog.gives_more) return program;  // a described one serves ops as other software has them
    for (Routine& forward : program.routines) {
        if (forward.kind != ir::RoutineKind::Forward) continue;
        const auto backward = std::find_if(program.routines.begin(), program.routines.end(), [&](const Routine& r) {
            return r.kind == ir::RoutineKind::Backward && r.block == forward.block && r.entry == forward.entry;
        });
        if (forward.entry == ir::EntryKind::Eval) pack_alone(forward, serves);
        if (forward.entry == ir::EntryKind::Train && backward != program.routines.end()) pack_pair(forward, *backward, serves);
    }
    return program;
}

}  // namespace lockstep::passes
