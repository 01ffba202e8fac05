// Sums, casts, SwiGLU, the embedding.
#pragma once

#include "kernels/registry/registry.h"

namespace lockstep::kernels::registry {

template <class B, class T>
struct Add {
    static constexpr Family kFamily{"add", "add", -1, true};
    using Types = T(T);
    static bool serves(const KernelContext& c) { return c.op.in.size() <= B::kMostTerms; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), terms = static_cast<int>(c.op.in.size())](const KernelArgs& k) {
            std::array<const T*, B::kMostTerms> inputs;
            for (int i = 0; i < terms; ++i) inputs[static_cast<size_t>(i)] = in<T>(k, i);
            B::add(B::place(k), n, inputs.data(), terms, out<T>(k, 0));
        });
    }
};

template <class B, class T>
struct Scale {
    static constexpr Family kFamily{"scale", "scale", -1, true};
    using Types = T(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), f = number(c, "c")](const KernelArgs& k) {
            B::scale(B::place(k), n, in<T>(k, 0), f, out<T>(k, 0));
        });
    }
};

template <class B, class T>
struct Narrow {
    static constexpr Family kFamily{"cast", "cast"};
    using Types = T(float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { B::narrow_to(B::place(k), n, in(k, 0), out<T>(k, 0)); });
    }
};
template <class B, class T>
struct Widen {
    static constexpr Family kFamily{"cast", "cast"};
    using Types = float(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [n = c.elements(c.out(0))](const KernelArgs& k) { B::widen_from(B::place(k), n, in<T>(k, 0), out(k, 0)); });
    }
};

template <class B, class T>
struct Accumulate {
    static constexpr Family kFamily{"accumulate", "accumulate"};
    using Types = float(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            if (k.fresh) B::widen_from(B::place(k), n, in<T>(k, 0), out(k, 0));
            else B::accumulate(B::place(k), n, in<T>(k, 0), out(k, 0));
        });
    }
};

template <class B, class T>
struct SwiGlu {
    static constexpr Family kFamily{"swiglu", "swiglu"};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
            B::swiglu(B::place(k), n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class B, class T>
struct SwiGluBackward {  // d_y, gate, up -> d_gate, d_up
    static constexpr Family kFamily{"swiglu_backward", "swiglu_backward"};
    using Types = std::tuple<T, T>(T, T, T);
    static bool serves(const KernelContext& c) { return c.op.in.size() == 3; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.out(0)), again = c.op.out.size() > 2](const KernelArgs& k) {
            B::swiglu_backward(B::place(k), n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out<T>(k, 1),
                               again ? out<T>(k, 2) : nullptr);
        });
    }
};
template <class B, class T>
struct SwiGluBackwardAgain : SwiGluBackward<B, T> {  // and y
    using Types = std::tuple<T, T, T>(T, T, T);
};
// Gate and up of a row are one behind the other.
template <class B, class T>
struct SwiGluPacked {
    static constexpr Family kFamily{"swiglu", "swiglu"};
    using Types = T(T);
    static bool serves(const KernelContext& c) { return c.op.in.size() == 1; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([y = rows_of(c, c.out(0))](const KernelArgs& k) {
            B::swiglu_packed(B::place(k), y.rows, y.n, in<T>(k, 0), out<T>(k, 0));
        });
    }
};
template <class B, class T>
struct SwiGluPackedBackward {  // d_y, both -> d_both
    static constexpr Family kFamily{"swiglu_backward", "swiglu_backward"};
    using Types = T(T, T);
    static bool serves(const KernelContext& c) { return c.op.in.size() == 2; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([y = rows_of(c, c.in(0)), again = c.op.out.size() > 1](const KernelArgs& k) {
            B::swiglu_packed_backward(B::place(k), y.rows, y.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0),
                                      again ? out<T>(k, 1) : nullptr);
        });
    }
};
template <class B, class T>
struct SwiGluPackedBackwardAgain : SwiGluPackedBackward<B, T> {  // and y
    using Types = std::tuple<T, T>(T, T);
};

template <class B, class S, class T>
struct Gather {
    static constexpr Family kFamily{"gather", "gather"};
    using Types = S(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [table = rows_of(c, c.in(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
                B::embedding(B::place(k), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out<S>(k, 0));
            });
    }
};
template <class B, class T>
struct Scatter {
    static constexpr Family kFamily{"scatter", "scatter", 0};
    using Types = float(T, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([table = rows_of(c, c.out(0)), tokens = c.elements(c.in(1)), first = c.first_index(c.out(0), 0),
                            adds = c.op.accumulates(0)](const KernelArgs& k) {
            B::embedding_backward(B::place(k), tokens, table.n, ids(k, 1), first, table.rows, in<T>(k, 0), out(k, 0),
                                  adds && !k.fresh);
        });
    }
};

}  // namespace lockstep::kernels::registry
