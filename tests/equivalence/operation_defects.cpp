// Defects inside single operations, and of the data.
#include "ir/program.h"
#include "kernels/kernel.h"
#include "ops/dropout.h"
#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::Op;
using ir::Routine;
using ir::RoutineKind;

Defect set_to(const std::string& name, const Kinds& routines, const char* kind, const char* key, const ir::Attr& value) {
    return {name, in_programs([=](ir::Program& p) { return set_attr(p, routines, kind, key, value); })};
}

Defect in_data(const std::string& name, std::function<void(Sample)> alter,
               std::function<bool(const compile::Compiled&)> has_place = {}) {
    return {name, [=](Subject& s) {
                s.alter_data = alter;
                return !has_place || has_place(s.compiled);
            }};
}

bool times(Op& op, const char* key, double factor) {
    op.attrs[key] = op.number(key) * factor;
    return true;
}

// Sets how many columns of the vocabulary are valid, in the loss alone.
bool set_valid_vocab(ir::Program& p, int64_t more) {
    bool any = false;
    for (Routine& r : p.routines) {
        const ir::DimId vocab = r.dim("vocab");
        const bool masks = std::any_of(r.ops.begin(), r.ops.end(), [](const Op& op) { return op.kind == "mask_padding"; });
        if (!masks || vocab < 0) continue;
        r.dims[vocab].valid += more;
        any = true;
    }
    return any;
}

// Backward reads zeros for the documents: a port of another kind, bound to bytes that nobody writes.
bool forget_documents_in_backward(ir::Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (r.kind != RoutineKind::Backward) continue;
        for (ir::Port& port : r.ports) {
            if (port.kind != ir::PortKind::Input || !port.name.starts_with("doc")) continue;
            port.kind = ir::PortKind::Value;
            any = true;
        }
    }
    if (!any) return false;
    int64_t bytes = 0;
    const auto is_forgotten = [](const ir::Port& port) { return port.name.starts_with("doc"); };
    const int zeros = static_cast<int>(p.buffers.size());
    each_call(p, kBackwards, [&](const Routine& r, ir::Call& c) {
        for (size_t i = 0; i < r.ports.size(); ++i) {
            if (!is_forgotten(r.ports[i])) continue;
            bytes = std::max(bytes, p.buffers[c.bindings[i].buffer].bytes);
            c.bindings[i] = {zeros, 0, false};
        }
        return true;
    });
    p.buffers.push_back({"no_documents", ir::MemoryKind::Input, bytes, true, p.arena_bytes[Place::Device]});
    p.arena_bytes[Place::Device] += bytes;
    return true;
}

bool another_place(Op& op, bool wanted = true) {
    if (!wanted || !ops::has_dropout(op)) return false;
    op.attrs["rng_key"] = op.integer("rng_key") + 1;
    return true;
}

// Where a routine reads the noise of whole sequences and that of its ranks' parts: the parts are taken from the beginning, as if
// each rank counted its own tokens.
bool count_own_tokens(ir::Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        const ir::TensorId whole = r.find("noise@whole");
        for (ir::Tensor& t : r.tensors) {
            if (whole < 0 || t.source != "noise" || t.port == r.tensors[whole].port) continue;
            t.port = r.tensors[whole].port;
            any = true;
        }
    }
    return any;
}

// A bias after a row-parallel product is added twice, as if two ranks had each added it before their sum.
bool add_bias_on_every_rank(Routine& r, Op& sum) {
    const auto maker = [&](ir::TensorId t, const char* kind) {
        return std::find_if(r.ops.begin(), r.ops.end(), [&](const Op& op) { return op.kind == kind && op.out[0] == t; });
    };
    if (sum.in.size() != 2) return false;
    const auto rows = maker(sum.in[1], "einsum");
    const bool is_bias = rows != r.ops.end() && rows->in.size() == 1 && r.tensors[rows->in[0]].port >= 0;
    const bool reduced = maker(sum.in[0], "reduce_scatter") != r.ops.end() || maker(sum.in[0], "all_reduce") != r.ops.end();
    if (is_bias && reduced) sum.in.push_back(sum.in[1]);
    return is_bias && reduced;
}

bool turn_forward(Routine&, Op& op) {
    const bool back = op.attrs.contains("sign") && op.integer("sign") < 0;
    if (back) op.attrs["sign"] = int64_t{1};
    return back;
}

}  // namespace

std::vector<Defect> operation_defects() {
    const auto reads = [](const Routine& r, const Op& op, const char* name) {
        return r.tensors[op.in[0]].name.starts_with(name);
    };
    return {
        in_ops("attention's scale is off in backward only", kBackwards, "attention_backward",
               [](Routine&, Op& op) { return times(op, "scale", 1.01); }),
        in_ops("rope's sign is not turned in backward", kBackwards, "rope", turn_forward),
        in_ops("the sign is not turned where gradients are joined", kBackwards, "join_qkv", turn_forward),
        in_ops("theta is off where queries, keys and values are taken apart", kForwards, "split_qkv",
               [](Routine&, Op& op) { return op.attrs.contains("theta") && times(op, "theta", 1.1); }),
        in_ops("rope's theta is off in forward", kForwards, "rope", [](Routine&, Op& op) { return times(op, "theta", 1.1); }),
        in_ops("rope's theta is off for keys only", kCompute, "rope",
               [=](Routine& r, Op& op) { return reads(r, op, "k") && times(op, "theta", 1.1); }),
        set_to("rope is not scaled", kCompute, "rope", "factor", 1.0),
        set_to("a norm's epsilon is off", kForwards, "unary", "eps", 2e-5),
        in_ops("the slope of SiLU is SiLU", kBackwards, "unary",
               [](Routine&, Op& op) {
                   if (op.text("fn") != "dsilu") return false;
                   op.attrs["fn"] = std::string("silu");
                   return true;
               }),
        in_ops("the slope of GELU is GELU", kBackwards, "unary",
               [](Routine&, Op& op) {
                   if (op.text("fn") != "dgelu") return false;
                   op.attrs["fn"] = std::string("gelu");
                   return true;
               }),
        in_ops("a row-parallel bias is added on every rank", kForwards, "add", add_bias_on_every_rank),
        in_ops("the window of backward is one wider", kBackwards, "attention_backward",
               [](Routine&, Op& op) {
                   const int64_t window = op.integer("window");
                   if (window > 0) op.attrs["window"] = window + 1;
                   return window > 0;
               }),
        in_ops("dropout of backward has another mask", kBackwards, "dropout",
               [](Routine&, Op& op) { return another_place(op, !op.attrs.contains("recomputed")); }),
        in_ops("dropout of the recomputed forward has another mask", kBackwards, "dropout",
               [](Routine&, Op& op) { return another_place(op, op.attrs.contains("recomputed")); }),
        in_ops("dropout of attention's backward has another mask", kBackwards, "attention_backward",
               [](Routine&, Op& op) { return another_place(op); }),
        in_ops("dropout of recomputed attention has another mask", kBackwards, "attention",
               [](Routine&, Op& op) { return another_place(op); }),
        {"dropout counts a rank's own tokens", in_programs([](ir::Program& p) { return count_own_tokens(p); })},
        {"backward takes every layer's masks for the first's", in_programs([](ir::Program& p) {
             return each_call(p, kBackwards, [](const Routine& r, ir::Call& c) {
                 return std::any_of(r.ops.begin(), r.ops.end(), ops::has_dropout) && std::exchange(c.instance, 0) != 0;
             });
         })},
        in_ops("a branch's gradient is dropped, another taken twice", kBackwards, "add",
               [](Routine&, Op& op) {
                   const bool differ = op.in[0] != op.in[1];
                   op.in[1] = op.in[0];
                   return differ;
               }),
        {"columns of padding take part in the softmax", in_programs([](ir::Program& p) { return set_valid_vocab(p, 1); })},
        {"the last token of the vocabulary is masked", in_programs([](ir::Program& p) { return set_valid_vocab(p, -1); })},
        {"document mask ignored in backward", in_programs([](ir::Program& p) { return forget_documents_in_backward(p); })},

        in_ops("weight decay on norms", kUpdate, "adamw",
               [](Routine&, Op& op) {
                   const bool is_norm = op.number("weight_decay") == 0;
                   if (is_norm) op.attrs["weight_decay"] = 0.1;
                   return is_norm;
               }),
        set_to("beta1 is off in one kernel", kUpdate, "adamw", "beta1", 0.8),
        set_to("beta2 is off in one kernel", kUpdate, "adamw", "beta2", 0.999),
        in_ops("epsilon of the optimizer is off", kUpdate, "adamw", [](Routine&, Op& op) { return times(op, "eps", 10); }),
        set_to("bias correction with another beta", kStats, "step_control", "beta2", 0.999),
        set_to("clipping is ignored", kStats, "step_control", "max_norm", 0.0),
        in_ops("clipping to another norm", kStats, "step_control",
               [](Routine&, Op& op) { return op.number("max_norm") > 0 && times(op, "max_norm", 1.001); }),

        in_data("positions of the second half of a sequence are off by one",
                [](Sample x) {
                    for (size_t t = x.positions.size() / 2; t < x.positions.size(); ++t) ++x.positions[t];
                }),
        in_data("targets are one place late",
                [](Sample x) { std::rotate(x.targets.begin(), x.targets.end() - 1, x.targets.end()); }),
        in_data("masked targets count as token 0",
                [](Sample x) {
                    for (int32_t& t : x.targets) t = std::max(t, 0);
                }),
        in_data("documents are not told apart", [](Sample x) { std::fill(x.documents.begin(), x.documents.end(), 0); }),
        {"the rest of the batch is filled with samples that count",
         [](Subject& s) {
             compile::Layout& l = s.compiled.layout;
             const int64_t whole = l.microbatches * l.local_batch * l.data_ranks;
             return std::exchange(l.global_batch, whole) < whole;
         }},
    };
}

}  // namespace lockstep::testing
