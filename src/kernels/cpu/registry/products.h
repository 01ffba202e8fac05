// Products of matrices: einsum and addmm by each of the matmul kernels, and queries, keys and values with their rotation.
#pragma once

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/qkv_rope.h"
#include "kernels/registry/registry.h"
#include "ops/rope.h"

namespace lockstep::kernels::registry {

template <class Out>
inline constexpr auto kResultOf = std::is_same_v<Out, float> ? cpu::Matmul::Result::f32 : cpu::Matmul::Result::narrow;

inline cpu::MatmulShape matmul_shape(const ops::MatmulShape& s) {
    cpu::MatmulShape m;
    m.m = s.m, m.n = s.n, m.k = s.k;
    m.transpose_a = s.a_transposed ? cpu::Transpose::yes : cpu::Transpose::no;
    m.transpose_b = s.b_transposed ? cpu::Transpose::no : cpu::Transpose::yes;
    return m;
}

// einsum, or addmm, whose first operand is added to.
template <class In, class Out, cpu::MatmulKernel kernel>
struct Matmul {
    static bool serves(const KernelContext& c) {
        ops::MatmulShape shape;
        return ops::is_matmul(c.mesh, c.routine, c.op, &shape);
    }
    static int64_t workspace_bytes(const KernelContext& c) {
        ops::MatmulShape shape;
        ops::is_matmul(c.mesh, c.routine, c.op, &shape);
        return cpu::Matmul(matmul_shape(shape), c.threads, kernel, kResultOf<Out>).workspace_bytes();
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        ops::MatmulShape shape;
        ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.matmul: not a product of matrices");
        const int first = c.op.kind == "addmm" ? 1 : 0;
        return kernel_from([matmul = cpu::Matmul(matmul_shape(shape), c.threads, kernel, kResultOf<Out>), first,
                            swapped = shape.swapped, adds = c.op.accumulates(0)](const KernelArgs& k) {
            const Out* before = adds && !k.fresh ? out<Out>(k, 0) : nullptr;
            if (first == 1) before = in<Out>(k, 0);
            matmul.run(k.queue.pool(), in<In>(k, first + (swapped ? 1 : 0)), in<In>(k, first + (swapped ? 0 : 1)), out<Out>(k, 0),
                       before, k.workspace);
        });
    }
    static bool is_available(const InstructionSets& has) {
        if (kernel == cpu::MatmulKernel::onednn) return has.onednn;
        return kernel == cpu::MatmulKernel::amx ? has.amx : kernel != cpu::MatmulKernel::bf16_dot || has.bf16_dot;
    }
    static bool is_slower(const InstructionSets& has) { return kernel == cpu::MatmulKernel::bf16_dot && !has.fast_bf16_dot; }

    static constexpr const char* kName = kernel == cpu::MatmulKernel::amx        ? "matmul_amx"
                                         : kernel == cpu::MatmulKernel::bf16_dot ? "matmul_bf16"
                                         : kernel == cpu::MatmulKernel::onednn   ? "matmul_onednn"
                                                                                 : "matmul";
};
template <class In, class Out, cpu::MatmulKernel kernel = cpu::MatmulKernel::packed>
struct Einsum : Matmul<In, Out, kernel> {
    static constexpr Family kFamily{"einsum", Matmul<In, Out, kernel>::kName, std::is_same_v<Out, float> ? 0 : -1};
    using Types = Out(In, In);
};
template <class In, cpu::MatmulKernel kernel = cpu::MatmulKernel::packed>
struct Addmm : Matmul<In, float, kernel> {
    static constexpr Family kFamily{"addmm", Matmul<In, float, kernel>::kName, -1, true};
    using Types = float(float, In, In);
};

template <class T>
struct QkvRope {  // x, w, pos -> q, k, v
    static constexpr Family kFamily{"qkv_rope", "qkv_rope"};
    using Types = std::tuple<T, T, T>(T, T, int32_t);
    static cpu::QkvRope shape_of(const KernelContext& c) {
        cpu::QkvRope shape;
        const RowsOf x = rows_of(c, c.in(0));
        shape.hidden = x.n, shape.tokens = x.rows, shape.head_dim = rows_of(c, c.out(1)).n;
        for (size_t i = 0; i < 3; ++i) shape.n[i] = c.elements(c.out(i)) / shape.tokens;
        shape.threads = c.threads;
        shape.result = kResultOf<T>;
        return shape;
    }
    // It multiplies floats: its parts are faster where there are products of bfloat16.
    static bool is_available(const InstructionSets& has) { return !(std::is_same_v<T, Bf16> && has.has_fast_bf16()); }
    static bool serves(const KernelContext& c) { return shape_of(c).is_worthwhile(); }
    static int64_t workspace_bytes(const KernelContext& c) { return shape_of(c).workspace_bytes(); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const cpu::QkvRope shape = shape_of(c);
        return kernel_from([shape, frequencies = ops::rope_frequencies(c.op, shape.head_dim),
                            sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
            shape.run<T>(k.queue.pool(), in<T>(k, 0), in<T>(k, 1), ids(k, 2), frequencies.data(), sign,
                         {out<T>(k, 0), out<T>(k, 1), out<T>(k, 2)}, k.workspace);
        });
    }
};

}  // namespace lockstep::kernels::registry
