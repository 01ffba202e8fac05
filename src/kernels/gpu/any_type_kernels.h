// Which ops of any element type the kernels of movement.h and any_type.h serve.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "base/error.h"
#include "kernels/block_copies.h"
#include "kernels/gpu/any_type.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/movement.h"
#include "kernels/registry/registry.h"

namespace lockstep::kernels::gpu::any_type {

using namespace registry;
using Made = std::unique_ptr<Kernel>;

inline Stream stream_of(const KernelArgs& k) { return k.queue.handle(); }

inline Made make_copy(const KernelContext& c) {
    return kernel_from([bytes = ir::local_bytes(c.mesh, c.routine, c.out(0))](const KernelArgs& k) {
        copy(stream_of(k), bytes, k.in[0], k.out[0]);
    });
}

inline Made make_blocks(const KernelContext& c) {
    return kernel_from([copies = block_copies(c)](const KernelArgs& k) {
        for (const BlockCopy& b : copies)
            copy_rows(stream_of(k), {b.count, b.bytes, b.from_stride, b.to_stride},
                      static_cast<const char*>(k.in[b.operand]) + b.from, out<char>(k, 0) + b.to);
    });
}
// Operand i is what the rank i before this one has.
inline Made make_sum_blocks(const KernelContext& c) {
    Reduction r = {};
    r.type = c.out(0).dtype, r.ranks = static_cast<int>(c.op.in.size());
    return kernel_from([r, n = c.elements(c.out(0)), index = c.mesh.index(c.rank, c.op.group)](const KernelArgs& k) mutable {
        for (int64_t rank = 0; rank < r.ranks; ++rank) r.in[rank] = k.in[(index - rank + r.ranks) % r.ranks];
        r.out[0] = k.out[0];
        reduce(stream_of(k), n, r);
    });
}

inline Made make_append(const KernelContext& c) {
    Append shape = {};
    shape.seq = c.size(c.in(1), 1), shape.count = c.size(c.in(1), 0) * shape.seq, shape.length = c.size(c.in(0), 1);
    shape.row_bytes = ir::local_bytes(c.mesh, c.routine, c.in(1)) / shape.count;
    return kernel_from([shape](const KernelArgs& k) { append(stream_of(k), shape, ids(k, 2), k.in[1], k.out[0]); });
}

// Tensors and where they begin in a flat one, in bytes.
struct Piece {
    int64_t begin, bytes;
};
inline std::vector<Piece> pieces(const KernelContext& c, const std::vector<ir::TensorId>& tensors) {
    const auto& begins = std::get<std::vector<int64_t>>(c.op.attrs.at("begins"));
    std::vector<Piece> all;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const ir::Tensor& t = c.routine.tensors[tensors[i]];
        all.push_back({begins[i] * bytes_of(t.dtype), ir::local_bytes(c.mesh, c.routine, t)});
    }
    return all;
}
inline Made make_unpack(const KernelContext& c) {
    return kernel_from([all = pieces(c, c.op.out)](const KernelArgs& k) {
        for (size_t i = 0; i < all.size(); ++i) copy(stream_of(k), all[i].bytes, in<char>(k, 0) + all[i].begin, k.out[i]);
    });
}
inline Made make_pack(const KernelContext& c) {
    return kernel_from([all = pieces(c, c.op.in), bytes = ir::local_bytes(c.mesh, c.routine, c.out(0))](const KernelArgs& k) {
        int64_t end = 0;
        const auto zero_to = [&](int64_t next) { fill_zero(stream_of(k), next - end, out<char>(k, 0) + end); };
        for (size_t i = 0; i < all.size(); ++i) {
            zero_to(all[i].begin);
            copy(stream_of(k), all[i].bytes, k.in[i], out<char>(k, 0) + all[i].begin);
            end = all[i].begin + all[i].bytes;
        }
        zero_to(bytes);
    });
}
inline Made make_zero_padding(const KernelContext& c) {
    return kernel_from(
        [ranges = std::get<std::vector<int64_t>>(c.op.attrs.at("ranges")), size = bytes_of(c.out(0).dtype)](const KernelArgs& k) {
            for (size_t i = 0; i + 1 < ranges.size(); i += 2)
                fill_zero(stream_of(k), (ranges[i + 1] - ranges[i]) * size, out<char>(k, 0) + ranges[i] * size);
        });
}

// Of the operands from `first` on.
inline Einsum einsum_of(const KernelContext& c, size_t first) {
    Einsum e;
    e.operands = static_cast<int>(c.op.in.size() - first);
    std::vector<ir::DimId> seen;
    const auto add = [&](const ir::Tensor& t, int& count, int64_t& product) {
        for (size_t i = 0; i < t.dims.size(); ++i) {
            if (std::find(seen.begin(), seen.end(), t.dims[i]) != seen.end()) continue;
            ensure(seen.size() < Einsum::kMostDims, "gpu.einsum: too many dims");
            const size_t d = seen.size();
            seen.push_back(t.dims[i]);
            e.sizes[d] = c.size(t, static_cast<int>(i)), product *= e.sizes[d], ++count;
            for (size_t k = 0; k < static_cast<size_t>(e.operands); ++k) {
                const ir::Tensor& operand = c.in(first + k);
                int64_t stride = 1;
                for (size_t j = operand.dims.size(); j-- > 0; stride *= c.size(operand, static_cast<int>(j))) {
                    if (operand.dims[j] == t.dims[i]) e.strides[k][d] = stride;
                }
            }
        }
    };
    add(c.out(0), e.outer, e.results);
    for (size_t k = first; k < c.op.in.size(); ++k) add(c.in(k), e.inner, e.terms);
    return e;
}
inline bool serves_einsum(const KernelContext& c) {
    std::vector<ir::DimId> dims;
    for (const std::vector<ir::TensorId>* list : {&c.op.in, &c.op.out}) {
        for (ir::TensorId t : *list) dims.insert(dims.end(), c.routine.tensors[t].dims.begin(), c.routine.tensors[t].dims.end());
    }
    std::sort(dims.begin(), dims.end());
    const auto count = std::unique(dims.begin(), dims.end()) - dims.begin();
    return c.op.in.size() <= Einsum::kMostOperands && count <= Einsum::kMostDims;
}
// An einsum; or addmm, whose operand 0 is added to.
inline Made make_einsum(const KernelContext& c) {
    const bool is_addmm = c.op.kind == "addmm";
    const size_t first = is_addmm ? 1 : 0;
    std::vector<Dtype> types;
    for (ir::TensorId t : c.op.in) types.push_back(c.routine.tensors[t].dtype);
    return kernel_from([e = einsum_of(c, first), first, types, type = c.out(0).dtype, is_addmm, adds = c.op.accumulates(0),
                        bytes = ir::local_bytes(c.mesh, c.routine, c.out(0))](const KernelArgs& k) {
        AnyIn in[Einsum::kMostOperands] = {};
        for (size_t i = first; i < types.size(); ++i) in[i - first] = {k.in[i], types[i]};
        if (is_addmm) copy(stream_of(k), bytes, k.in[0], k.out[0]);
        einsum(stream_of(k), e, in, {k.out[0], type, is_addmm || (adds && !k.fresh)});
    });
}

inline UnaryOf unary_of(const ir::Op& op) {
    static const std::map<std::string, Unary> by_name = {{"valid", Unary::Valid},
                                                         {"log", Unary::Log},
                                                         {"recip", Unary::Recip},
                                                         {"silu", Unary::Silu},
                                                         {"dsilu", Unary::SiluSlope},
                                                         {"gelu", Unary::Gelu},
                                                         {"dgelu", Unary::GeluSlope},
                                                         {"gelu_erf", Unary::GeluErf},
                                                         {"dgelu_erf", Unary::GeluErfSlope},
                                                         {"rsqrt_mean", Unary::RsqrtMean},
                                                         {"inverse_norm", Unary::InverseNorm}};
    const auto it = by_name.find(op.text("fn"));
    ensure(it != by_name.end(), "gpu.unary does not know " + op.text("fn"));
    UnaryOf f = {it->second};
    if (f.fn == Unary::RsqrtMean) f.factor = 1.0 / static_cast<double>(op.integer("n"));
    if (f.fn == Unary::RsqrtMean || f.fn == Unary::InverseNorm) f.eps = op.number("eps");
    return f;
}
inline Made make_unary(const KernelContext& c) {
    return kernel_from([f = unary_of(c.op), n = c.elements(c.out(0)), x = c.in(0).dtype, y = c.out(0).dtype,
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        unary(stream_of(k), n, f, {k.in[0], x}, {k.out[0], y, adds && !k.fresh});
    });
}

// Sums of any types; of one, a cast or a gradient that is added up.
inline Made make_sum(const KernelContext& c) {
    Terms terms = {static_cast<int>(c.op.in.size()), {}};
    for (size_t i = 0; i < c.op.in.size(); ++i) terms.of[i].type = c.in(i).dtype;
    const bool accumulates = c.op.kind == "accumulate";
    return kernel_from([terms, accumulates, n = c.elements(c.out(0)), type = c.out(0).dtype](const KernelArgs& k) mutable {
        for (int i = 0; i < terms.count; ++i) terms.of[i].data = k.in[i];
        add_any(stream_of(k), n, terms, {k.out[0], type, accumulates && !k.fresh});
    });
}
// A whole [rows, parts, n] and its parts [rows, n].
inline Made make_stack(const KernelContext& c) {
    const bool stacks = c.op.kind == "stack";
    const std::vector<ir::TensorId>& ids = stacks ? c.op.in : c.op.out;
    const ir::Tensor &whole = stacks ? c.out(0) : c.in(0), &part = c.routine.tensors[ids[0]];
    const auto at = std::mismatch(part.dims.begin(), part.dims.end(), whole.dims.begin(), whole.dims.end()).first;
    int64_t rows = 1;
    for (auto d = part.dims.begin(); d != at; ++d) rows *= c.size(part, static_cast<int>(d - part.dims.begin()));
    const int64_t n = c.elements(part) / rows, stride = n * static_cast<int64_t>(ids.size());
    const AnyRows how = {rows, n, stacks ? n : stride, stacks ? stride : n};
    std::vector<Dtype> types;
    for (const ir::TensorId t : ids) types.push_back(c.routine.tensors[t].dtype);
    return kernel_from([=, of_whole = whole.dtype](const KernelArgs& k) {
        for (size_t i = 0; i < types.size(); ++i) {
            const int64_t begin = static_cast<int64_t>(i) * n * bytes_of(of_whole);
            if (stacks) copy_rows_of(stream_of(k), how, {k.in[i], types[i]}, {out<char>(k, 0) + begin, of_whole});
            else copy_rows_of(stream_of(k), how, {in<char>(k, 0) + begin, of_whole}, {k.out[i], types[i]});
        }
    });
}
inline bool serves_sum(const KernelContext& c) { return c.op.in.size() <= kMostAnyTerms; }

inline Made make_pick(const KernelContext& c) {
    const bool picks = c.op.kind == "pick";
    const ir::Tensor& of_vocab = picks ? c.in(0) : c.out(0);
    const Picked shape = {c.elements(c.in(1)), rows_of(c, of_vocab).n, first_of_last_dim(c, of_vocab)};
    return kernel_from([shape, picks, x = c.in(0).dtype, y = c.out(0).dtype](const KernelArgs& k) {
        (picks ? pick : unpick)(stream_of(k), shape, ids(k, 1), {k.in[0], x}, {k.out[0], y});
    });
}
inline Made make_exp_shifted(const KernelContext& c) {
    return kernel_from(
        [z = rows_of(c, c.in(0)), x = c.in(0).dtype, row = c.in(1).dtype, y = c.out(0).dtype](const KernelArgs& k) {
            exp_shifted(stream_of(k), z.rows, z.n, {k.in[0], x}, {k.in[1], row}, {k.out[0], y});
        });
}

inline Made make_owned(const KernelContext& c) {
    return kernel_from([counts = c.counts() && !c.op.in.empty()](const KernelArgs& k) {
        owned(stream_of(k), counts ? in<double>(k, 0) : nullptr, out<double>(k, 0));
    });
}
inline Made make_inverse_count(const KernelContext& c) {
    return kernel_from([type = c.out(0).dtype](const KernelArgs& k) {
        inverse_count(stream_of(k), in<double>(k, 0), {k.out[0], type});
    });
}
inline Made make_step_control(const KernelContext& c) {
    const Control how = {c.op.number("max_norm"), c.op.number("beta1"), c.op.number("beta2")};
    return kernel_from([how, type = c.in(2).dtype, is_scaled = c.op.in.size() == 6](const KernelArgs& k) {
        step_control(stream_of(k), how, in<double>(k, 0), in<double>(k, 1), {k.in[2], type}, in<double>(k, 4),
                     is_scaled ? in<double>(k, 5) : nullptr, out<double>(k, 0), out<double>(k, 1));
    });
}
inline Made make_update_loss_scale(const KernelContext& c) {
    return kernel_from([least = c.op.number("least")](const KernelArgs& k) {
        update_loss_scale(stream_of(k), least, in<double>(k, 0), in<double>(k, 1), in<double>(k, 2), in<double>(k, 3),
                          out<double>(k, 0), out<double>(k, 1));
    });
}

constexpr auto kFloats = kFloatDtypes;
constexpr auto kMoved = kMovedDtypes;

template <class B>
struct List {
    std::vector<Registered>& all;

    template <Made (*make)(const KernelContext&)>
    void add(std::span<const Dtype> results, const char* op, bool (*serves)(const KernelContext&) = nullptr, int accumulates = -1,
             bool in_place = false) {
        for (Dtype result : results) {
            Registered r;
            r.op = op, r.kernel = fmt::format("{}.{}", B::kName, op), r.result = result;
            r.accumulates = accumulates, r.in_place = in_place;
            r.takes = [](const KernelContext&) { return true; };
            r.serves = serves;
            if constexpr (!requires { B::kPlansOnly; }) r.make = make;
            all.push_back(std::move(r));
        }
    }
};

template <class B>
void add(std::vector<Registered>& all) {
    constexpr Dtype kScalar[] = {Dtype::F64};
    List<B> list{all};
    for (const char* op : {"rename", "copy", "reshape"}) list.template add<make_copy>(kMoved, op);
    for (const char* op : {"slice", "block", "join_blocks"}) list.template add<make_blocks>(kMoved, op);
    list.template add<make_append>(kMoved, "append");
    list.template add<make_pack>(kMoved, "pack");
    list.template add<make_unpack>(kMoved, "unpack");
    list.template add<make_sum_blocks>(kFloats, "sum_blocks",
                                       [](const KernelContext& c) { return c.op.in.size() <= Reduction::kMost; });
    for (const char* op : {"stack", "unstack"}) list.template add<make_stack>(kFloats, op);
    list.template add<make_zero_padding>(kFloats, "zero_padding");
    list.template add<make_einsum>(kFloats, "einsum", serves_einsum, 0);
    list.template add<make_einsum>(kFloats, "addmm", serves_einsum, -1, true);
    list.template add<make_unary>(kFloats, "unary", nullptr, -1, true);
    list.template add<make_sum>(kFloats, "add", serves_sum, -1, true);
    for (const char* op : {"cast", "accumulate"}) list.template add<make_sum>(kFloats, op);
    for (const char* op : {"pick", "unpick"}) list.template add<make_pick>(kFloats, op);
    list.template add<make_exp_shifted>(kFloats, "exp_shifted");
    list.template add<make_inverse_count>(kFloats, "inverse_count");
    list.template add<make_owned>(kScalar, "owned");
    list.template add<make_step_control>(kScalar, "step_control");
    list.template add<make_update_loss_scale>(kScalar, "update_loss_scale");
}

}  // namespace lockstep::kernels::gpu::any_type
