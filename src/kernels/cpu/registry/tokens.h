// Rotary positions and padded columns.
#pragma once

#include <algorithm>

#include "kernels/cpu/backend.h"
#include "kernels/registry/registry.h"
#include "ops/rope.h"

namespace lockstep::kernels::registry {

template <class T>
struct Rope {
    static constexpr Family kFamily{"rope", "rope", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return !ops::is_packed_qkv(c.routine, c.op.in[0]); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(0));
        const int64_t tokens = c.elements(c.in(1));
        return kernel_from([=, frequencies = ops::rope_frequencies(c.op, z.n),
                            sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
            k.queue.pool().parallel([&](int thread, int threads) {
                cpu::rope(split(tokens, threads, thread), z.rows / tokens, z.n, in<T>(k, 0), ids(k, 1), frequencies.data(), sign,
                          out<T>(k, 0));
            });
        });
    }
};

// In place only: the padded columns of the logits are overwritten where they are.
template <class T>
struct MaskPadding {
    static constexpr Family kFamily{"mask_padding", "mask_padding", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const ir::Tensor& x = c.in(0);
        const RowsOf z = rows_of(c, x);
        const int64_t valid = valid_columns(c, x);
        return kernel_from([=, fill = T(number(c, "fill")), n = c.elements(x)](const KernelArgs& k) {
            T* const y = in_place<cpu::Backend, T>(k, n);
            for (int64_t r = 0; r < z.rows; ++r) std::fill(y + r * z.n + valid, y + (r + 1) * z.n, fill);
        });
    }
};

}  // namespace lockstep::kernels::registry
