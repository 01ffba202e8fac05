// The CPU backend as the compiler and the executor see it: which op runs on which of this folder's functions.
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
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/kernel.h"
#include "kernels/step_control.h"
#include "ops/dropout.h"
#include "ops/rope.h"

namespace lockstep::kernels {
namespace {

using Made = std::unique_ptr<Kernel>;

// T: how the kernel's data is stored, float or Bf16; what an op keeps in float32 whatever T is, is float.
template <class T = float>
const T* in(const KernelArgs& a, int i) {
    return static_cast<const T*>(a.in[i]);
}
const int32_t* ids(const KernelArgs& a, int i) { return static_cast<const int32_t*>(a.in[i]); }
template <class T = float>
T* out(const KernelArgs& a, int i) {
    return static_cast<T*>(a.out[i]);
}

// Product of the sizes of all dims but the last, and the last.
struct RowsOf {
    int64_t rows, n;
};
RowsOf rows_of(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Tensor& t) {
    const int64_t n = ir::local_size(mesh, r, t, static_cast<int>(t.dims.size()) - 1);
    return {ir::local_elements(mesh, r, t) / n, n};
}
RowsOf rows_of(const KernelContext& c, const ir::Tensor& t) { return rows_of(c.mesh, c.routine, t); }

cpu::MatmulShape matmul_shape(const ops::MatmulShape& s) {
    cpu::MatmulShape m;
    m.m = s.m, m.n = s.n, m.k = s.k;
    m.transpose_a = s.a_transposed ? cpu::Transpose::yes : cpu::Transpose::no;
    m.transpose_b = s.b_transposed ? cpu::Transpose::no : cpu::Transpose::yes;
    return m;
}

template <class In, class Out>
Made make_matmul(const KernelContext& c) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.matmul: not a product of matrices");
    constexpr auto kResult = std::is_same_v<Out, Bf16> ? cpu::Matmul::Result::bf16 : cpu::Matmul::Result::f32;
    return kernel_from([matmul = cpu::Matmul(matmul_shape(shape), c.threads, kResult), a = shape.swapped ? 1 : 0,
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        matmul.run(k.pool, in<In>(k, a), in<In>(k, 1 - a), out<Out>(k, 0), adds && !k.fresh, k.workspace);
    });
}

Made make_matmul_onednn(const KernelContext& c) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.matmul_onednn: not a product of matrices");
    return kernel_from([matmul = cpu::Matmul(matmul_shape(shape), c.threads, cpu::MatmulKernel::onednn),
                        a = shape.swapped ? 1 : 0, adds = c.op.accumulates(0)](const KernelArgs& k) {
        matmul.run(k.pool, in<float>(k, a), in<float>(k, 1 - a), out<float>(k, 0), adds && !k.fresh, k.workspace);
    });
}

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

Made make_cast(const KernelContext& c) {
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

template <class T>
Made make_rmsnorm(const KernelContext& c) {
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::rms_norm(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), eps, out<T>(k, 0), out(k, 1));
    });
}

template <class T>
Made make_rmsnorm_backward(const KernelContext& c) {  // d_y, x, w, rstd -> d_x, d_w
    return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::rms_norm_backward(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in(k, 3), out<T>(k, 0), out(k, 1),
                               adds && !k.fresh, k.workspace);
    });
}

template <class T>
Made make_rope(const KernelContext& c) {
    const RowsOf z = rows_of(c, c.in(0));
    const int64_t tokens = c.elements(c.in(1));
    return kernel_from([=, frequencies = ops::rope_frequencies(c.op, z.n),
                        sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
        cpu::rope(k.pool, tokens, z.rows / tokens, z.n, in<T>(k, 0), ids(k, 1), frequencies.data(), sign, out<T>(k, 0));
    });
}

template <class T>
Made make_gather(const KernelContext& c) {
    const RowsOf table = rows_of(c, c.in(0));
    return kernel_from([table, tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
        cpu::embedding(k.pool, tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out<T>(k, 0));
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

cpu::AttentionShape attention_shape(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
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

cpu::AttentionDropout attention_dropout(const KernelContext& c) {
    const ir::Tensor& q = c.in(c.op.kind == "attention" ? 0 : 1);
    const Dropout drop(c.op);
    return {nullptr, 0, drop.threshold, drop.scale, c.first_index(q, 2), c.first_index(q, 3), c.routine.dims[q.dims[3]].size};
}

constexpr const char* kAttentionRow = "cpu.attention_row";  // of one query: no block of queries to fill

template <class T>
Made make_attention(const KernelContext& c) {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise] -> out, lse
    cpu::Attention<T>* const run = c.op.kernel == kAttentionRow ? cpu::attention_row : cpu::attention;
    return kernel_from([shape = attention_shape(c.mesh, c.routine, c.op), drop = Dropout(c.op), heads = attention_dropout(c),
                        run](const KernelArgs& k) {
        cpu::AttentionMask mask{ids(k, 3), ids(k, 4), ids(k, 5), ids(k, 6), heads};
        if (drop.drops) mask.drop.noise = ids(k, 7), mask.drop.stream = drop.stream(k);
        run(k.pool, shape, mask, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1), k.workspace);
    });
}

template <class T>
Made make_attention_backward(const KernelContext& c) {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise]
    return kernel_from([shape = attention_shape(c.mesh, c.routine, c.op), drop = Dropout(c.op),
                        heads = attention_dropout(c)](const KernelArgs& k) {
        cpu::AttentionMask mask{ids(k, 4), ids(k, 5), ids(k, 6), ids(k, 7), heads};
        if (drop.drops) mask.drop.noise = ids(k, 10), mask.drop.stream = drop.stream(k);
        cpu::attention_backward(k.pool, shape, mask, in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 8), in(k, 9), in<T>(k, 0),
                                out<T>(k, 0), out<T>(k, 1), out<T>(k, 2), k.workspace);
    });
}

// Rows that are as long as a bias.
RowsOf rows_over(const KernelContext& c, const ir::Tensor& x, const ir::Tensor& bias) {
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

template <class T>
Made make_bias_dropout_add(const KernelContext& c) {  // x, b, residual[, noise]
    const ir::Tensor& x = c.in(0);
    const auto first = static_cast<uint32_t>(c.first_index(x, static_cast<int>(x.dims.size()) - 1));
    return kernel_from([z = rows_of(c, x), drop = Dropout(c.op), first](const KernelArgs& k) {
        const cpu::DropoutMask mask = drop.drops ? drop.mask(k, 3, first) : cpu::DropoutMask{};
        cpu::bias_dropout_add(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), mask, out<T>(k, 0));
    });
}

// A sum over the first dims: the gradient of a bias.
bool is_sum_of_rows(const ir::Routine& r, const ir::Op& op) {
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

template <class T>
Made make_layernorm(const KernelContext& c) {
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::layer_norm(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), eps, out<T>(k, 0), out(k, 1), out(k, 2));
    });
}

template <class T>
Made make_layernorm_backward(const KernelContext& c) {  // d_y, x, w, b, mean, rstd -> d_x, d_w, d_b
    return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::layer_norm_backward(k.pool, z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in(k, 4), in(k, 5), out<T>(k, 0),
                                 out(k, 1), adds && !k.fresh, out(k, 2), k.workspace);
    });
}

Made make_max(const KernelContext& c) {
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

template <class T>
Made make_adamw(const KernelContext& c) {
    cpu::AdamWStep step;
    step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps"),
    step.weight_decay = c.op.number("weight_decay");
    return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[4]));
        cpu::AdamWStep now = step;
        now.lr = s.lr, now.bias_correction1 = s.bias_correction1, now.bias_correction2 = s.bias_correction2;
        now.grad_scale = static_cast<float>(s.clip), now.commit = s.commit ? 1 : 0;
        const T* own = in<T>(k, 0);
        if (own != out<T>(k, 0)) cpu::add(k.pool, n, &own, 1, out<T>(k, 0));
        cpu::adamw(k.pool, n, now, in(k, 1), out<T>(k, 0), out<T>(k, 1), out<T>(k, 2));
    });
}

Made make_sum_squares(const KernelContext& c) {
    const auto& axes = std::get<std::vector<int64_t>>(c.op.attrs.at("count_if"));
    const bool owner =
        std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return c.mesh.coordinate(c.rank, static_cast<int>(a)) == 0; });
    return kernel_from([n = c.elements(c.in(0)), owner, adds = c.op.accumulates(0)](const KernelArgs& k) {
        const double sum = owner ? cpu::sum_of_squares(k.pool, n, in(k, 0), k.workspace).sum : 0;
        double& total = *static_cast<double*>(k.out[0]);
        total = adds && !k.fresh ? total + sum : sum;
    });
}

// One row of the table: a kernel, for operands and results of these element types: T float32 or bfloat16 (all T of an op
// alike), t the other of the two, f float32, d float64, i int32; the last letter before > also stands for any more operands.
struct Entry {
    const char *op, *kernel, *types;
    Made (*f32)(const KernelContext&);   // T is float32, or does not occur
    Made (*bf16)(const KernelContext&);  // T is bfloat16
    int accumulates = -1;                // KernelEntry's
    bool in_place = false;
};
constexpr Entry kEntries[] = {
    {"einsum", "cpu.matmul", "ff>f", make_matmul<float, float>, nullptr, 0},
    {"einsum", "cpu.matmul_onednn", "ff>f", make_matmul_onednn, nullptr, 0},
    {"einsum", "cpu.matmul", "TT>T", nullptr, make_matmul<Bf16, Bf16>},
    {"einsum", "cpu.matmul", "TT>f", nullptr, make_matmul<Bf16, float>, 0},
    {"add", "cpu.add", "T>T", make_add<float>, make_add<Bf16>, -1, true},
    {"scale", "cpu.scale", "T>T", make_scale<float>, make_scale<Bf16>, -1, true},
    {"cast", "cpu.cast", "t>T", make_cast, make_cast},
    {"accumulate", "cpu.accumulate", "T>f", make_accumulate<float>, make_accumulate<Bf16>},
    {"swiglu", "cpu.swiglu", "TT>T", make_swiglu<float>, make_swiglu<Bf16>},
    {"swiglu_backward", "cpu.swiglu_backward", "TTT>TT", make_swiglu_backward<float>, make_swiglu_backward<Bf16>},
    {"rmsnorm", "cpu.rmsnorm", "TT>Tf", make_rmsnorm<float>, make_rmsnorm<Bf16>},
    {"rmsnorm_backward", "cpu.rmsnorm_backward", "TTTf>Tf", make_rmsnorm_backward<float>, make_rmsnorm_backward<Bf16>, 1},
    {"rope", "cpu.rope", "Ti>T", make_rope<float>, make_rope<Bf16>, -1, true},
    {"gather", "cpu.gather", "Ti>T", make_gather<float>, make_gather<Bf16>},
    {"scatter", "cpu.scatter", "Ti>f", make_scatter<float>, make_scatter<Bf16>, 0},
    {"attention", kAttentionRow, "TTTi>Tf", make_attention<float>, make_attention<Bf16>},
    {"attention", "cpu.attention", "TTTi>Tf", make_attention<float>, make_attention<Bf16>},
    {"attention_backward", "cpu.attention_backward", "TTTTiiiiTf>TTT", make_attention_backward<float>,
     make_attention_backward<Bf16>},
    {"attention_backward", "cpu.attention_backward", "TTTTiiiiTfi>TTT", make_attention_backward<float>,
     make_attention_backward<Bf16>},
    {"einsum", "cpu.sum_rows", "T>f", make_sum_rows<float>, make_sum_rows<Bf16>, 0},
    {"bias", "cpu.bias", "TT>T", make_bias<float>, make_bias<Bf16>, -1, true},
    {"bias_gelu", "cpu.bias_gelu", "TT>T", make_bias_gelu<float>, make_bias_gelu<Bf16>},
    {"bias_gelu_backward", "cpu.bias_gelu_backward", "TTT>Tf", make_bias_gelu_backward<float>, make_bias_gelu_backward<Bf16>, 1},
    {"dropout", "cpu.dropout", "Ti>T", make_dropout<float>, make_dropout<Bf16>, -1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "TTT>T", make_bias_dropout_add<float>, make_bias_dropout_add<Bf16>, -1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "TTTi>T", make_bias_dropout_add<float>, make_bias_dropout_add<Bf16>, -1, true},
    {"layernorm", "cpu.layernorm", "TTT>Tff", make_layernorm<float>, make_layernorm<Bf16>},
    {"layernorm_backward", "cpu.layernorm_backward", "TTTTff>Tff", make_layernorm_backward<float>, make_layernorm_backward<Bf16>,
     1},
    {"max", "cpu.max", "f>f", make_max, nullptr},
    {"mask_padding", "cpu.mask_padding", "T>T", make_mask_padding<float>, make_mask_padding<Bf16>, -1, true},
    {"cross_entropy", "cpu.cross_entropy", "ffi>ff", make_cross_entropy<float>, nullptr},
    {"cross_entropy_backward", "cpu.cross_entropy_backward", "ffffi>T", make_cross_entropy<float>, make_cross_entropy<Bf16>},
    {"adamw", "cpu.adamw", "TfTTd>TTT", make_adamw<float>, make_adamw<Bf16>},
    {"sum_squares", "cpu.sum_squares", "f>d", make_sum_squares, nullptr, 0},
};

// Has the op the element types that `types` spells, with `storage` for T?
bool has_types(std::string_view types, Dtype storage, const ir::Routine& r, const ir::Op& op) {
    const auto is = [&](char letter, Dtype t) {
        switch (letter) {
            case 'T': return t == storage;
            case 't': return t == (storage == Dtype::F32 ? Dtype::BF16 : Dtype::F32);
            case 'f': return t == Dtype::F32;
            case 'd': return t == Dtype::F64;
            default: return t == Dtype::I32;
        }
    };
    const size_t middle = types.find('>');
    const auto match = [&](std::string_view letters, const std::vector<ir::TensorId>& tensors, bool repeats) {
        if (tensors.size() < letters.size() || (tensors.size() > letters.size() && !repeats)) return false;
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (!is(letters[std::min(i, letters.size() - 1)], r.tensors[tensors[i]].dtype)) return false;
        }
        return true;
    };
    return match(types.substr(0, middle), op.in, true) && match(types.substr(middle + 1), op.out, false);
}

// What some ops ask beyond their types, and their workspace.
void complete(ops::KernelEntry& entry, int threads) {
    using ir::Op;
    using ir::Routine;
    using mesh::Mesh;
    const std::string& op = entry.op;
    const auto also = [&](const auto& condition) {
        entry.serves = [types = entry.serves, condition](const Mesh& m, const Routine& r, const Op& o) {
            return types(m, r, o) && condition(r, o);
        };
    };
    if (entry.kernel == "cpu.sum_rows") also([](const Routine& r, const Op& o) { return is_sum_of_rows(r, o); });
    if (op.starts_with("bias_gelu")) also([](const Routine&, const Op& o) { return o.text("fn") == "gelu"; });
    if (op == "dropout") {
        also([](const Routine& r, const Op& o) { return r.tensors[o.in[0]].dims.size() == r.tensors[o.in[1]].dims.size() + 1; });
    }
    if (entry.kernel.starts_with("cpu.matmul")) {
        entry.serves = [types = entry.serves](const Mesh& m, const Routine& r, const Op& o) {
            ops::MatmulShape shape;
            return types(m, r, o) && ops::is_matmul(m, r, o, &shape);
        };
        if (entry.kernel != "cpu.matmul_onednn")
            entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
                ops::MatmulShape shape;
                ops::is_matmul(m, r, o, &shape);
                const auto result =
                    r.tensors[o.out[0]].dtype == Dtype::BF16 ? cpu::Matmul::Result::bf16 : cpu::Matmul::Result::f32;
                return cpu::Matmul(matmul_shape(shape), threads, result).workspace_bytes();
            };
    }
    if (op == "attention" || op == "attention_backward") {
        const bool row = entry.kernel == kAttentionRow;
        if (row) {
            entry.serves = [types = entry.serves](const Mesh& m, const Routine& r, const Op& o) {
                return types(m, r, o) && attention_shape(m, r, o).seq == 1 && !ops::has_dropout(o);
            };
        }
        entry.workspace_bytes = [threads, row](const Mesh& m, const Routine& r, const Op& o) {
            const cpu::AttentionShape shape = attention_shape(m, r, o);
            if (row) return cpu::attention_row_workspace_bytes(shape, threads);
            return o.kind == "attention" ? cpu::attention_workspace_bytes(shape, threads)
                                         : cpu::attention_backward_workspace_bytes(shape, threads);
        };
    }
    if (op == "rmsnorm_backward") {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::rms_norm_backward_workspace_bytes(rows_of(m, r, r.tensors[o.in[1]]).n, threads);
        };
    }
    if (op == "layernorm_backward") {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::layer_norm_backward_workspace_bytes(rows_of(m, r, r.tensors[o.in[1]]).n, threads);
        };
    }
    if (op == "bias_gelu_backward") {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::row_sums_workspace_bytes(ir::local_elements(m, r, r.tensors[o.in[2]]), threads);
        };
    }
    if (op == "sum_squares") {
        entry.workspace_bytes = [](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::sum_of_squares_workspace_bytes(ir::local_elements(m, r, r.tensors[o.in[0]]));
        };
    }
}

}  // namespace

ops::KernelCatalog cpu_catalog(int threads) {
    ops::KernelCatalog catalog;
    catalog.name = "cpu";
    for (const Entry& e : kEntries) {
        for (const Dtype storage : {Dtype::F32, Dtype::BF16}) {
            if (!(storage == Dtype::F32 ? e.f32 : e.bf16)) continue;
            if (std::string_view(e.kernel) == "cpu.matmul_onednn" && !cpu::onednn_is_built()) continue;
            const std::string_view types = e.types;
            const char result = types[types.find('>') + 1];  // of result 0
            const Dtype dtype = result == 'T' ? storage : result == 'd' ? Dtype::F64 : Dtype::F32;
            ops::KernelEntry entry{e.op, dtype, e.kernel, e.accumulates, e.in_place, {}, {}};
            entry.serves = [types, storage](const mesh::Mesh&, const ir::Routine& r, const ir::Op& o) {
                return has_types(types, storage, r, o);
            };
            complete(entry, threads);
            catalog.entries.push_back(std::move(entry));
        }
    }
    for (ops::KernelEntry& e : reference_catalog().entries) catalog.entries.push_back(std::move(e));
    catalog.threads = threads;
    return catalog;
}

std::unique_ptr<Kernel> make_cpu_kernel(const KernelContext& c) {
    for (const Entry& e : kEntries) {
        if (c.op.kernel != e.kernel || c.op.kind != e.op) continue;
        if (e.f32 && has_types(e.types, Dtype::F32, c.routine, c.op)) return e.f32(c);
        if (e.bf16 && has_types(e.types, Dtype::BF16, c.routine, c.op)) return e.bf16(c);
    }
    return nullptr;
}

}  // namespace lockstep::kernels
