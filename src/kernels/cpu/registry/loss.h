// Cross-entropy, and what it needs of the logits.
#pragma once

#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/registry.h"

namespace lockstep::kernels::registry {

struct Max {
    static constexpr Family kFamily{"max", "cpu.max"};
    using Types = float(float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0))](const KernelArgs& k) { cpu::row_max(k.queue.pool(), z.rows, z.n, in(k, 0), out(k, 0)); });
    }
};

// In place only: the padded columns of the logits are overwritten where they stand.
template <class T>
struct MaskPadding {
    static constexpr Family kFamily{"mask_padding", "cpu.mask_padding", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const ir::Tensor& x = c.in(0);
        const RowsOf z = rows_of(c, x);
        const int64_t valid = valid_columns(c, x);
        return kernel_from([=, fill = T(number(c, "fill")), n = c.elements(x)](const KernelArgs& k) {
            const T* source = in<T>(k, 0);
            if (source != out<T>(k, 0)) cpu::add(k.queue.pool(), n, &source, 1, out<T>(k, 0));
            for (int64_t r = 0; r < z.rows; ++r) std::fill(out<T>(k, 0) + r * z.n + valid, out<T>(k, 0) + (r + 1) * z.n, fill);
        });
    }
};

struct CrossEntropy {  // logits, m, targets -> z, t
    static constexpr Family kFamily{"cross_entropy", "cpu.cross_entropy"};
    using Types = std::tuple<float, float>(float, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
            cpu::cross_entropy(k.queue.pool(), z.rows, z.n, in(k, 0), in(k, 1), ids(k, 2), first, out(k, 0), out(k, 1));
        });
    }
};
template <class T>
struct CrossEntropyBackward {  // d_z, d_t, logits, m, targets -> d_logits
    static constexpr Family kFamily{"cross_entropy_backward", "cpu.cross_entropy_backward", -1, true};
    using Types = T(float, float, float, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(2)), first = first_of_last_dim(c, c.in(2))](const KernelArgs& k) {
            cpu::cross_entropy_backward(k.queue.pool(), z.rows, z.n, in(k, 0), in(k, 1), in(k, 2), in(k, 3), ids(k, 4), first,
                                        out<T>(k, 0));
        });
    }
};

}  // namespace lockstep::kernels::registry
