#include "passes/float8_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/sources.h"
#include "ops/builder.h"
#include "ops/einsum.h"

namespace lockstep::passes {
namespace {

using ir::DimId;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

// A product of a converted parameter, or of several that are packed.
struct Product {
    enum class Gives { Result, RowGradient, WeightGradient } gives = Gives::Result;
    size_t op = 0;
    std::string weights;             // as the port of the parameters names them
    TensorId left = -1, right = -1;  // its factors: rows or their results' gradients, and weights or rows
    TensorId result = -1;
};

// How a factor is cast: what a product needs of it.
struct Form {
    Dtype type = Dtype::F8E4M3;
    std::vector<DimId> scale;  // dims
    bool power_of_two = false;
    DimId along = -1;  // in blocks of neighbours along this dim

    auto operator<=>(const Form&) const = default;
};

struct Cast {
    TensorId amax = -1, codes = -1, scale = -1;
};

// What the forward of a block tells its backward.
struct Forward {
    std::map<std::string, std::set<std::string>> groups;  // weights -> those that multiply the same rows, themselves included
    struct Rows {
        TensorId x = -1;
        Cast cast;
    };
    std::map<std::string, Rows> rows;  // by the name under which the frame has them
};

class Converter {
public:
    // `amax`: the state of the block, or -1.
    Converter(const ir::Program& p, Routine& r, ir::StateId amax, const Float8Options& o)
        : p_(p), r_(r), b_(r), amax_(amax), o_(o) {
        for (const ir::Parameter& x : p.params) {
            if (x.converted) converted_.insert(x.key);
        }
    }

    bool forward(Forward& out) {
        find_products();
        if (products_.empty()) return false;
        for (const Product& a : products_) {
            for (const Product& b : products_) {
                if (a.weights == b.weights || (o_.shares_scales && a.left == b.left)) out.groups[a.weights].insert(b.weights);
            }
        }
        convert(out);
        if (o_.recipe != Float8Recipe::Tensorwise) return true;
        for (const auto& [of, cast] : casts_) {
            if (port_kind(of.first) == PortKind::Frame) out.rows[tensor(of.first).source] = {of.first, cast};
        }
        return true;
    }

    void backward(Routine& forward, const Forward& saved) {
        find_products();
        for (const auto& [weights, group] : saved.groups) {
            for (const Product::Gives gives : {Product::Gives::RowGradient, Product::Gives::WeightGradient}) {
                const bool any = std::any_of(products_.begin(), products_.end(), [&, &of = weights](const Product& p) {
                    return p.gives == gives && p.weights == of;
                });
                ensure(any, "float8_products: " + r_.name + " lacks a product of " + weights);
            }
        }
        bind_saved(forward, saved);
        convert(saved);
    }

    void finish() {
        for (TensorId t = 0; o_.gathers && t < static_cast<TensorId>(r_.tensors.size()); ++t) {
            if (is_converted(t, PortKind::Params)) tensor(t).dtype = Dtype::F8E4M3;
        }
        r_.ops = ops::live_ops(r_, in_order(std::move(r_.ops)), {});
        ops::renumber(r_);
    }

private:
    ir::Tensor& tensor(TensorId t) { return r_.tensors[static_cast<size_t>(t)]; }
    std::optional<PortKind> port_kind(TensorId t) {
        const int port = tensor(t).port;
        return port < 0 ? std::nullopt : std::optional(r_.ports[static_cast<size_t>(port)].kind);
    }
    bool is_converted(TensorId t, PortKind kind) {
        if (port_kind(t) != kind) return false;
        const std::vector<std::string_view> sources = ir::sources_of(tensor(t));
        const auto is = [&](std::string_view key) { return converted_.contains(key); };
        const bool any = std::any_of(sources.begin(), sources.end(), is);
        ensure(!any || std::all_of(sources.begin(), sources.end(), is),
               "float8_products: " + tensor(t).source + " are read as one, and not all are converted");
        return any;
    }

    // Products of matrices alone read converted parameters. A weight's gradient is added to its sum as it is.
    void find_products() {
        std::map<TensorId, std::string> sums;  // what is added to a gradient -> its parameters
        for (const Op& op : r_.ops) {
            if (ops::rule(op.kind).accumulates && is_converted(op.out[0], PortKind::Gradients))
                sums[op.in[0]] = tensor(op.out[0]).source;
        }
        const bool is_backward = ir::is_backward(r_.kind);
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            const Op& op = r_.ops[i];
            using Gives = Product::Gives;
            if (const auto sum = sums.find(op.out[0]); op.kind == ir::kEinsum && sum != sums.end()) {
                // Its derivative has the gradient of the result first (ops/einsum.cpp).
                products_.push_back({Gives::WeightGradient, i, sum->second, op.in[0], op.in[1], op.out[0]});
                continue;
            }
            for (const TensorId t : op.in) {
                if (!is_converted(t, PortKind::Params)) continue;
                ensure(op.kind == ir::kEinsum && ops::is_product(r_, op) && op.in[1] == t,
                       "float8_products: " + op.kind + " reads the converted " + tensor(t).source);
                products_.push_back(
                    {is_backward ? Gives::RowGradient : Gives::Result, i, tensor(t).source, op.in[0], t, op.out[0]});
            }
        }
    }

    // Rows of the forward come in float8 where only products of weights' gradients read them, and with their amax where others
    // read them, too.
    void bind_saved(Routine& forward, const Forward& saved) {
        std::map<TensorId, size_t> reads;
        for (const Op& op : r_.ops) {
            for (const TensorId t : op.in) ++reads[t];
        }
        for (const Product& p : products_) {
            if (p.gives == Product::Gives::WeightGradient) --reads[p.right];
        }
        for (const Product& p : products_) {
            if (p.gives != Product::Gives::WeightGradient || port_kind(p.right) != PortKind::Frame) continue;
            const auto known = saved.rows.find(tensor(p.right).source);
            if (known == saved.rows.end()) continue;
            const auto [at, is_new] = casts_.try_emplace({p.right, form(p, false)});
            if (!is_new) continue;
            const Forward::Rows& rows = known->second;
            Cast& cast = at->second;
            if (reads.at(p.right) == 0) {
                cast.codes = share(forward, rows.cast.codes), cast.scale = share(forward, rows.cast.scale);
                ir::Tensor& x = forward.tensors[static_cast<size_t>(rows.x)];
                x.port = -1, x.source.clear();
            } else {
                cast.amax = share(forward, rows.cast.amax);
            }
        }
    }
    // The forward leaves its tensor in the frame; here it is read.
    TensorId share(Routine& forward, TensorId t) {
        const auto frame_of = [](const Routine& r) {
            const auto it =
                std::find_if(r.ports.begin(), r.ports.end(), [](const ir::Port& p) { return p.kind == PortKind::Frame; });
            return static_cast<int>(it - r.ports.begin());
        };
        ir::Tensor& written = forward.tensors[static_cast<size_t>(t)];
        written.port = frame_of(forward), written.source = written.name;
        ir::Tensor read = written;
        read.port = frame_of(r_), read.name = b_.fresh(read.name);
        for (DimId& d : read.dims) d = dim_of(forward, d);
        r_.tensors.push_back(std::move(read));
        return static_cast<TensorId>(r_.tensors.size()) - 1;
    }
    DimId dim_of(const Routine& forward, DimId of) {
        const ir::Dim& like = forward.dims[static_cast<size_t>(of)];
        return like.of < 0 ? r_.dim(like.name) : groups_of(r_.dim(forward.dims[static_cast<size_t>(like.of)].role));
    }

    // Groups of a dim of batch or seq.
    DimId groups_of(DimId of) {
        const ir::Dim& fine = r_.dims[static_cast<size_t>(of)];
        const bool is_batch = fine.role == ir::DimRole::Batch;
        const int64_t each = is_batch ? o_.sequences : fine.size / o_.context_blocks;
        return coarse(of, is_batch ? kBatch : kSeq, each);
    }
    DimId blocks_of(DimId of) {
        const int64_t each = block_of(o_.recipe);
        return coarse(of, fmt::format("{}.b{}", r_.dims[static_cast<size_t>(of)].name, each), each);
    }
    DimId coarse(DimId of, const std::string& name, int64_t each) {
        if (const DimId known = r_.dim(name); known >= 0) return known;
        const ir::Dim& fine = r_.dims[static_cast<size_t>(of)];
        ensure(each > 0 && fine.size % each == 0, "float8_products: groups do not divide " + fine.name);
        ir::Dim groups{name, fine.size / each, fine.size / each, ir::DimRole::Other};
        groups.of = of, groups.each = each;
        r_.dims.push_back(std::move(groups));
        return static_cast<DimId>(r_.dims.size()) - 1;
    }
    bool is_token(DimId d) const {
        const ir::DimRole role = r_.dims[static_cast<size_t>(d)].role;
        return role == ir::DimRole::Batch || role == ir::DimRole::Seq;
    }
    // For each group of tokens, where it has some.
    bool has_one_scale(const Product& p, bool left) const {
        return o_.recipe == Float8Recipe::Tensorwise ||
               (o_.recipe == Float8Recipe::RowwiseGwHp && p.gives == Product::Gives::RowGradient && !left);
    }
    Form form(const Product& p, bool left) {
        if (block_of(o_.recipe) > 0) return in_blocks(p, left);
        Form out;
        out.power_of_two = o_.recipe != Float8Recipe::Tensorwise;
        if (!out.power_of_two && left && p.gives != Product::Gives::Result) out.type = Dtype::F8E5M2;
        const std::vector<DimId> kept = tensor(p.result).dims, dims = tensor(left ? p.left : p.right).dims;
        for (const DimId d : dims) {
            const bool is_of_row = !has_one_scale(p, left) && std::find(kept.begin(), kept.end(), d) != kept.end();
            if (is_of_row) out.scale.push_back(d);
            else if (is_token(d)) out.scale.push_back(groups_of(d));
        }
        return out;
    }

    Form in_blocks(const Product& p, bool left) {
        const TensorId x = left ? p.left : p.right;
        const std::vector<DimId> kept = tensor(p.result).dims;
        const auto is_kept = [&](DimId d) { return std::find(kept.begin(), kept.end(), d) != kept.end(); };
        Form out;
        out.scale = tensor(x).dims;
        const auto summed = std::find_if_not(out.scale.rbegin(), out.scale.rend(), is_kept),
                   row = std::find_if(out.scale.rbegin(), out.scale.rend(), is_kept);
        const bool is_tiled = o_.recipe == Float8Recipe::Blockwise && port_kind(x) == PortKind::Params;
        if (!is_tiled) out.along = *summed;
        *summed = blocks_of(*summed);
        if (is_tiled) *row = blocks_of(*row);
        return out;
    }

    // The factors that one product would join, where they share scales: gradients of results and weights. Rows of what is joined
    // keep their own.
    std::vector<TensorId> with_shared_scale(const Product& of, bool left, const Forward& forward) {
        using Gives = Product::Gives;
        std::vector<TensorId> out = {left ? of.left : of.right};
        const bool is_joined = of.gives == Gives::RowGradient || left != (of.gives == Gives::Result);
        const bool keeps_rows = block_of(o_.recipe) > 0 || (of.gives != Gives::RowGradient && !has_one_scale(of, left));
        if (!is_joined || keeps_rows) return out;
        const std::set<std::string>& group = forward.groups.at(of.weights);
        for (const Product& p : products_) {
            const TensorId t = left ? p.left : p.right;
            if (p.gives == of.gives && group.contains(p.weights) && std::find(out.begin(), out.end(), t) == out.end())
                out.push_back(t);
        }
        std::sort(out.begin(), out.end());
        return out;
    }

    // What the state of the block has for weights that share a scale.
    TensorId amax_of_weights(const std::set<std::string>& group, Dtype type) {
        const std::string source = fmt::format("{}", fmt::join(group, "+"));
        const auto [known, is_new] = amax_of_weights_.try_emplace(source, -1);
        if (!is_new) return known->second;
        if (r_.port_of_state(amax_) < 0) r_.ports.push_back(p_.port(amax_, ir::Access::Read));
        std::string name = source + ".amax";  // the same in forward and backward, as that of a parameter
        std::replace(name.begin(), name.end(), '+', '.');
        known->second = b_.make({std::move(name), {}, type});
        tensor(known->second).port = r_.port_of_state(amax_), tensor(known->second).source = source;
        return known->second;
    }

    const Cast& cast(const Product& p, bool left, const Forward& forward) {
        const TensorId x = left ? p.left : p.right;
        const Form made_as = form(p, left);
        Cast& out = casts_[{x, made_as}];
        if (out.codes >= 0) return out;
        const Dtype wide = tensor(x).dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
        const std::string name = tensor(x).name;
        const ops::Result codes{name + ".f8", tensor(x).dims, made_as.type}, scale{name + ".scale", made_as.scale, wide};
        if (made_as.along >= 0) return out = to_blocks(x, made_as, codes, scale);
        const ir::Attrs attrs = made_as.power_of_two ? ir::Attrs{{"power_of_two", int64_t{1}}} : ir::Attrs{};
        const bool is_weights = port_kind(x) == PortKind::Params;
        if (is_weights && amax_ >= 0 && made_as.scale.empty()) out.amax = amax_of_weights(forward.groups.at(p.weights), wide);
        if (is_weights && o_.gathers) {
            ir::Attrs of_scale = attrs;
            of_scale["type"] = std::string(name_of(made_as.type));
            out.codes = x, out.scale = b_.op(ir::kFloat8Scale, {out.amax}, {scale}, of_scale)[0];
            return out;
        }
        if (out.amax < 0) {
            const std::vector<TensorId> all = with_shared_scale(p, left, forward);
            const auto known = std::find_if(casts_.begin(), casts_.end(), [&](const auto& c) {
                return c.first.second == made_as && c.second.amax >= 0 &&
                       std::find(all.begin(), all.end(), c.first.first) != all.end();
            });
            out.amax =
                known != casts_.end() ? known->second.amax : b_.op(ir::kAmax, all, {{name + ".amax", made_as.scale, wide}})[0];
        }
        const std::vector<TensorId> made = b_.op(ir::kToFloat8, {x, out.amax}, {codes, scale}, attrs);
        out.codes = made[0], out.scale = made[1];
        return out;
    }
    Cast to_blocks(TensorId x, const Form& form, const ops::Result& codes, ops::Result scale) {
        ir::Attrs attrs = {{"along", r_.dims[static_cast<size_t>(form.along)].name}, {"block", block_of(o_.recipe)}};
        if (o_.recipe != Float8Recipe::Blockwise) {
            attrs["rounding"] = std::string(o_.recipe == Float8Recipe::MxRceil ? "rceil" : "floor");
            scale.dtype = Dtype::E8M0;
        }
        const std::vector<TensorId> made = b_.op(ir::kToBlocks, {x}, {codes, scale}, attrs);
        return {-1, made[0], made[1]};
    }

    bool stays_wide(const Product& p) const {
        return o_.recipe == Float8Recipe::RowwiseGwHp && p.gives == Product::Gives::WeightGradient;
    }

    void convert(const Forward& forward) {
        const std::vector<Op> before = std::exchange(r_.ops, {});
        auto product = products_.begin();
        for (size_t i = 0; i < before.size(); ++i) {
            Op op = before[i];
            const bool is_product = product != products_.end() && product->op == i;
            if (is_product && stays_wide(*product)) {
                ++product;
            } else if (is_product) {
                const Cast left = cast(*product, true, forward), right = cast(*product, false, forward);
                op.kind = ir::kScaledEinsum;
                op.in = {left.codes, right.codes, left.scale, right.scale};
                if (product->gives == Product::Gives::Result) op.attrs["fast"] = int64_t{1};
                ++product;
            }
            r_.ops.push_back(std::move(op));
        }
    }

    // A scale that several values share is made behind all of them.
    std::vector<Op> in_order(std::vector<Op> ops) {
        std::vector<bool> made(r_.tensors.size(), true);
        for (const Op& op : ops) {
            for (const TensorId t : op.out)
                made[static_cast<size_t>(t)] =
                    tensor(t).port >= 0 && r_.ports[static_cast<size_t>(tensor(t).port)].access != ir::Access::Write;
        }
        std::vector<Op> out;
        while (!ops.empty()) {
            const auto next = std::find_if(ops.begin(), ops.end(), [&](const Op& op) {
                return std::all_of(op.in.begin(), op.in.end(), [&](TensorId t) { return made[static_cast<size_t>(t)]; });
            });
            ensure(next != ops.end(), "float8_products: " + r_.name + " has no order");
            for (const TensorId t : next->out) made[static_cast<size_t>(t)] = true;
            out.push_back(std::move(*next));
            ops.erase(next);
        }
        return out;
    }

    static constexpr const char *kBatch = "batch.g", *kSeq = "seq.g";

    const ir::Program& p_;
    Routine& r_;
    ops::Builder b_;
    const ir::StateId amax_;
    const Float8Options& o_;
    std::map<std::string, TensorId> amax_of_weights_;  // by their names
    std::set<std::string, std::less<>> converted_;
    std::vector<Product> products_;
    std::map<std::pair<TensorId, Form>, Cast> casts_;
};

// A state for the block of the routine, if it has converted parameters; -1: none.
ir::StateId state_of_weights(ir::Program& program, const std::string& block, const Float8Options& options) {
    const auto is_here = [&](const ir::Parameter& p) { return p.block == block && p.converted; };
    const auto first = std::find_if(program.params.begin(), program.params.end(), is_here);
    const bool have_one = options.recipe == Float8Recipe::Tensorwise || options.recipe == Float8Recipe::RowwiseGwHp;
    if (!have_one || (options.weights_differ && !options.gathers) || first == program.params.end()) return -1;
    for (size_t i = 0; i < program.states.size(); ++i) {
        if (program.states[i].role == ir::StateRole::WeightsAmax && program.states[i].block == block)
            return static_cast<ir::StateId>(i);
    }
    ir::State s;
    s.name = "amax", s.role = ir::StateRole::WeightsAmax, s.scope = ir::Scope::Step, s.block = block;
    s.dtype = first->dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
    return program.add(std::move(s));
}

// Both get the dims of both, in one order: a backward that makes values of its forward again reads them by number.
void share_dims(Routine& forward, Routine& backward) {
    std::vector<DimId> moved;
    for (const ir::Dim& d : backward.dims) {
        DimId at = forward.dim(d.name);
        if (at < 0) at = static_cast<DimId>(forward.dims.size()), forward.dims.push_back(d);
        moved.push_back(at);
    }
    for (ir::Tensor& t : backward.tensors) {
        for (DimId& d : t.dims) d = moved[static_cast<size_t>(d)];
    }
    for (ir::Dim& d : forward.dims)
        ensure(d.of < 0 || moved[static_cast<size_t>(d.of)] == d.of, "float8_products: dims are moved");
    backward.dims = forward.dims;
}

}  // namespace

ir::Program float8_products(ir::Program program, const Float8Options& options) {
    for (Routine& r : program.routines) {
        if (r.kind != ir::RoutineKind::Forward || (r.entry != ir::EntryKind::Train && r.entry != ir::EntryKind::Eval)) continue;
        const ir::StateId amax = state_of_weights(program, r.block, options);
        Converter forward(program, r, amax, options);
        Forward saved;
        if (!forward.forward(saved)) continue;
        const auto reads = [&](const Routine& b) { return b.kind == ir::RoutineKind::Backward && b.block == r.block; };
        const auto backward = std::find_if(program.routines.begin(), program.routines.end(), reads);
        const bool is_trained = r.entry == ir::EntryKind::Train && backward != program.routines.end();
        if (is_trained) {
            Converter converter(program, *backward, amax, options);
            converter.backward(r, saved);
            converter.finish();
        }
        forward.finish();
        if (is_trained) share_dims(r, *backward);
    }
    for (ir::Parameter& p : program.params) {
        if (options.gathers && p.converted) p.dtype = Dtype::F8E4M3;
    }
    return program;
}

}  // namespace lockstep::passes
