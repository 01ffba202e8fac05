#include "passes/fuse_ops.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <span>

#include "ops/builder.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

class Fuser {
public:
    Fuser(Routine& r, const Serves& serves, bool gives_more) : r_(r), serves_(serves), gives_more_(gives_more) {}

    void run() {
        while (one(ir::kRmsnorm, &Fuser::residual_and_norm) || one(ir::kSplitQkv, &Fuser::queries_keys_values)) {
        }
        while (one(ir::kGelu, &Fuser::product_bias_and_gelu) || one(ir::kGeluBackward, &Fuser::product_and_gelu_backward)) {
        }
        while (one(ir::kGelu, &Fuser::bias_and_gelu) || one(ir::kBias, &Fuser::product_and_bias)) {
        }
        while (gives_more_ && (one(ir::kCast, &Fuser::update_and_cast) || one(ir::kSwigluBackward, &Fuser::swiglu_again))) {
        }
        while (one(ir::kCrossEntropyBackward, &Fuser::loss_and_gradient)) {
        }
        while (gives_more_ && one(ir::kAmax, &Fuser::amax_and_its_maker)) {
        }
        while (one(ir::kAdd, &Fuser::norm_backward_and_add) || one(ir::kAdd, &Fuser::product_and_add)) {
        }
    }

private:
    // The first fusion that begins at an op of this kind. It changes positions, so the next search begins anew.
    bool one(std::string_view kind, bool (Fuser::*fuse)(size_t)) {
        count();
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            if (r_.ops[i].kind == kind && (this->*fuse)(i)) return true;
        }
        return false;
    }

    void count() {
        maker_.assign(r_.tensors.size(), -1);
        readers_.assign(r_.tensors.size(), 0);
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            for (TensorId t : r_.ops[i].in) ++readers_[t];
            for (TensorId t : r_.ops[i].out) maker_[t] = static_cast<int>(i);
        }
    }
    const Op* made_by(TensorId t) const { return maker_[t] >= 0 ? &r_.ops[maker_[t]] : nullptr; }
    const Op* made_by(TensorId t, std::string_view kind) const {
        const Op* op = made_by(t);
        return op && op->kind == kind ? op : nullptr;
    }
    // Read by one op and by no other routine: need not exist once that op makes it for itself.
    bool only_here(TensorId t) const { return readers_[t] == 1 && r_.tensors[t].port < 0; }

    // Puts `op` where the last of `old` was, or the first if an op between them reads a result and the operands are there
    // already. False where neither can be, or no kernel serves it.
    bool replace(std::vector<size_t> old, Op op) {
        std::sort(old.begin(), old.end());
        bool late = true, early = true;
        for (size_t i = old.front(); i < old.back(); ++i) {
            if (std::find(old.begin(), old.end(), i) != old.end()) continue;
            for (TensorId t : r_.ops[i].in) late &= std::find(op.out.begin(), op.out.end(), t) == op.out.end();
        }
        for (TensorId t : op.in) early &= maker_[t] < static_cast<int>(old.front());
        if (!late && !early) return false;
        const bool recomputed = std::ranges::all_of(old, [&](size_t i) { return r_.ops[i].attrs.contains("recomputed"); });
        if (recomputed) op.attrs["recomputed"] = int64_t{1};
        else op.attrs.erase("recomputed");
        if (!serves_(r_, op)) return false;
        if (!late) std::rotate(old.begin(), old.begin() + 1, old.end());
        r_.ops[old.back()] = std::move(op);
        old.pop_back();
        std::sort(old.begin(), old.end());
        for (; !old.empty(); old.pop_back()) r_.ops.erase(r_.ops.begin() + static_cast<long>(old.back()));
        return true;
    }

    bool residual_and_norm(size_t i) {
        const Op norm = r_.ops[i];
        const Op* add = made_by(norm.in[0], ir::kAdd);
        if (!add || add->in.size() != 2 || !r_.tensors[norm.in[0]].placement.partial.empty()) return false;
        if (product_and_add(static_cast<size_t>(maker_[norm.in[0]]))) return true;
        Op fused = norm;
        fused.kind = ir::kAddRmsnorm;
        fused.in = {add->in[0], add->in[1], norm.in[1]};
        fused.out = {norm.in[0], norm.out[0], norm.out[1]};
        return replace({static_cast<size_t>(maker_[norm.in[0]]), i}, fused);
    }

    // The product whose result is taken apart and rotated.
    bool queries_keys_values(size_t i) {
        const Op split = r_.ops[i];
        const Op* product = split.in.size() == 2 ? made_by(split.in[0], ir::kEinsum) : nullptr;
        if (!product || product->in.size() != 2 || !only_here(split.in[0])) return false;
        Op fused = split;
        fused.kind = ir::kQkvRope;
        fused.in = {product->in[0], product->in[1], split.in[1]};
        return ops::check_op(r_, fused).empty() && replace({static_cast<size_t>(maker_[split.in[0]]), i}, fused);
    }

    // The product of two factors that makes a tensor which nothing else reads.
    const Op* product_for(TensorId t) const {
        const Op* product = made_by(t, ir::kEinsum);
        return product && product->in.size() == 2 && only_here(t) ? product : nullptr;
    }

    // An op of two operands whose first is the result of a product, with that product.
    bool with_product(size_t i, std::string_view kind) {
        const Op op = r_.ops[i];
        const Op* product = product_for(op.in[0]);
        if (!product) return false;
        Op fused = op;
        fused.kind = kind;
        fused.in = {product->in[0], product->in[1], op.in[1]};
        return ops::check_op(r_, fused).empty() && replace({static_cast<size_t>(maker_[op.in[0]]), i}, fused);
    }

    // GELU's operand stays a result where others read it: backward, through the frame.
    bool product_bias_and_gelu(size_t i) {
        const Op gelu = r_.ops[i];
        const TensorId z = gelu.in[0];
        const Op* bias = made_by(z, ir::kBias);
        const Op* product = bias ? product_for(bias->in[0]) : nullptr;
        if (!product) return false;
        Op fused = gelu;
        fused.kind = ir::kLinearGelu;
        fused.in = {product->in[0], product->in[1], bias->in[1]};
        if (!only_here(z)) fused.out.push_back(z);
        const auto at = [&](TensorId t) { return static_cast<size_t>(maker_[t]); };
        return ops::check_op(r_, fused).empty() && replace({at(bias->in[0]), at(z), i}, fused);
    }

    bool product_and_gelu_backward(size_t i) { return with_product(i, ir::kMatmulDgelu); }
    // Of a partial sum the bias is added behind the reduction, so no product makes its operand.
    bool product_and_bias(size_t i) { return with_product(i, ir::kLinear); }

    bool bias_and_gelu(size_t i) {
        const Op gelu = r_.ops[i];
        const TensorId z = gelu.in[0];
        const Op* bias = made_by(z, ir::kBias);
        if (!bias || !only_here(z)) return false;
        Op fused = gelu;
        fused.kind = ir::kBiasGelu;
        fused.in = bias->in;
        return replace({static_cast<size_t>(maker_[z]), i}, fused);
    }

    // d_z = d_nll / z; nothing of it is between the maximum, the sum and the gradient: the vocabulary is whole.
    bool loss_and_gradient(size_t i) {
        const Op backward = r_.ops[i];
        const TensorId d_z = backward.in[0], d_t = backward.in[1], logits = backward.in[2], m = backward.in[3];
        const Op* product = made_by(d_z, ir::kEinsum);
        if (!product || product->in.size() != 2 || !only_here(d_z)) return false;
        const Op *slope = made_by(product->in[1], ir::kUnary), *max = made_by(m, ir::kMax);
        if (!slope || slope->text("fn") != "recip" || !only_here(product->in[1]) || !max || max->in[0] != logits) return false;
        const Op* forward = made_by(slope->in[0], ir::kCrossEntropy);
        if (!forward || forward->out[0] != slope->in[0]) return false;
        if (forward->in != std::vector<TensorId>{logits, m, backward.in[4]}) return false;
        Op fused = backward;
        fused.kind = ir::kCrossEntropyGradient;
        fused.attrs = max->attrs;
        fused.in = {product->in[0], d_t, logits, backward.in[4]};
        fused.out = {backward.out[0], m, forward->out[0], forward->out[1]};
        const std::vector<TensorId> old = {m, forward->out[0], slope->out[0], d_z};
        std::vector<size_t> at = {i};
        for (const TensorId t : old) at.push_back(static_cast<size_t>(maker_[t]));
        return ops::check_op(r_, fused).empty() && replace(at, fused);
    }

    // A backward that runs SwiGLU again: its kernel has the operands, and gives that result, too.
    bool swiglu_again(size_t i) {
        const Op backward = r_.ops[i];
        const auto same = [&](const Op& op) {
            return op.kind == ir::kSwiglu && std::ranges::equal(op.in, std::span(backward.in).subspan(1));
        };
        const auto end = r_.ops.begin() + static_cast<long>(i);
        const auto again = std::find_if(r_.ops.begin(), end, same);
        if (again == end || r_.tensors[again->out[0]].port >= 0 || !r_.tensors[backward.in[0]].placement.partial.empty())
            return false;
        Op fused = backward;
        fused.out.push_back(again->out[0]);
        if (!ops::check_op(r_, fused).empty() || !serves_(r_, fused)) return false;
        const size_t first = static_cast<size_t>(again - r_.ops.begin());
        const std::optional<size_t> at = move_behind(first, i);
        return at && replace({first, *at}, fused);
    }

    // Moves the ops between `first` and `last` that need what `first` makes, in their order, behind `last`. Returns where
    // `last` is then; none: it needs them itself.
    std::optional<size_t> move_behind(size_t first, size_t last) {
        std::vector<bool> needs(r_.tensors.size(), false);
        for (TensorId t : r_.ops[first].out) needs[t] = true;
        std::vector<Op> stay, moved;
        for (size_t i = first + 1; i <= last; ++i) {
            const Op& op = r_.ops[i];
            const auto any = [&](const std::vector<TensorId>& all) {
                return std::ranges::any_of(all, [&](TensorId t) { return needs[t]; });
            };
            const bool moves = any(op.in) || any(op.out);  // what adds to the same sum keeps its place behind
            if (moves && i == last) return std::nullopt;
            if (moves) {
                for (TensorId t : op.out) needs[t] = true;
            }
            (moves ? moved : stay).push_back(op);
        }
        const size_t at = first + stay.size();
        std::ranges::move(stay, r_.ops.begin() + static_cast<long>(first) + 1);
        std::ranges::move(moved, r_.ops.begin() + static_cast<long>(at) + 1);
        count();
        return at;
    }

    // The optimizer writes its new weights in a narrower type, too.
    bool update_and_cast(size_t i) {
        const Op cast = r_.ops[i];
        const Op* update = made_by(cast.in[0]);
        if (!update || !ops::rule(update->kind).step_end.updates || update->out[0] != cast.in[0]) return false;
        Op fused = *update;
        fused.out.push_back(cast.out[0]);
        return ops::check_op(r_, fused).empty() && replace({static_cast<size_t>(maker_[cast.in[0]]), i}, fused);
    }

    // What makes a tensor also gives its largest sizes.
    bool amax_and_its_maker(size_t i) {
        const Op amax = r_.ops[i];
        const TensorId x = amax.in[0];
        const Op* maker = made_by(x);
        if (amax.in.size() != 1 || !maker || !ops::rule(maker->kind).gives_amax) return false;
        Op fused = *maker;
        fused.out.push_back(amax.out[0]);
        std::vector<int64_t> of;
        if (maker->attrs.contains(ops::kAmaxOf)) of = std::get<std::vector<int64_t>>(maker->attrs.at(ops::kAmaxOf));
        of.push_back(std::find(maker->out.begin(), maker->out.end(), x) - maker->out.begin());
        fused.attrs[ops::kAmaxOf] = std::move(of);
        return ops::check_op(r_, fused).empty() && replace({static_cast<size_t>(maker_[x]), i}, fused);
    }

    bool norm_backward_and_add(size_t i) {
        const Op add = r_.ops[i];
        if (add.in.size() != 2) return false;
        for (int term : {0, 1}) {
            const Op* norm = made_by(add.in[term]);
            const std::string_view with_term = norm ? ops::rule(norm->kind).with_term : "";
            if (with_term.empty() || norm->out[0] != add.in[term] || !only_here(add.in[term])) continue;
            if (!r_.tensors[add.out[0]].placement.partial.empty()) continue;
            Op fused = *norm;
            fused.kind = with_term;
            fused.in.insert(fused.in.begin(), add.in[1 - term]);
            fused.out[0] = add.out[0];
            if (replace({static_cast<size_t>(maker_[add.in[term]]), i}, fused)) return true;
        }
        return false;
    }

    // The term that is made last is added to the sum of the others.
    bool product_and_add(size_t i) {
        const Op add = r_.ops[i];
        if (add.in.size() < 2) return false;
        const auto last =
            std::max_element(add.in.begin(), add.in.end(), [&](TensorId a, TensorId b) { return maker_[a] < maker_[b]; });
        const Op* product = made_by(*last, ir::kEinsum);
        if (!product || !only_here(*last)) return false;
        const size_t at = static_cast<size_t>(maker_[*last]);
        std::vector<TensorId> rest = add.in;
        rest.erase(rest.begin() + (last - add.in.begin()));
        Op fused = *product;
        fused.kind = ir::kAddmm;
        fused.in.insert(fused.in.begin(), rest[0]);  // of several: their sum, which has their shape and type
        fused.out = {add.out[0]};
        if (!ops::check_op(r_, fused).empty() || !serves_(r_, fused)) return false;
        if (rest.size() > 1) {
            ops::Builder b(r_);
            const TensorId sum =
                b.make({r_.tensors[add.out[0]].name + ".sum", r_.tensors[rest[0]].dims, r_.tensors[rest[0]].dtype});
            r_.tensors[sum].placement = r_.tensors[rest[0]].placement;
            Op others = add;
            others.in = rest, others.out = {sum};
            fused.in[0] = sum;
            r_.ops[at] = std::move(fused);
            r_.ops[i] = std::move(others);
            std::rotate(r_.ops.begin() + static_cast<long>(at), r_.ops.begin() + static_cast<long>(i),
                        r_.ops.begin() + static_cast<long>(i) + 1);
            return true;
        }
        return replace({at, i}, fused);
    }

    Routine& r_;
    const Serves& serves_;
    const bool gives_more_;
    std::vector<int> maker_, readers_;  // by tensor: the op that makes it, how many operands it is
};

}  // namespace

void fuse_ops(ir::Routine& routine, const Serves& serves, bool gives_more) { Fuser(routine, serves, gives_more).run(); }

}  // namespace lockstep::passes
