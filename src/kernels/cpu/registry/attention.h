// Attention: blocked, by AMX, and of single queries.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/matmul.h"
#include "kernels/registry/attention.h"

namespace lockstep::kernels::registry {

template <class T>
struct ForwardAttention {  // q, k, v, pos, kv_pos, doc, kv_doc[, noise] -> out, lse
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::Attention<T>* run) {
        return kernel_from([shape = attention_shape(c, 0), mask = MaskOfAttention(c, 0), run](const KernelArgs& k) {
            run(k.queue.pool(), shape, mask(k), in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1), k.workspace);
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
        return kernel_from([shape = attention_shape(c, 1), mask = MaskOfAttention(c, 1), run](const KernelArgs& k) {
            run(k.queue.pool(), shape, mask(k), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in(k, 9), in<T>(k, 0), out<T>(k, 0),
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

inline cpu::RingBlock ring_block(const KernelContext& c) { return carries(c) ? cpu::RingBlock::later : cpu::RingBlock::first; }

// q, k, v, pos, kv_pos, doc, kv_doc[, noise][, o, lse] -> o, lse. Last: int32_t, float; float; or nothing:
// without o and lse all that follow v are int32.
template <class T, class... Last>
struct ForwardBlock {
    using Types = std::tuple<float, float>(T, T, T, int32_t, int32_t, int32_t, int32_t, Last...);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::AttentionBlock<T>* run) {
        return kernel_from([shape = attention_shape(c, 0), mask = MaskOfAttention(c, 0), block = ring_block(c),
                            run](const KernelArgs& k) {
            run(k.queue.pool(), shape, mask(k), block, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out(k, 0), out(k, 1), k.workspace);
        });
    }
};
template <class T, class... Last>
struct AttentionBlock : ForwardBlock<T, Last...> {
    static constexpr Family kFamily{"attention_block", "attention_block"};
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_workspace_bytes(attention_shape(c, 0), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return ForwardBlock<T, Last...>::make_with(c, cpu::attention_block);
    }
};
template <class T, class... Last>
struct AttentionBlockAmx : ForwardBlock<T, Last...> {
    static constexpr Family kFamily{"attention_block", "attention_block_amx"};
    static bool is_available(const InstructionSets& has) { return has.amx; }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_workspace_bytes(attention_shape(c, 0), c.threads, cpu::AttentionKernel::amx);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return ForwardBlock<T, Last...>::make_with(c, cpu::attention_block_amx);
    }
};

// d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise][, dq] -> dq, dk, dv. Last: int32_t, float;
// int32_t; or nothing: without noise all that follow out are floats.
template <class T, class... Last>
struct BackwardBlock {
    using Types = std::tuple<float, float, float>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float, Last...);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::AttentionBlockBackward<T>* run) {
        return kernel_from(
            [shape = attention_shape(c, 1), mask = MaskOfAttention(c, 1), block = ring_block(c), run](const KernelArgs& k) {
                run(k.queue.pool(), shape, mask(k), block, in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 8), in(k, 9),
                    in<T>(k, 0), out(k, 0), out(k, 1), out(k, 2), k.workspace);
            });
    }
};
template <class T, class... Last>
struct AttentionBlockBackward : BackwardBlock<T, Last...> {
    static constexpr Family kFamily{"attention_block_backward", "attention_block_backward"};
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_block_backward_workspace_bytes(attention_shape(c, 1), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return BackwardBlock<T, Last...>::make_with(c, cpu::attention_block_backward);
    }
};
template <class T, class... Last>
struct AttentionBlockBackwardAmx : BackwardBlock<T, Last...> {
    static constexpr Family kFamily{"attention_block_backward", "attention_block_backward_amx"};
    static bool is_available(const InstructionSets& has) { return has.amx; }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::attention_block_backward_workspace_bytes(attention_shape(c, 1), c.threads, cpu::AttentionKernel::amx);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return BackwardBlock<T, Last...>::make_with(c, cpu::attention_block_backward_amx);
    }
};

}  // namespace lockstep::kernels::registry
