// Which ops the kernels serve that are compiled for each element type.
#pragma once

#include <algorithm>

#include "base/quantized.h"
#include "kernels/gpu/attention.h"
#include "kernels/gpu/attention_workspace.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/quantize.h"
#include "kernels/gpu/update.h"
#include "kernels/registry/attention.h"
#include "kernels/registry/lists.h"
#include "ops/rope.h"

namespace lockstep::kernels::gpu {

using namespace registry;

inline Stream stream_of(const KernelArgs& k) { return k.queue.handle(); }

template <class T>
struct RopeOf {
    static constexpr Family kFamily{"rope", "rope", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return rows_of(c, c.in(0)).n / 2 <= Frequencies::kMost; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(0));
        const Frequencies frequencies = Backend::frequencies(ops::rope_frequencies(c.op, z.n));
        const int64_t tokens = c.elements(c.in(1));
        return kernel_from([=, sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
            rope(stream_of(k), tokens, z.rows / tokens, z.n / 2, in<T>(k, 0), ids(k, 1), frequencies, sign, out<T>(k, 0));
        });
    }
};

template <class T>
struct GeluOf {
    static constexpr Family kFamily{"gelu", "gelu", -1, true};
    using Types = T(T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) { gelu(stream_of(k), n, in<T>(k, 0), out<T>(k, 0)); });
    }
};
template <class T>
struct GeluBackwardOf {  // d_y, x -> d_x
    static constexpr Family kFamily{"gelu_backward", "gelu_backward", -1, true};
    using Types = T(T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            gelu_backward(stream_of(k), n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};

template <class T>
struct AttentionOf {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise] -> out, lse
    static constexpr Family kFamily{"attention", "attention"};
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static bool serves(const KernelContext& c) { return attention_shape(c, 0).head_dim <= kMostHeadDim; }
    static int64_t workspace_bytes(const KernelContext& c) { return attention_workspace_bytes(attention_shape(c, 0)); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([shape = attention_shape(c, 0), mask = MaskOfAttention(c, 0)](const KernelArgs& k) {
            attention(stream_of(k), shape, mask(k), in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1), k.workspace);
        });
    }
};
template <class T, class... Noise>
struct AttentionBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise] -> d_q, d_k, d_v
    static constexpr Family kFamily{"attention_backward", "attention_backward"};
    using Types = std::tuple<T, T, T>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float, Noise...);
    static bool serves(const KernelContext& c) { return attention_shape(c, 1).head_dim <= kMostHeadDim; }
    static int64_t workspace_bytes(const KernelContext& c) { return attention_backward_workspace_bytes(attention_shape(c, 1)); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([shape = attention_shape(c, 1), mask = MaskOfAttention(c, 1)](const KernelArgs& k) {
            attention_backward(stream_of(k), shape, mask(k), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 8), in(k, 9),
                               in<T>(k, 0), out<T>(k, 0), out<T>(k, 1), out<T>(k, 2), k.workspace);
        });
    }
};
template <class T>
struct MaskPaddingOf {
    static constexpr Family kFamily{"mask_padding", "mask_padding", -1, true};
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
    static constexpr Family kFamily{"quantize", "quantize"};
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
    static constexpr Family kFamily{"dequantize", "dequantize"};
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
    static constexpr Family kFamily{"dequantize_sum", "dequantize_sum"};
};

// The new weights, where they stand elsewhere than the old ones.
template <class T>
T* weights_of(const KernelArgs& k, int64_t n) {
    T* const w = out<T>(k, 0);
    if (in<T>(k, 0) != w) cast(stream_of(k), n, in<T>(k, 0), w);
    return w;
}

inline AdamStep decaying(double weight_decay, float l2) {
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
    static constexpr Family kFamily{"adamw", "adam"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return Adams<T>::make_with(c, decaying(c.op.number("weight_decay"), 0));
    }
};
template <class T>
struct AdamOf : Adams<T> {
    static constexpr Family kFamily{"adam", "adam"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return Adams<T>::make_with(c, decaying(0, number(c, "weight_decay")));
    }
};

inline MomentumStep momentum_step(const ir::Op& op) {
    MomentumStep step;
    step.momentum = static_cast<float>(op.number("momentum")), step.nesterov = op.integer("nesterov") != 0;
    return step;
}
template <class T, bool remembers>
struct Sgds {  // w, g[, buffer], control -> w[, buffer]
    static constexpr Family kFamily{"sgd", "sgd"};
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
    static constexpr Family kFamily{"muon_momentum", "muon_momentum"};
    using Types = std::tuple<float, T>(float, T, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([step = momentum_step(c.op), n = c.elements(c.in(0))](const KernelArgs& k) {
            muon_momentum(stream_of(k), n, step, in<double>(k, 2), in(k, 0), out(k, 0), out<T>(k, 1));
        });
    }
};
template <class T>
struct MuonOf {  // w, orthogonal update, control -> w
    static constexpr Family kFamily{"muon", "muon"};
    using Types = T(T, float, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([decay = c.op.number("weight_decay"), n = c.elements(c.in(0))](const KernelArgs& k) {
            muon(stream_of(k), n, decay, in<double>(k, 2), in(k, 1), weights_of<T>(k, n));
        });
    }
};
template <class T>
struct OuterGradientOf {  // anchor, w -> g
    static constexpr Family kFamily{"outer_gradient", "outer_gradient"};
    using Types = float(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([factor = number(c, "scale"), n = c.elements(c.in(0))](const KernelArgs& k) {
            outer_gradient(stream_of(k), n, factor, in<T>(k, 0), in<T>(k, 1), out(k, 0));
        });
    }
};
template <class T, bool remembers>
struct OuterSgds {  // w, anchor, g[, buffer] -> w, anchor[, buffer]
    static constexpr Family kFamily{"outer_sgd", "outer_sgd"};
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

// As if all islands brought the same: where a job meets others, the runtime goes to their service instead.
struct MeetOf {
    static constexpr Family kFamily{"meet", "meet"};
    using Types = float(float);
    static int64_t bits(const KernelContext& c) { return c.op.integer("bits"); }
    static int64_t workspace_bytes(const KernelContext& c) {
        return bits(c) == 0 ? 0 : quantized_bytes(c.elements(c.in(0)), bits(c));
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        Quantization how;
        how.least = least_exponent(Dtype::F32);
        return kernel_from([how, n = c.elements(c.in(0)), quantized = bits(c) != 0,
                            islands = static_cast<float>(c.op.integer("islands"))](const KernelArgs& k) {
            auto* const q = static_cast<int8_t*>(k.workspace);
            const auto round = [&](const float* x) {
                quantize(stream_of(k), n, how, x, q);
                dequantize(stream_of(k), 1, n, how.bits, q, out(k, 0));
            };
            if (quantized) round(in(k, 0));
            scale(stream_of(k), n, quantized ? out(k, 0) : in(k, 0), islands, out(k, 0));
            if (quantized) round(out(k, 0));
        });
    }
};

struct SumSquaresOf {
    static constexpr Family kFamily{"sum_squares", "sum_squares", 0};
    using Types = double(float);
    static int64_t workspace_bytes(const KernelContext& c) { return sum_of_squares_workspace_bytes(c.elements(c.in(0))); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), counts = c.counts(), adds = c.op.accumulates(0)](const KernelArgs& k) {
            sum_of_squares(stream_of(k), n, in(k, 0), counts, adds && !k.fresh, out<double>(k, 0),
                           static_cast<double*>(k.workspace));
        });
    }
};

// Parameters and activations as T. B: Backend, or one that plans only.
template <class B, class T>
void add_type(std::vector<Registered>& r) {
    add_common<B, T>(r);
    add_all<B, GeluOf<T>, GeluBackwardOf<T>>(r);
    add_all<B, RopeOf<T>, MaskPaddingOf<T>, QuantizeOf<T>, QuantizeAtRandomOf<T>, DequantizeOf<T>, DequantizeSumOf<T>>(r);
    add_all<B, AttentionOf<T>, AttentionBackwardOf<T>, AttentionBackwardOf<T, int32_t>>(r);
    add_all<B, AdamWOf<T>, AdamOf<T>, SgdOf<T>, SgdWithMomentumOf<T>, MuonMomentumOf<T>, MuonOf<T>>(r);
    add_all<B, OuterGradientOf<T>, OuterSgdOf<T>, OuterSgdWithMomentumOf<T>>(r);
}

template <class B>
void add_typed(std::vector<Registered>& r) {
    add_all<B, SumSquaresOf, MeetOf>(r);
    add_common_of_float<B>(r);
#define COPY(T) add_type<B, T>(r);
    LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
    add_common_beside_float<B, Bf16>(r);
    add_common_beside_float<B, F16>(r);
}

}  // namespace lockstep::kernels::gpu
