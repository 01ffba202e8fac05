#include "kernels/gpu/catalog.h"

#include <algorithm>

#include "base/quantized.h"
#include "kernels/dropped.h"
#include "kernels/gpu/columns.h"
#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/loss.h"
#include "kernels/gpu/norm.h"
#include "kernels/gpu/quantize.h"
#include "kernels/gpu/tokens.h"
#include "kernels/gpu/update.h"
#include "kernels/registry.h"
#include "ops/rope.h"

namespace lockstep::kernels::gpu {
namespace {

using namespace registry;

Stream stream_of(const KernelArgs& k) { return k.queue.handle(); }
float* sums_of(const KernelArgs& k) { return static_cast<float*>(k.workspace); }

template <class S, class T, class W>
struct RmsNormOf {
    static constexpr Family kFamily{"rmsnorm", "gpu.rmsnorm"};
    using Types = std::tuple<T, float>(S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            const Norm<S, T, W> a = {in<S>(k, 0), nullptr, in<W>(k, 1), nullptr, eps, nullptr, out<T>(k, 0), nullptr, out(k, 1)};
            rms_norm(stream_of(k), z.rows, z.n, a);
        });
    }
};
template <class S, class T, class W>
struct AddRmsNormOf {  // x, residual, w -> s, y, rstd
    static constexpr Family kFamily{"add_rmsnorm", "gpu.rmsnorm", -1, true};
    using Types = std::tuple<S, T, float>(S, S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            const Norm<S, T, W> a = {in<S>(k, 0),  in<S>(k, 1),  in<W>(k, 2), nullptr,  eps,
                                     out<S>(k, 0), out<T>(k, 1), nullptr,     out(k, 2)};
            rms_norm(stream_of(k), z.rows, z.n, a);
        });
    }
};
template <class S, class T, class W>
struct LayerNormOf {
    static constexpr Family kFamily{"layernorm", "gpu.layernorm"};
    using Types = std::tuple<T, float, float>(S, W, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            const Norm<S, T, W> a = {in<S>(k, 0), nullptr,      in<W>(k, 1), in<W>(k, 2), eps,
                                     nullptr,     out<T>(k, 0), out(k, 1),   out(k, 2)};
            layer_norm(stream_of(k), z.rows, z.n, a);
        });
    }
};

// d_y, x, w, rstd -> d_x, d_w; after `also` operands, one that is added to d_x.
template <class S, class W, int also>
struct RmsNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(1));
        return norm_backward_workspace_bytes(z.rows, z.n, 1);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            const NormBackward<S, W> a = {in<S>(k, also),   in<S>(k, also + 1), in<W>(k, also + 2),
                                          nullptr,          in(k, also + 3),    also == 1 ? in<S>(k, 0) : nullptr,
                                          out<S>(k, 0),     out(k, 1),          nullptr,
                                          adds && !k.fresh, sums_of(k)};
            rms_norm_backward(stream_of(k), z.rows, z.n, a);
        });
    }
};
template <class S, class W>
struct RmsNormBackwardOf : RmsNormBackwards<S, W, 0> {
    static constexpr Family kFamily{"rmsnorm_backward", "gpu.rmsnorm_backward", 1};
    using Types = std::tuple<S, float>(S, S, W, float);
};
template <class S, class W>
struct RmsNormBackwardAddOf : RmsNormBackwards<S, W, 1> {
    static constexpr Family kFamily{"rmsnorm_backward_add", "gpu.rmsnorm_backward", 1, true};
    using Types = std::tuple<S, float>(S, S, S, W, float);
};
// d_y, x, w, b, mean, rstd -> d_x, d_w, d_b; `also` as above.
template <class S, class W, int also>
struct LayerNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(1));
        return norm_backward_workspace_bytes(z.rows, z.n, 2);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            const NormBackward<S, W> a = {in<S>(k, also),   in<S>(k, also + 1), in<W>(k, also + 2),
                                          in(k, also + 4),  in(k, also + 5),    also == 1 ? in<S>(k, 0) : nullptr,
                                          out<S>(k, 0),     out(k, 1),          out(k, 2),
                                          adds && !k.fresh, sums_of(k)};
            layer_norm_backward(stream_of(k), z.rows, z.n, a);
        });
    }
};
template <class S, class W>
struct LayerNormBackwardOf : LayerNormBackwards<S, W, 0> {
    static constexpr Family kFamily{"layernorm_backward", "gpu.layernorm_backward", 1};
    using Types = std::tuple<S, float, float>(S, S, W, W, float, float);
};
template <class S, class W>
struct LayerNormBackwardAddOf : LayerNormBackwards<S, W, 1> {
    static constexpr Family kFamily{"layernorm_backward_add", "gpu.layernorm_backward", 1, true};
    using Types = std::tuple<S, float, float>(S, S, S, W, W, float, float);
};

template <class T>
struct AddOf {
    static constexpr Family kFamily{"add", "gpu.add", -1, true};
    using Types = T(T);
    static bool serves(const KernelContext& c) { return c.op.in.size() <= kMostTerms; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), terms = static_cast<int>(c.op.in.size())](const KernelArgs& k) {
            std::array<const T*, kMostTerms> inputs;
            for (int i = 0; i < terms; ++i) inputs[static_cast<size_t>(i)] = in<T>(k, i);
            gpu::add(stream_of(k), n, inputs.data(), terms, out<T>(k, 0));
        });
    }
};
template <class T>
struct ScaleOf {
    static constexpr Family kFamily{"scale", "gpu.scale", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), f = number(c, "c")](const KernelArgs& k) {
            scale(stream_of(k), n, in<T>(k, 0), f, out<T>(k, 0));
        });
    }
};
template <class From, class To>
struct CastOf {
    static constexpr Family kFamily{"cast", "gpu.cast"};
    using Types = To(From);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { cast(stream_of(k), n, in<From>(k, 0), out<To>(k, 0)); });
    }
};
template <class T>
struct AccumulateOf {
    static constexpr Family kFamily{"accumulate", "gpu.accumulate"};
    using Types = float(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            if (k.fresh) cast(stream_of(k), n, in<T>(k, 0), out(k, 0));
            else accumulate(stream_of(k), n, in<T>(k, 0), out(k, 0));
        });
    }
};
template <class T>
struct SwiGluOf {
    static constexpr Family kFamily{"swiglu", "gpu.swiglu"};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { swiglu(stream_of(k), n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0)); });
    }
};
template <class T>
struct SwiGluBackwardOf {  // d_y, gate, up -> d_gate, d_up
    static constexpr Family kFamily{"swiglu_backward", "gpu.swiglu_backward"};
    using Types = std::tuple<T, T>(T, T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            swiglu_backward(stream_of(k), n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out<T>(k, 1));
        });
    }
};
template <class T>
struct BiasOf {
    static constexpr Family kFamily{"bias", "gpu.bias", -1, true};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            bias(stream_of(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class T>
struct BiasGeluOf {
    static constexpr Family kFamily{"bias_gelu", "gpu.bias_gelu"};
    using Types = T(T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            bias_gelu(stream_of(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class S, class T>
struct GatherOf {
    static constexpr Family kFamily{"gather", "gpu.gather"};
    using Types = S(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [table = rows_of(c, c.in(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
                embedding(stream_of(k), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out<S>(k, 0));
            });
    }
};

template <class T>
struct ScatterOf {
    static constexpr Family kFamily{"scatter", "gpu.scatter", 0};
    using Types = float(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([table = rows_of(c, c.out(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.out(0), 0),
                            adds = c.op.accumulates(0)](const KernelArgs& k) {
            embedding_backward(stream_of(k), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), adds && !k.fresh,
                               out(k, 0));
        });
    }
};
template <class T>
struct RopeOf {
    static constexpr Family kFamily{"rope", "gpu.rope", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return rows_of(c, c.in(0)).n / 2 <= Frequencies::kMost; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(0));
        Frequencies frequencies = {};
        const std::vector<double> list = ops::rope_frequencies(c.op, z.n);
        std::copy(list.begin(), list.end(), frequencies.of);
        const int64_t tokens = c.elements(c.in(1));
        return kernel_from([=, sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
            rope(stream_of(k), tokens, z.rows / tokens, z.n / 2, in<T>(k, 0), ids(k, 1), frequencies, sign, out<T>(k, 0));
        });
    }
};

template <class T>
struct DropoutOf {
    static constexpr Family kFamily{"dropout", "gpu.dropout", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return c.in(0).dims.size() == c.in(1).dims.size() + 1; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                dropout(stream_of(k), z.rows, z.n, in<T>(k, 0), drop.mask<DropoutMask>(k, 1, first), out<T>(k, 0));
            });
    }
};
template <class S, class T, class... Noise>
struct BiasDropoutAddOf {  // x, b, residual[, noise]
    static constexpr Family kFamily{"bias_dropout_add", "gpu.bias_dropout_add", -1, true};
    using Types = S(S, T, S, Noise...);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                const DropoutMask mask = drop.drops ? drop.mask<DropoutMask>(k, 3, first) : DropoutMask{};
                bias_dropout_add(stream_of(k), z.rows, z.n, in<S>(k, 0), in<T>(k, 1), in<S>(k, 2), mask, out<S>(k, 0));
            });
    }
};
template <class T>
struct BiasGeluBackwardOf {  // d_y, x, b -> d_x, d_b
    static constexpr Family kFamily{"bias_gelu_backward", "gpu.bias_gelu_backward", 1};
    using Types = std::tuple<T, float>(T, T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_over(c, c.in(1), c.in(2));
        return sum_rows_workspace_bytes(z.rows, z.n);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(1), c.in(2)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            bias_gelu_backward(stream_of(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), adds && !k.fresh,
                               out(k, 1), sums_of(k));
        });
    }
};
template <class T>
struct SumRowsOf {  // over the first dims: the gradient of a bias
    static constexpr Family kFamily{"einsum", "gpu.sum_rows", 0};
    using Types = float(T);
    static bool serves(const KernelContext& c) { return sums_rows(c) && c.elements(c.out(0)) <= kMostColumns; }
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_over(c, c.in(0), c.out(0));
        return sum_rows_workspace_bytes(z.rows, z.n);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.out(0)), adds = c.op.accumulates(0)](const KernelArgs& k) {
            sum_rows(stream_of(k), z.rows, z.n, in<T>(k, 0), adds && !k.fresh, out(k, 0), sums_of(k));
        });
    }
};

template <class T>
struct MaskPaddingOf {
    static constexpr Family kFamily{"mask_padding", "gpu.mask_padding", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), valid = valid_columns(c, c.in(0)), fill = number(c, "fill")](const KernelArgs& k) {
                mask_padding(stream_of(k), z.rows, z.n, valid, fill, in<T>(k, 0), out<T>(k, 0));
            });
    }
};
template <class T>
struct QuantizeOf {
    static constexpr Family kFamily{"quantize", "gpu.quantize"};
    using Types = int8_t(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const int64_t n = c.elements(c.in(0)), bits = c.op.integer("bits");
        if (!is_quantized(bits))
            return kernel_from([n](const KernelArgs& k) { cast(stream_of(k), n, in<T>(k, 0), out<T>(k, 0)); });
        Quantization how;
        how.bits = static_cast<int>(bits), how.least = static_cast<int>(c.op.integer("least"));
        const bool at_random = c.op.in.size() == 2;
        if (at_random) how.stream = c.op.integer("stream");
        return kernel_from([n, how, at_random](const KernelArgs& k) {
            Quantization now = how;
            if (at_random) now.steps = in<double>(k, 1);
            quantize(stream_of(k), n, now, in<T>(k, 0), out<int8_t>(k, 0));
        });
    }
};
template <class T>
struct QuantizeAtRandomOf : QuantizeOf<T> {
    using Types = int8_t(T, double);  // the number of steps
};
template <class T>
struct DequantizeOf {
    static constexpr Family kFamily{"dequantize", "gpu.dequantize"};
    using Types = T(int8_t);
    static int64_t rows(const KernelContext& c) {
        return c.elements(c.in(0)) / quantized_bytes(c.elements(c.out(0)), c.op.integer("bits"));
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const int64_t n = c.elements(c.out(0)), bits = c.op.integer("bits");
        if (!is_quantized(bits))
            return kernel_from(
                [n, rows = rows(c)](const KernelArgs& k) { add_rows(stream_of(k), rows, n, in<T>(k, 0), out<T>(k, 0)); });
        return kernel_from([n, bits = static_cast<int>(bits), rows = rows(c)](const KernelArgs& k) {
            dequantize(stream_of(k), rows, n, bits, in<int8_t>(k, 0), out<T>(k, 0));
        });
    }
};
template <class T>
struct DequantizeSumOf : DequantizeOf<T> {
    static constexpr Family kFamily{"dequantize_sum", "gpu.dequantize_sum"};
};

struct MaxOf {
    static constexpr Family kFamily{"max", "gpu.max"};
    using Types = float(float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0))](const KernelArgs& k) { row_max(stream_of(k), z.rows, z.n, in(k, 0), out(k, 0)); });
    }
};
struct CrossEntropyOf {  // logits, m, targets -> z, t
    static constexpr Family kFamily{"cross_entropy", "gpu.cross_entropy"};
    using Types = std::tuple<float, float>(float, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
            cross_entropy(stream_of(k), z.rows, z.n, in(k, 0), in(k, 1), ids(k, 2), first, out(k, 0), out(k, 1));
        });
    }
};
template <class T>
struct CrossEntropyBackwardOf {  // d_z, d_t, logits, m, targets -> d_logits
    static constexpr Family kFamily{"cross_entropy_backward", "gpu.cross_entropy_backward", -1, true};
    using Types = T(float, float, float, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(2)), first = first_of_last_dim(c, c.in(2))](const KernelArgs& k) {
            cross_entropy_backward(stream_of(k), z.rows, z.n, in(k, 0), in(k, 1), in(k, 2), in(k, 3), ids(k, 4), first,
                                   out<T>(k, 0));
        });
    }
};

// The new weights, where they stand elsewhere than the old ones.
template <class T>
T* weights_of(const KernelArgs& k, int64_t n) {
    T* const w = out<T>(k, 0);
    if (in<T>(k, 0) != w) cast(stream_of(k), n, in<T>(k, 0), w);
    return w;
}

AdamStep decaying(double weight_decay, float l2) {
    AdamStep step;
    step.weight_decay = weight_decay, step.l2 = l2;
    return step;
}
template <class T>
struct Adams {  // w, g, m, v, control -> w, m, v
    using Types = std::tuple<T, T, T>(T, float, T, T, double);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, AdamStep step) {
        step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps");
        return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
            adam(stream_of(k), n, step, in<double>(k, 4), in(k, 1), weights_of<T>(k, n), out<T>(k, 1), out<T>(k, 2));
        });
    }
};
template <class T>
struct AdamWOf : Adams<T> {
    static constexpr Family kFamily{"adamw", "gpu.adam"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return Adams<T>::make_with(c, decaying(c.op.number("weight_decay"), 0));
    }
};
template <class T>
struct AdamOf : Adams<T> {
    static constexpr Family kFamily{"adam", "gpu.adam"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return Adams<T>::make_with(c, decaying(0, number(c, "weight_decay")));
    }
};

MomentumStep momentum_step(const ir::Op& op) {
    MomentumStep step;
    step.momentum = static_cast<float>(op.number("momentum")), step.nesterov = op.integer("nesterov") != 0;
    return step;
}
template <class T, bool remembers>
struct Sgds {  // w, g[, buffer], control -> w[, buffer]
    static constexpr Family kFamily{"sgd", "gpu.sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        MomentumStep step = momentum_step(c.op);
        step.l2 = number(c, "weight_decay");
        return kernel_from([step, n = c.elements(c.in(0))](const KernelArgs& k) {
            sgd(stream_of(k), n, step, in<double>(k, remembers ? 3 : 2), in(k, 1), weights_of<T>(k, n),
                remembers ? out<T>(k, 1) : nullptr);
        });
    }
};
template <class T>
struct SgdOf : Sgds<T, false> {
    using Types = T(T, float, double);
};
template <class T>
struct SgdWithMomentumOf : Sgds<T, true> {
    using Types = std::tuple<T, T>(T, float, T, double);
};
template <class T>
struct MuonMomentumOf {  // g, buffer, control -> u, buffer
    static constexpr Family kFamily{"muon_momentum", "gpu.muon_momentum"};
    using Types = std::tuple<float, T>(float, T, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([step = momentum_step(c.op), n = c.elements(c.in(0))](const KernelArgs& k) {
            muon_momentum(stream_of(k), n, step, in<double>(k, 2), in(k, 0), out(k, 0), out<T>(k, 1));
        });
    }
};
template <class T>
struct MuonOf {  // w, orthogonal update, control -> w
    static constexpr Family kFamily{"muon", "gpu.muon"};
    using Types = T(T, float, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([decay = c.op.number("weight_decay"), n = c.elements(c.in(0))](const KernelArgs& k) {
            muon(stream_of(k), n, decay, in<double>(k, 2), in(k, 1), weights_of<T>(k, n));
        });
    }
};
template <class T>
struct OuterGradientOf {  // anchor, w -> g
    static constexpr Family kFamily{"outer_gradient", "gpu.outer_gradient"};
    using Types = float(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([factor = number(c, "scale"), n = c.elements(c.in(0))](const KernelArgs& k) {
            outer_gradient(stream_of(k), n, factor, in<T>(k, 0), in<T>(k, 1), out(k, 0));
        });
    }
};
template <class T, bool remembers>
struct OuterSgds {  // w, anchor, g[, buffer] -> w, anchor[, buffer]
    static constexpr Family kFamily{"outer_sgd", "gpu.outer_sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([step = momentum_step(c.op), lr = number(c, "lr"), alpha = number(c, "alpha"),
                            n = c.elements(c.in(0))](const KernelArgs& k) {
            outer_sgd(stream_of(k), n, step, lr, alpha, in(k, 2), weights_of<T>(k, n), out<T>(k, 1),
                      remembers ? out<T>(k, 2) : nullptr);
        });
    }
};
template <class T>
struct OuterSgdOf : OuterSgds<T, false> {
    using Types = std::tuple<T, T>(T, T, float);
};
template <class T>
struct OuterSgdWithMomentumOf : OuterSgds<T, true> {
    using Types = std::tuple<T, T, T>(T, T, float, T);
};

struct SumSquaresOf {
    static constexpr Family kFamily{"sum_squares", "gpu.sum_squares", 0};
    using Types = double(float);
    static int64_t workspace_bytes(const KernelContext& c) { return sum_of_squares_workspace_bytes(c.elements(c.in(0))); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), counts = c.counts(), adds = c.op.accumulates(0)](const KernelArgs& k) {
            sum_of_squares(stream_of(k), n, in(k, 0), counts, adds && !k.fresh, out<double>(k, 0),
                           static_cast<double*>(k.workspace));
        });
    }
};

using Registry = std::vector<Registered>;
template <class... Kernels>
void register_all(Registry& r) {
    (r.push_back(registered<Kernels>()), ...);
}

// Parameters and activations as T.
template <class T>
void register_type(Registry& r) {
    register_all<AddOf<T>, ScaleOf<T>, AccumulateOf<T>, SwiGluOf<T>, SwiGluBackwardOf<T>, BiasOf<T>, BiasGeluOf<T>>(r);
    register_all<BiasGeluBackwardOf<T>, SumRowsOf<T>, RopeOf<T>, DropoutOf<T>, ScatterOf<T>, MaskPaddingOf<T>>(r);
    register_all<CrossEntropyBackwardOf<T>, AdamWOf<T>, AdamOf<T>, SgdOf<T>, SgdWithMomentumOf<T>, MuonMomentumOf<T>>(r);
    register_all<QuantizeOf<T>, QuantizeAtRandomOf<T>, DequantizeOf<T>, DequantizeSumOf<T>>(r);
    register_all<MuonOf<T>, OuterGradientOf<T>, OuterSgdOf<T>, OuterSgdWithMomentumOf<T>>(r);
}

}  // namespace

const Registry& all_kernels() {
    static const Registry all = [] {
        Registry r;
        register_all<MaxOf, CrossEntropyOf, SumSquaresOf>(r);
#define COPY(T) register_type<T>(r);
        LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(T) register_all<CastOf<float, T>, CastOf<T, float>>(r);
        COPY(Bf16)
        COPY(F16)
#undef COPY
#define COPY(S, T) register_all<GatherOf<S, T>, BiasDropoutAddOf<S, T>, BiasDropoutAddOf<S, T, int32_t>>(r);
        LOCKSTEP_ON_STREAM(COPY)
#undef COPY
#define COPY(S, T, W) register_all<RmsNormOf<S, T, W>, AddRmsNormOf<S, T, W>, LayerNormOf<S, T, W>>(r);
        LOCKSTEP_NORMS(COPY)
#undef COPY
#define COPY(S, W) \
    register_all<RmsNormBackwardOf<S, W>, RmsNormBackwardAddOf<S, W>, LayerNormBackwardOf<S, W>, LayerNormBackwardAddOf<S, W>>(r);
        LOCKSTEP_NORM_BACKWARDS(COPY)
#undef COPY
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels::gpu
