// For catalog.cpp alone: every op as a call of one of this folder's functions, with sizes and attributes taken from the program.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/bias.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/qkv_rope.h"
#include "kernels/kernel.h"
#include "kernels/step_control.h"
#include "ops/dropout.h"
#include "ops/rope.h"

namespace lockstep::kernels::makers {

using Made = std::unique_ptr<Kernel>;

// T: how the kernel's data is stored, float or Bf16; S: the residual stream; W: weights of norms (typed.h). What an op keeps in
// float32 whatever they are, is float.
template <class T = float>
const T* in(const KernelArgs& a, int i) {
    return static_cast<const T*>(a.in[i]);
}
inline const int32_t* ids(const KernelArgs& a, int i) { return static_cast<const int32_t*>(a.in[i]); }
template <class T = float>
T* out(const KernelArgs& a, int i) {
    return static_cast<T*>(a.out[i]);
}

// Product of the sizes of all dims but the last, and the last.
struct RowsOf {
    int64_t rows, n;
};
inline RowsOf rows_of(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Tensor& t) {
    const int64_t n = ir::local_size(mesh, r, t, static_cast<int>(t.dims.size()) - 1);
    return {ir::local_elements(mesh, r, t) / n, n};
}
inline RowsOf rows_of(const KernelContext& c, const ir::Tensor& t) { return rows_of(c.mesh, c.routine, t); }

inline cpu::MatmulShape matmul_shape(const ops::MatmulShape& s) {
    cpu::MatmulShape m;
    m.m = s.m, m.n = s.n, m.k = s.k;
    m.transpose_a = s.a_transposed ? cpu::Transpose::yes : cpu::Transpose::no;
    m.transpose_b = s.b_transposed ? cpu::Transpose::no : cpu::Transpose::yes;
    return m;
}

// einsum, or addmm, whose first operand is added to.
template <class In, class Out>
Made make_matmul(const KernelContext& c, cpu::MatmulKernel kernel) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.matmul: not a product of matrices");
    constexpr auto kResult = std::is_same_v<Out, Bf16> ? cpu::Matmul::Result::bf16 : cpu::Matmul::Result::f32;
    const int first = c.op.kind == "addmm" ? 1 : 0;
    return kernel_from([matmul = cpu::Matmul(matmul_shape(shape), c.threads, kernel, kResult), first, swapped = shape.swapped,
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        const Out* before = adds && !k.fresh ? out<Out>(k, 0) : nullptr;
        if (first == 1) before = in<Out>(k, 0);
        matmul.run(k.pool, in<In>(k, first + (swapped ? 1 : 0)), in<In>(k, first + (swapped ? 0 : 1)), out<Out>(k, 0), before,
                   k.workspace);
    });
}
template <class In, class Out, cpu::MatmulKernel kernel = cpu::MatmulKernel::packed>
Made make_matmul(const KernelContext& c) {
    return make_matmul<In, Out>(c, kernel);
}
inline Made make_matmul_onednn(const KernelContext& c) { return make_matmul<float, float>(c, cpu::MatmulKernel::onednn); }

template <class T>
Made make_add(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0)), terms = static_cast<int>(c.op.in.size())](const KernelArgs& k) {
        std::array<const T*, 64> inputs;
        for (int i = 0; i < terms; ++i) inputs[static_cast<size_t>(i)] = in<T>(k, i);
        cpu::add(k.pool, n, inputs.data(), terms, out<T>(k, 0));
    });
}

template <class T>
Made make_scale(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0)), f = static_cast<float>(c.op.number("c"))](const KernelArgs& k) {
        cpu::scale(k.pool, n, in<T>(k, 0), f, out<T>(k, 0));
    });
}

inline Made make_cast(const KernelContext& c) {
    const int64_t n = c.elements(c.out(0));
    if (c.out(0).dtype == Dtype::BF16)
        return kernel_from([n](const KernelArgs& k) { cpu::narrow_to(k.pool, n, in(k, 0), out<Bf16>(k, 0)); });
    return kernel_from([n](const KernelArgs& k) { cpu::widen_from(k.pool, n, in<Bf16>(k, 0), out(k, 0)); });
}

template <class T>
Made make_accumulate(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
        if (k.fresh) cpu::widen_from(k.pool, n, in<T>(k, 0), out(k, 0));
        else cpu::accumulate(k.pool, n, in<T>(k, 0), out(k, 0));
    });
}

template <class T>
Made make_swiglu(const KernelContext& c) {
    return kernel_from(
        [n = c.elements(c.out(0))](const KernelArgs& k) { cpu::swiglu(k.pool, n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0)); });
}

template <class T>
Made make_swiglu_backward(const KernelContext& c) {  // d_y, gate, up -> d_gate, d_up
    return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
        cpu::swiglu_backward(k.pool, n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out<T>(k, 1));
    });
}

template <class S, class T = S, class W = T>
Made make_rmsnorm(const KernelContext& c) {
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::rms_norm(k.pool, z.rows, z.n, in<S>(k, 0), in<W>(k, 1), eps, out<T>(k, 0), out(k, 1));
    });
}

template <class S, class T = S, class W = T>
Made make_add_rmsnorm(const KernelContext& c) {  // x, residual, w -> s, y, rstd
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::add_rms_norm(k.pool, z.rows, z.n, in<S>(k, 0), in<S>(k, 1), in<W>(k, 2), eps, out<S>(k, 0), out<T>(k, 1), out(k, 2));
    });
}

template <class S, class W = S>
Made make_rmsnorm_backward(const KernelContext& c) {  // [also,] d_y, x, w, rstd -> d_x, d_w
    const int o = c.op.kind == "rmsnorm_backward_add" ? 1 : 0;
    return kernel_from([o, z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::rms_norm_backward(k.pool, z.rows, z.n, in<S>(k, o), in<S>(k, o + 1), in<W>(k, o + 2), in(k, o + 3),
                               o == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1), adds && !k.fresh, k.workspace);
    });
}

template <class T>
Made make_rope(const KernelContext& c) {
    const RowsOf z = rows_of(c, c.in(0));
    const int64_t tokens = c.elements(c.in(1));
    return kernel_from([=, frequencies = ops::rope_frequencies(c.op, z.n),
                        sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
        k.pool.parallel([&](int thread, int threads) {
            cpu::rope(split(tokens, threads, thread), z.rows / tokens, z.n, in<T>(k, 0), ids(k, 1), frequencies.data(), sign,
                      out<T>(k, 0));
        });
    });
}

inline cpu::QkvRope qkv_rope(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op, int threads) {
    const ir::Tensor &x = r.tensors[op.in[0]], &keys = r.tensors[op.out[1]];
    cpu::QkvRope out;
    out.hidden = rows_of(mesh, r, x).n, out.tokens = rows_of(mesh, r, x).rows, out.head_dim = rows_of(mesh, r, keys).n;
    for (int i = 0; i < 3; ++i) out.n[i] = ir::local_elements(mesh, r, r.tensors[op.out[i]]) / out.tokens;
    out.threads = threads;
    out.result = x.dtype == Dtype::BF16 ? cpu::Matmul::Result::bf16 : cpu::Matmul::Result::f32;
    return out;
}
template <class T>
Made make_qkv_rope(const KernelContext& c) {  // x, wq, wk, wv, pos -> q, k, v
    const cpu::QkvRope shape = qkv_rope(c.mesh, c.routine, c.op, c.threads);
    return kernel_from([shape, frequencies = ops::rope_frequencies(c.op, shape.head_dim),
                        sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
        shape.run<T>(k.pool, in<T>(k, 0), {in<T>(k, 1), in<T>(k, 2), in<T>(k, 3)}, ids(k, 4), frequencies.data(), sign,
                     {out<T>(k, 0), out<T>(k, 1), out<T>(k, 2)}, k.workspace);
    });
}

template <class S, class T = S>
Made make_gather(const KernelContext& c) {
    const RowsOf table = rows_of(c, c.in(0));
    return kernel_from([table, tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
        cpu::embedding(k.pool, tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out<S>(k, 0));
    });
}

template <class T>
Made make_scatter(const KernelContext& c) {
    const RowsOf table = rows_of(c, c.out(0));
    return kernel_from([table, tokens = c.elements(c.in(1)), first = c.first_index(c.out(0), 0),
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        cpu::embedding_backward(k.pool, tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out(k, 0), adds && !k.fresh);
    });
}

inline cpu::AttentionShape attention_shape(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
    const bool forward = op.kind == "attention";
    const ir::Tensor &q = r.tensors[op.in[forward ? 0 : 1]], &k = r.tensors[op.in[forward ? 1 : 2]];
    const auto size = [&](const ir::Tensor& t, int i) { return ir::local_size(mesh, r, t, i); };
    return {
        size(q, 0),          size(q, 1), size(k, 1), size(q, 2), size(q, 3), size(q, 4), static_cast<float>(op.number("scale")),
        op.integer("window")};
}

// What an op drops (ops/dropout.h), but for the layer and the noise, which come with a call.
struct Dropout {
    bool drops = false;
    uint64_t site = 0;
    uint32_t threshold = 0;
    float scale = 1;

    explicit Dropout(const ir::Op& op) : drops(ops::has_dropout(op)) {
        if (!drops) return;
        site = static_cast<uint64_t>(op.integer("rng_key"));
        threshold = dropout_threshold(op.number("dropout"));
        scale = static_cast<float>(1 / (1 - op.number("dropout")));
    }
    uint64_t stream(const KernelArgs& k) const { return dropout_stream(site, static_cast<uint64_t>(k.instance)); }
    cpu::DropoutMask mask(const KernelArgs& k, int noise, uint32_t first_index) const {
        return {ids(k, noise), stream(k), threshold, first_index, scale};
    }
};

inline cpu::AttentionDropout attention_dropout(const KernelContext& c) {
    const ir::Tensor& q = c.in(c.op.kind == "attention" ? 0 : 1);
    const Dropout drop(c.op);
    return {nullptr, 0, drop.threshold, drop.scale, c.first_index(q, 2), c.first_index(q, 3), c.routine.dims[q.dims[3]].size};
}

constexpr const char *kAttentionRow = "cpu.attention_row",  // of one query: no block of queries to fill
    *kAttentionAmx = "cpu.attention_amx", *kAttentionBackwardAmx = "cpu.attention_backward_amx";

template <class T>
Made make_attention(const KernelContext& c) {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise] -> out, lse
    cpu::Attention<T>* const run = c.op.kernel == kAttentionRow   ? cpu::attention_row
                                   : c.op.kernel == kAttentionAmx ? cpu::attention_amx
                                                                  : cpu::attention;
    return kernel_from([shape = attention_shape(c.mesh, c.routine, c.op), drop = Dropout(c.op), heads = attention_dropout(c),
                        run](const KernelArgs& k) {
        cpu::AttentionMask mask{ids(k, 3), ids(k, 4), ids(k, 5), ids(k, 6), heads};
        if (drop.drops) mask.drop.noise = ids(k, 7), mask.drop.stream = drop.stream(k);
        run(k.pool, shape, mask, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1), k.workspace);
    });
}

template <class T>
Made make_attention_backward(const KernelContext& c) {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out (not read), lse[, noise]
    cpu::AttentionBackward<T>* const run =
        c.op.kernel == kAttentionBackwardAmx ? cpu::attention_backward_amx : cpu::attention_backward;
    return kernel_from([shape = attention_shape(c.mesh, c.routine, c.op), drop = Dropout(c.op), heads = attention_dropout(c),
                        run](const KernelArgs& k) {
        cpu::AttentionMask mask{ids(k, 4), ids(k, 5), ids(k, 6), ids(k, 7), heads};
        if (drop.drops) mask.drop.noise = ids(k, 10), mask.drop.stream = drop.stream(k);
        run(k.pool, shape, mask, in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in(k, 9), in<T>(k, 0), out<T>(k, 0), out<T>(k, 1),
            out<T>(k, 2), k.workspace);
    });
}

// Rows that are as long as a bias.
inline RowsOf rows_over(const KernelContext& c, const ir::Tensor& x, const ir::Tensor& bias) {
    return {c.elements(x) / c.elements(bias), c.elements(bias)};
}

template <class T>
Made make_bias(const KernelContext& c) {
    return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
        cpu::bias(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
    });
}

template <class T>
Made make_bias_gelu(const KernelContext& c) {
    return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
        cpu::bias_gelu(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
    });
}

template <class T>
Made make_bias_gelu_backward(const KernelContext& c) {  // d_y, x, b -> d_x, d_b
    return kernel_from([z = rows_over(c, c.in(1), c.in(2)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::bias_gelu_backward(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1),
                                adds && !k.fresh, k.workspace);
    });
}

template <class T>
Made make_dropout(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const auto first = static_cast<uint32_t>(c.first_index(x, static_cast<int>(x.dims.size()) - 1));
    return kernel_from([z = rows_of(c, x), drop = Dropout(c.op), first](const KernelArgs& k) {
        cpu::dropout(k.pool, z.rows, z.n, in<T>(k, 0), drop.mask(k, 1, first), out<T>(k, 0));
    });
}

template <class S, class T = S>
Made make_bias_dropout_add(const KernelContext& c) {  // x, b, residual[, noise]
    const ir::Tensor& x = c.in(0);
    const auto first = static_cast<uint32_t>(c.first_index(x, static_cast<int>(x.dims.size()) - 1));
    return kernel_from([z = rows_of(c, x), drop = Dropout(c.op), first](const KernelArgs& k) {
        const cpu::DropoutMask mask = drop.drops ? drop.mask(k, 3, first) : cpu::DropoutMask{};
        cpu::bias_dropout_add(k.pool, z.rows, z.n, in<S>(k, 0), in<T>(k, 1), in<S>(k, 2), mask, out<S>(k, 0));
    });
}

// A sum over the first dims: the gradient of a bias.
inline bool is_sum_of_rows(const ir::Routine& r, const ir::Op& op) {
    if (op.in.size() != 1) return false;
    const std::vector<ir::DimId>&x = r.tensors[op.in[0]].dims, &sum = r.tensors[op.out[0]].dims;
    return !sum.empty() && sum.size() < x.size() && std::equal(sum.rbegin(), sum.rend(), x.rbegin());
}

template <class T>
Made make_sum_rows(const KernelContext& c) {
    return kernel_from([z = rows_over(c, c.in(0), c.out(0)), adds = c.op.accumulates(0)](const KernelArgs& k) {
        cpu::sum_rows(k.pool, z.rows, z.n, in<T>(k, 0), out(k, 0), adds && !k.fresh);
    });
}

template <class S, class T = S, class W = T>
Made make_layernorm(const KernelContext& c) {
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::layer_norm(k.pool, z.rows, z.n, in<S>(k, 0), in<W>(k, 1), in<W>(k, 2), eps, out<T>(k, 0), out(k, 1), out(k, 2));
    });
}

template <class S, class W = S>
Made make_layernorm_backward(const KernelContext& c) {  // [also,] d_y, x, w, b, mean, rstd -> d_x, d_w, d_b
    const int o = c.op.kind == "layernorm_backward_add" ? 1 : 0;
    return kernel_from([o, z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::layer_norm_backward(k.pool, z.rows, z.n, in<S>(k, o), in<S>(k, o + 1), in<W>(k, o + 2), in(k, o + 4), in(k, o + 5),
                                 o == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1), adds && !k.fresh, out(k, 2),
                                 k.workspace);
    });
}

inline Made make_max(const KernelContext& c) {
    return kernel_from(
        [z = rows_of(c, c.in(0))](const KernelArgs& k) { cpu::row_max(k.pool, z.rows, z.n, in(k, 0), out(k, 0)); });
}

// In place only: the padded columns of the logits are overwritten where they stand.
template <class T>
Made make_mask_padding(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int last = static_cast<int>(x.dims.size()) - 1;
    const RowsOf z = rows_of(c, x);
    const int64_t valid = std::clamp<int64_t>(c.routine.dims[x.dims[last]].valid - c.first_index(x, last), 0, z.n);
    return kernel_from([=, fill = T(static_cast<float>(c.op.number("fill"))), n = c.elements(x)](const KernelArgs& k) {
        const T* source = in<T>(k, 0);
        if (source != out<T>(k, 0)) cpu::add(k.pool, n, &source, 1, out<T>(k, 0));
        for (int64_t r = 0; r < z.rows; ++r) std::fill(out<T>(k, 0) + r * z.n + valid, out<T>(k, 0) + (r + 1) * z.n, fill);
    });
}

template <class T>
Made make_cross_entropy(const KernelContext& c) {
    const bool forward = c.op.kind == "cross_entropy";
    const ir::Tensor& logits = c.in(forward ? 0 : 2);
    const RowsOf z = rows_of(c, logits);
    const int64_t first = c.first_index(logits, static_cast<int>(logits.dims.size()) - 1);
    if (forward) {
        return kernel_from([=](const KernelArgs& k) {
            cpu::cross_entropy(k.pool, z.rows, z.n, in(k, 0), in(k, 1), ids(k, 2), first, out(k, 0), out(k, 1));
        });
    }
    return kernel_from([=](const KernelArgs& k) {  // d_z, d_t, logits, m, targets -> d_logits
        cpu::cross_entropy_backward(k.pool, z.rows, z.n, in(k, 0), in(k, 1), in(k, 2), in(k, 3), ids(k, 4), first, out<T>(k, 0));
    });
}

// What is updated in place: the new weights, where they stand elsewhere than the old ones.
template <class T>
T* weights_of(const KernelArgs& k, int64_t n) {
    const T* own = in<T>(k, 0);
    if (own != out<T>(k, 0)) cpu::add(k.pool, n, &own, 1, out<T>(k, 0));
    return out<T>(k, 0);
}

template <class T>
Made make_adam(const KernelContext& c) {
    cpu::AdamWStep step;
    step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps");
    if (c.op.kind == "adam") step.l2 = static_cast<float>(c.op.number("weight_decay"));
    else step.weight_decay = c.op.number("weight_decay");
    return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[4]));
        cpu::AdamWStep now = step;
        now.lr = s.lr, now.bias_correction1 = s.bias_correction1, now.bias_correction2 = s.bias_correction2;
        now.grad_scale = static_cast<float>(s.clip), now.commit = s.commit ? 1 : 0;
        cpu::adamw(k.pool, n, now, in(k, 1), weights_of<T>(k, n), out<T>(k, 1), out<T>(k, 2));
    });
}

inline cpu::MomentumStep momentum_step(const ir::Op& op) {
    cpu::MomentumStep step;
    step.momentum = static_cast<float>(op.number("momentum")), step.nesterov = op.integer("nesterov") != 0;
    return step;
}

template <class T>
Made make_sgd(const KernelContext& c) {
    const bool remembers = c.op.out.size() == 2;
    cpu::MomentumStep fixed = momentum_step(c.op);
    fixed.l2 = static_cast<float>(c.op.number("weight_decay"));
    return kernel_from([=, n = c.elements(c.in(0))](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[remembers ? 3 : 2]));
        T* const w = weights_of<T>(k, n);
        if (!s.commit) return;
        cpu::MomentumStep step = fixed;
        step.lr = static_cast<float>(s.lr), step.grad_scale = static_cast<float>(s.clip);
        cpu::sgd(k.pool, n, step, in(k, 1), w, remembers ? out<T>(k, 1) : nullptr);
    });
}

template <class T>
Made make_muon_momentum(const KernelContext& c) {
    return kernel_from([fixed = momentum_step(c.op), n = c.elements(c.in(0))](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[2]));
        if (!s.commit) return std::fill_n(out(k, 0), n, 0.0f), void();
        cpu::MomentumStep step = fixed;
        step.grad_scale = static_cast<float>(s.clip);
        cpu::muon_momentum(k.pool, n, step, in(k, 0), out(k, 0), out<T>(k, 1));
    });
}

template <class T>
Made make_muon(const KernelContext& c) {
    return kernel_from([decay = c.op.number("weight_decay"), n = c.elements(c.in(0))](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[2]));
        T* const w = weights_of<T>(k, n);
        if (s.commit) cpu::muon(k.pool, n, static_cast<float>(1 - s.lr * decay), static_cast<float>(s.lr), in(k, 1), w);
    });
}

inline Made make_sum_squares(const KernelContext& c) {
    const auto& axes = std::get<std::vector<int64_t>>(c.op.attrs.at("count_if"));
    const bool owner =
        std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return c.mesh.coordinate(c.rank, static_cast<int>(a)) == 0; });
    return kernel_from([n = c.elements(c.in(0)), owner, adds = c.op.accumulates(0)](const KernelArgs& k) {
        const double sum = owner ? cpu::sum_of_squares(k.pool, n, in(k, 0), k.workspace).sum : 0;
        double& total = *static_cast<double*>(k.out[0]);
        total = adds && !k.fresh ? total + sum : sum;
    });
}

}  // namespace lockstep::kernels::makers
