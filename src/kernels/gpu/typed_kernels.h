// Which ops the kernels serve that are compiled for each element type.
#pragma once

#include "base/quantized.h"
#include "kernels/gpu/attention.h"
#include "kernels/gpu/attention_workspace.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/quantize.h"
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
    static bool serves(const KernelContext& c) {
        return rows_of(c, c.in(0)).n / 2 <= Frequencies::kMost && !ops::is_packed_qkv(c.routine, c.op.in[0]);
    }
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
struct RopeOfQkv {  // rows of queries, keys and values
    static constexpr Family kFamily{"rope", "rope_qkv", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) {
        return rows_of(c, c.in(0)).n / 2 <= Frequencies::kMost && ops::is_packed_qkv(c.routine, c.op.in[0]);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const auto dims = static_cast<int>(c.in(0).dims.size());
        const int64_t keys = c.size(c.in(0), dims - 2);
        const QkvShape s = {c.elements(c.in(1)), (c.size(c.in(0), dims - 3) - 2) * keys, keys, c.size(c.in(0), dims - 1)};
        return kernel_from([s, r = Rotation<Backend>(c, s.head_dim)](const KernelArgs& k) {
            rope_qkv(stream_of(k), s, in<T>(k, 0), ids(k, 1), r.frequencies, r.sign, out<T>(k, 0));
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
// A block of a ring. Last: the types of operands behind those that every block has.
template <class T, class... Last>
struct AttentionBlockOf {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise][, o, lse] -> o, lse
    static constexpr Family kFamily{"attention_block", "attention_block"};
    using Types = std::tuple<float, float>(T, T, T, int32_t, int32_t, int32_t, int32_t, Last...);
    static bool serves(const KernelContext& c) { return attention_shape(c, 0).head_dim <= kMostHeadDim; }
    static int64_t workspace_bytes(const KernelContext& c) {
        return attention_block_workspace_bytes(attention_shape(c, 0), registry::carries(c));
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [shape = attention_shape(c, 0), mask = MaskOfAttention(c, 0), carries = registry::carries(c)](const KernelArgs& k) {
                attention_block(stream_of(k), shape, mask(k), in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), carries, out(k, 0),
                                out(k, 1), k.workspace);
            });
    }
};
template <class T, class... Last>
struct AttentionBlockBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise][, d_q] -> d_q, d_k, d_v
    static constexpr Family kFamily{"attention_block_backward", "attention_block_backward"};
    using Types = std::tuple<float, float, float>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float, Last...);
    static bool serves(const KernelContext& c) { return attention_shape(c, 1).head_dim <= kMostHeadDim; }
    static int64_t workspace_bytes(const KernelContext& c) { return attention_backward_workspace_bytes(attention_shape(c, 1)); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [shape = attention_shape(c, 1), mask = MaskOfAttention(c, 1), carries = registry::carries(c)](const KernelArgs& k) {
                attention_block_backward(stream_of(k), shape, mask(k), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 8),
                                         in(k, 9), in<T>(k, 0), carries, out(k, 0), out(k, 1), out(k, 2), k.workspace);
            });
    }
};
template <class T>
struct AttentionOfQkv {  // qkv, pos, kv_pos, doc, kv_doc -> out, lse
    static constexpr Family kFamily{"attention", "attention"};
    using Types = std::tuple<T, float>(T, int32_t);
    static bool serves(const KernelContext& c) { return is_packed(c, 0) && AttentionOf<T>::serves(c); }
    static int64_t workspace_bytes(const KernelContext& c) { return AttentionOf<T>::workspace_bytes(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([shape = attention_shape(c, 0), mask = MaskOfAttention(c, 0)](const KernelArgs& k) {
            const T* const q = in<T>(k, 0);
            attention(stream_of(k), shape, mask(k), q, q + shape.first_key(), q + shape.first_value(), out<T>(k, 0), out(k, 1),
                      k.workspace);
        });
    }
};
template <class T>
struct AttentionBackwardOfQkv {  // d_out, qkv, pos, kv_pos, doc, kv_doc, out, lse -> d_qkv
    static constexpr Family kFamily{"attention_backward", "attention_backward"};
    using Types = T(T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return is_packed(c, 1) && AttentionBackwardOf<T>::serves(c); }
    static int64_t workspace_bytes(const KernelContext& c) { return AttentionBackwardOf<T>::workspace_bytes(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([shape = attention_shape(c, 1), mask = MaskOfAttention(c, 1)](const KernelArgs& k) {
            const T* const q = in<T>(k, 1);
            T* const d_q = out<T>(k, 0);
            attention_backward(stream_of(k), shape, mask(k), q, q + shape.first_key(), q + shape.first_value(), in<T>(k, 6),
                               in(k, 7), in<T>(k, 0), d_q, d_q + shape.first_key(), d_q + shape.first_value(), k.workspace);
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

// Parameters and activations as T. B: Backend, or one that plans only.
template <class B, class T>
void add_type(std::vector<Registered>& r) {
    add_common<B, T>(r);
    add_all<B, GeluOf<T>, GeluBackwardOf<T>>(r);
    add_all<B, RopeOf<T>, RopeOfQkv<T>, MaskPaddingOf<T>, QuantizeOf<T>, QuantizeAtRandomOf<T>, DequantizeOf<T>,
            DequantizeSumOf<T>>(r);
    add_all<B, AttentionOf<T>, AttentionBackwardOf<T>, AttentionBackwardOf<T, int32_t>>(r);
    add_all<B, AttentionOfQkv<T>, AttentionBackwardOfQkv<T>>(r);
    add_all<B, AttentionBlockOf<T>, AttentionBlockOf<T, float>, AttentionBlockOf<T, int32_t, float>>(r);
    add_all<B, AttentionBlockBackwardOf<T>, AttentionBlockBackwardOf<T, int32_t>, AttentionBlockBackwardOf<T, int32_t, float>>(r);
    add_updates<B, T>(r);
}

template <class B>
void add_typed(std::vector<Registered>& r) {
    add_all<B, MeetOf>(r);
    add_common_of_float<B>(r);
#define COPY(T) add_type<B, T>(r);
    LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
    add_common_beside_float<B, Bf16>(r);
    add_common_beside_float<B, F16>(r);
}

}  // namespace lockstep::kernels::gpu
