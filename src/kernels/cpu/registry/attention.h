// Attention: blocked, by AMX, and of single queries.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/matmul.h"
#include "kernels/registry/bias.h"

namespace lockstep::kernels::registry {

inline cpu::AttentionShape attention_shape(const KernelContext& c, size_t query) {
    const ir::Tensor &q = c.in(query), &k = c.in(query + 1);
    return {c.size(q, 0),
            c.size(q, 1),
            c.size(k, 1),
            c.size(q, 2),
            c.size(q, 3),
            c.size(q, 4),
            static_cast<float>(c.op.number("scale")),
            c.op.integer("window")};
}
inline cpu::AttentionDropout attention_dropout(const KernelContext& c, size_t query) {
    const ir::Tensor& q = c.in(query);
    const Dropped drop(c.op);
    return {nullptr, 0, drop.threshold, drop.scale, c.first_index(q, 2), c.first_index(q, 3), c.routine.dims[q.dims[3]].size};
}

template <class T>
struct ForwardAttention {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise] -> out, lse
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::Attention<T>* run) {
        return kernel_from(
            [shape = attention_shape(c, 0), drop = Dropped(c.op), heads = attention_dropout(c, 0), run](const KernelArgs& k) {
                cpu::AttentionMask mask{ids(k, 3), ids(k, 4), ids(k, 5), ids(k, 6), heads};
                if (drop.drops) mask.drop.noise = ids(k, 7), mask.drop.stream = drop.stream(k);
                run(k.queue.pool(), shape, mask, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1), k.workspace);
            });
    }
};
template <class T>
struct Attention : ForwardAttention<T> {
    static constexpr Family kFamily{"attention", "attention"};
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_workspace_bytes(attention_shape(c, 0), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return ForwardAttention<T>::make_with(c, cpu::attention); }
};
template <class T>
struct AttentionAmx : ForwardAttention<T> {
    static constexpr Family kFamily{"attention", "attention_amx"};
    static bool is_available(const InstructionSets& has) { return has.amx; }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_workspace_bytes(attention_shape(c, 0), c.threads, cpu::AttentionKernel::amx);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return ForwardAttention<T>::make_with(c, cpu::attention_amx); }
};
template <class T>
struct AttentionRow : ForwardAttention<T> {  // of one query: no block of queries to fill
    static constexpr Family kFamily{"attention", "attention_row"};
    static bool serves(const KernelContext& c) { return attention_shape(c, 0).seq == 1 && !ops::has_dropout(c.op); }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_row_workspace_bytes(attention_shape(c, 0), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return ForwardAttention<T>::make_with(c, cpu::attention_row); }
};

template <class T, class... Noise>
struct BackwardAttention {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out (not read), lse[, noise] -> d_q, d_k, d_v
    using Types = std::tuple<T, T, T>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float, Noise...);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::AttentionBackward<T>* run) {
        return kernel_from(
            [shape = attention_shape(c, 1), drop = Dropped(c.op), heads = attention_dropout(c, 1), run](const KernelArgs& k) {
                cpu::AttentionMask mask{ids(k, 4), ids(k, 5), ids(k, 6), ids(k, 7), heads};
                if (drop.drops) mask.drop.noise = ids(k, 10), mask.drop.stream = drop.stream(k);
                run(k.queue.pool(), shape, mask, in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in(k, 9), in<T>(k, 0), out<T>(k, 0),
                    out<T>(k, 1), out<T>(k, 2), k.workspace);
            });
    }
};
template <class T, class... Noise>
struct AttentionBackward : BackwardAttention<T, Noise...> {
    static constexpr Family kFamily{"attention_backward", "attention_backward"};
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_backward_workspace_bytes(attention_shape(c, 1), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return BackwardAttention<T, Noise...>::make_with(c, cpu::attention_backward);
    }
};
template <class T, class... Noise>
struct AttentionBackwardAmx : BackwardAttention<T, Noise...> {
    static constexpr Family kFamily{"attention_backward", "attention_backward_amx"};
    static bool is_available(const InstructionSets& has) { return has.amx; }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_backward_workspace_bytes(attention_shape(c, 1), c.threads, cpu::AttentionKernel::amx);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return BackwardAttention<T, Noise...>::make_with(c, cpu::attention_backward_amx);
    }
};

}  // namespace lockstep::kernels::registry
