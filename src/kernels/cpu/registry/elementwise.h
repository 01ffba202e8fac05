// Sums, casts, SwiGLU, rotary positions, the embedding.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/registry.h"
#include "ops/rope.h"

namespace lockstep::kernels::registry {

template <class T>
struct Add {
    static constexpr Family kFamily{"add", "cpu.add", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), terms = static_cast<int>(c.op.in.size())](const KernelArgs& k) {
            std::array<const T*, 64> inputs;
            for (int i = 0; i < terms; ++i) inputs[static_cast<size_t>(i)] = in<T>(k, i);
            cpu::add(k.queue.pool(), n, inputs.data(), terms, out<T>(k, 0));
        });
    }
};

template <class T>
struct Scale {
    static constexpr Family kFamily{"scale", "cpu.scale", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), f = number(c, "c")](const KernelArgs& k) {
            cpu::scale(k.queue.pool(), n, in<T>(k, 0), f, out<T>(k, 0));
        });
    }
};

template <class T>
struct Narrow {
    static constexpr Family kFamily{"cast", "cpu.cast"};
    using Types = T(float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { cpu::narrow_to(k.queue.pool(), n, in(k, 0), out<T>(k, 0)); });
    }
};
template <class T>
struct Widen {
    static constexpr Family kFamily{"cast", "cpu.cast"};
    using Types = float(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { cpu::widen_from(k.queue.pool(), n, in<T>(k, 0), out(k, 0)); });
    }
};

template <class T>
struct Accumulate {
    static constexpr Family kFamily{"accumulate", "cpu.accumulate"};
    using Types = float(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            if (k.fresh) cpu::widen_from(k.queue.pool(), n, in<T>(k, 0), out(k, 0));
            else cpu::accumulate(k.queue.pool(), n, in<T>(k, 0), out(k, 0));
        });
    }
};

template <class T>
struct SwiGlu {
    static constexpr Family kFamily{"swiglu", "cpu.swiglu"};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            cpu::swiglu(k.queue.pool(), n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class T>
struct SwiGluBackward {  // d_y, gate, up -> d_gate, d_up
    static constexpr Family kFamily{"swiglu_backward", "cpu.swiglu_backward"};
    using Types = std::tuple<T, T>(T, T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            cpu::swiglu_backward(k.queue.pool(), n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out<T>(k, 1));
        });
    }
};

template <class T>
struct Rope {
    static constexpr Family kFamily{"rope", "cpu.rope", -1, true};
    using Types = T(T, int32_t);
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

template <class S, class T>
struct Gather {
    static constexpr Family kFamily{"gather", "cpu.gather"};
    using Types = S(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [table = rows_of(c, c.in(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
                cpu::embedding(k.queue.pool(), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out<S>(k, 0));
            });
    }
};
template <class T>
struct Scatter {
    static constexpr Family kFamily{"scatter", "cpu.scatter", 0};
    using Types = float(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([table = rows_of(c, c.out(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.out(0), 0),
                            adds = c.op.accumulates(0)](const KernelArgs& k) {
            cpu::embedding_backward(k.queue.pool(), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out(k, 0),
                                    adds && !k.fresh);
        });
    }
};

}  // namespace lockstep::kernels::registry
