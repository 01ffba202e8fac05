// The CPU backend as the compiler and the executor see it: which op runs on which of this folder's functions.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/kernel.h"
#include "kernels/step_control.h"
#include "ops/rope.h"

namespace lockstep::kernels {
namespace {

using Made = std::unique_ptr<Kernel>;

const float* in(const KernelArgs& a, int i) { return static_cast<const float*>(a.in[i]); }
const int32_t* ids(const KernelArgs& a, int i) { return static_cast<const int32_t*>(a.in[i]); }
float* out(const KernelArgs& a, int i) { return static_cast<float*>(a.out[i]); }

// Product of the sizes of all dims but the last, and the last.
struct RowsOf {
    int64_t rows, n;
};
RowsOf rows_of(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Tensor& t) {
    const int64_t n = ir::local_size(mesh, r, t, static_cast<int>(t.dims.size()) - 1);
    return {ir::local_elements(mesh, r, t) / n, n};
}
RowsOf rows_of(const KernelContext& c, const ir::Tensor& t) { return rows_of(c.mesh, c.routine, t); }

cpu::MatmulShape matmul_shape(const ops::MatmulShape& s) {
    cpu::MatmulShape m;
    m.m = s.m, m.n = s.n, m.k = s.k;
    m.transpose_a = s.a_transposed ? cpu::Transpose::yes : cpu::Transpose::no;
    m.transpose_b = s.b_transposed ? cpu::Transpose::no : cpu::Transpose::yes;
    return m;
}

Made make_matmul(const KernelContext& c) {
    ops::MatmulShape shape;
    ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.matmul: not a product of matrices");
    return kernel_from([matmul = cpu::Matmul(matmul_shape(shape), c.threads), a = shape.swapped ? 1 : 0,
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        matmul.run(k.pool, in(k, a), in(k, 1 - a), out(k, 0), adds && !k.fresh, k.workspace);
    });
}

Made make_add(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0)), terms = static_cast<int>(c.op.in.size())](const KernelArgs& k) {
        std::array<const float*, 64> inputs;
        for (int i = 0; i < terms; ++i) inputs[static_cast<size_t>(i)] = in(k, i);
        cpu::add(k.pool, n, inputs.data(), terms, out(k, 0));
    });
}

Made make_scale(const KernelContext& c) {
    return kernel_from([n = c.elements(c.out(0)), f = static_cast<float>(c.op.number("c"))](const KernelArgs& k) {
        cpu::scale(k.pool, n, in(k, 0), f, out(k, 0));
    });
}

Made make_swiglu(const KernelContext& c) {
    return kernel_from(
        [n = c.elements(c.out(0))](const KernelArgs& k) { cpu::swiglu(k.pool, n, in(k, 0), in(k, 1), out(k, 0)); });
}

Made make_swiglu_backward(const KernelContext& c) {  // d_y, gate, up -> d_gate, d_up
    return kernel_from([n = c.elements(c.out(0))](const KernelArgs& k) {
        cpu::swiglu_backward(k.pool, n, in(k, 0), in(k, 1), in(k, 2), out(k, 0), out(k, 1));
    });
}

Made make_rmsnorm(const KernelContext& c) {
    return kernel_from([z = rows_of(c, c.in(0)), eps = static_cast<float>(c.op.number("eps"))](const KernelArgs& k) {
        cpu::rms_norm(k.pool, z.rows, z.n, in(k, 0), in(k, 1), eps, out(k, 0), out(k, 1));
    });
}

Made make_rmsnorm_backward(const KernelContext& c) {  // d_y, x, w, rstd -> d_x, d_w
    return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
        cpu::rms_norm_backward(k.pool, z.rows, z.n, in(k, 0), in(k, 1), in(k, 2), in(k, 3), out(k, 0), out(k, 1),
                               adds && !k.fresh, k.workspace);
    });
}

Made make_rope(const KernelContext& c) {
    const RowsOf z = rows_of(c, c.in(0));
    const int64_t tokens = c.elements(c.in(1));
    return kernel_from([=, frequencies = ops::rope_frequencies(c.op, z.n),
                        sign = static_cast<float>(c.op.integer("sign"))](const KernelArgs& k) {
        cpu::rope(k.pool, tokens, z.rows / tokens, z.n, in(k, 0), ids(k, 1), frequencies.data(), sign, out(k, 0));
    });
}

Made make_gather(const KernelContext& c) {
    const RowsOf table = rows_of(c, c.in(0));
    return kernel_from([table, tokens = c.elements(c.in(1)), first = c.first_index(c.in(0), 0)](const KernelArgs& k) {
        cpu::embedding(k.pool, tokens, table.n, ids(k, 1), first, table.rows, in(k, 0), out(k, 0));
    });
}

Made make_scatter(const KernelContext& c) {
    const RowsOf table = rows_of(c, c.out(0));
    return kernel_from([table, tokens = c.elements(c.in(1)), first = c.first_index(c.out(0), 0),
                        adds = c.op.accumulates(0)](const KernelArgs& k) {
        cpu::embedding_backward(k.pool, tokens, table.n, ids(k, 1), first, table.rows, in(k, 0), out(k, 0), adds && !k.fresh);
    });
}

cpu::AttentionShape attention_shape(const mesh::Mesh& mesh, const ir::Routine& r, const ir::Op& op) {
    const bool forward = op.kind == "attention";
    const ir::Tensor &q = r.tensors[op.in[forward ? 0 : 1]], &k = r.tensors[op.in[forward ? 1 : 2]];
    const auto size = [&](const ir::Tensor& t, int i) { return ir::local_size(mesh, r, t, i); };
    return {size(q, 0), size(q, 1), size(k, 1), size(q, 2), size(q, 3), size(q, 4), static_cast<float>(op.number("scale"))};
}

Made make_attention(const KernelContext& c) {
    const cpu::AttentionShape shape = attention_shape(c.mesh, c.routine, c.op);
    if (c.op.kind == "attention") {
        return kernel_from([shape](const KernelArgs& k) {
            cpu::attention(k.pool, shape, {ids(k, 3), ids(k, 4), ids(k, 5), ids(k, 6)}, in(k, 0), in(k, 1), in(k, 2), out(k, 0),
                           out(k, 1), k.workspace);
        });
    }
    return kernel_from([shape](const KernelArgs& k) {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse
        cpu::attention_backward(k.pool, shape, {ids(k, 4), ids(k, 5), ids(k, 6), ids(k, 7)}, in(k, 1), in(k, 2), in(k, 3),
                                in(k, 8), in(k, 9), in(k, 0), out(k, 0), out(k, 1), out(k, 2), k.workspace);
    });
}

Made make_max(const KernelContext& c) {
    return kernel_from(
        [z = rows_of(c, c.in(0))](const KernelArgs& k) { cpu::row_max(k.pool, z.rows, z.n, in(k, 0), out(k, 0)); });
}

// In place only: the padded columns of the logits are overwritten where they stand.
Made make_mask_padding(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int last = static_cast<int>(x.dims.size()) - 1;
    const RowsOf z = rows_of(c, x);
    const int64_t valid = std::clamp<int64_t>(c.routine.dims[x.dims[last]].valid - c.first_index(x, last), 0, z.n);
    return kernel_from([=, fill = static_cast<float>(c.op.number("fill")), n = c.elements(x)](const KernelArgs& k) {
        const float* source = in(k, 0);
        if (source != out(k, 0)) cpu::add(k.pool, n, &source, 1, out(k, 0));
        if (valid == z.n) return;
        if (fill == 0) {
            for (int64_t r = 0; r < z.rows; ++r) std::fill(out(k, 0) + r * z.n + valid, out(k, 0) + (r + 1) * z.n, 0.0f);
        } else {
            cpu::mask_columns(k.pool, z.rows, z.n, valid, out(k, 0));
        }
    });
}

Made make_cross_entropy(const KernelContext& c) {
    const bool forward = c.op.kind == "cross_entropy";
    const ir::Tensor& logits = c.in(forward ? 0 : 2);
    const RowsOf z = rows_of(c, logits);
    const int64_t first = c.first_index(logits, static_cast<int>(logits.dims.size()) - 1);
    if (forward) {
        return kernel_from([=](const KernelArgs& k) {
            cpu::cross_entropy(k.pool, z.rows, z.n, in(k, 0), in(k, 1), ids(k, 2), first, out(k, 0), out(k, 1));
        });
    }
    return kernel_from([=](const KernelArgs& k) {  // d_z, d_t, logits, m, targets -> d_logits
        cpu::cross_entropy_backward(k.pool, z.rows, z.n, in(k, 0), in(k, 1), in(k, 2), in(k, 3), ids(k, 4), first, out(k, 0));
    });
}

Made make_adamw(const KernelContext& c) {
    cpu::AdamWStep step;
    step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps"),
    step.weight_decay = c.op.number("weight_decay");
    return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
        const StepControl s = StepControl::read(static_cast<const double*>(k.in[4]));
        cpu::AdamWStep now = step;
        now.lr = s.lr, now.bias_correction1 = s.bias_correction1, now.bias_correction2 = s.bias_correction2;
        now.grad_scale = static_cast<float>(s.clip), now.commit = s.commit ? 1 : 0;
        const float* own = in(k, 0);
        if (own != out(k, 0)) cpu::add(k.pool, n, &own, 1, out(k, 0));
        cpu::adamw(k.pool, n, now, in(k, 1), out(k, 0), out(k, 1), out(k, 2));
    });
}

Made make_sum_squares(const KernelContext& c) {
    const auto& axes = std::get<std::vector<int64_t>>(c.op.attrs.at("count_if"));
    const bool owner =
        std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return c.mesh.coordinate(c.rank, static_cast<int>(a)) == 0; });
    return kernel_from([n = c.elements(c.in(0)), owner, adds = c.op.accumulates(0)](const KernelArgs& k) {
        const double sum = owner ? cpu::sum_of_squares(k.pool, n, in(k, 0), k.workspace).sum : 0;
        double& total = *static_cast<double*>(k.out[0]);
        total = adds && !k.fresh ? total + sum : sum;
    });
}

struct Entry {
    const char *op, *kernel;
    Made (*make)(const KernelContext&);
    int accumulates;  // KernelEntry's
    bool in_place;
};
constexpr Entry kEntries[] = {
    {"einsum", "cpu.matmul", make_matmul, 0, false},
    {"add", "cpu.add", make_add, -1, true},
    {"scale", "cpu.scale", make_scale, -1, true},
    {"swiglu", "cpu.swiglu", make_swiglu, -1, false},
    {"swiglu_backward", "cpu.swiglu_backward", make_swiglu_backward, -1, false},
    {"rmsnorm", "cpu.rmsnorm", make_rmsnorm, -1, false},
    {"rmsnorm_backward", "cpu.rmsnorm_backward", make_rmsnorm_backward, 1, false},
    {"rope", "cpu.rope", make_rope, -1, true},
    {"gather", "cpu.gather", make_gather, -1, false},
    {"scatter", "cpu.scatter", make_scatter, 0, false},
    {"attention", "cpu.attention", make_attention, -1, false},
    {"attention_backward", "cpu.attention_backward", make_attention, -1, false},
    {"max", "cpu.max", make_max, -1, false},
    {"mask_padding", "cpu.mask_padding", make_mask_padding, -1, true},
    {"cross_entropy", "cpu.cross_entropy", make_cross_entropy, -1, false},
    {"cross_entropy_backward", "cpu.cross_entropy_backward", make_cross_entropy, -1, false},
    {"adamw", "cpu.adamw", make_adamw, -1, false},
    {"sum_squares", "cpu.sum_squares", make_sum_squares, 0, false},
};

}  // namespace

ops::KernelCatalog cpu_catalog(int threads) {
    ops::KernelCatalog catalog{"cpu", {}};
    for (const Entry& e : kEntries) {
        const std::string op = e.op;
        ops::KernelEntry entry{op, op == "sum_squares" ? Dtype::F64 : Dtype::F32, e.kernel, e.accumulates, e.in_place, {}, {}};
        if (op == "einsum") {
            entry.serves = [](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                ops::MatmulShape shape;
                return ops::is_matmul(m, r, o, &shape);
            };
            entry.workspace_bytes = [threads](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                ops::MatmulShape shape;
                ops::is_matmul(m, r, o, &shape);
                return cpu::Matmul(matmul_shape(shape), threads).workspace_bytes();
            };
        }
        if (op == "attention" || op == "attention_backward") {
            entry.workspace_bytes = [threads](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                const cpu::AttentionShape shape = attention_shape(m, r, o);
                return o.kind == "attention" ? cpu::attention_workspace_bytes(shape, threads)
                                             : cpu::attention_backward_workspace_bytes(shape, threads);
            };
        }
        if (op == "rmsnorm_backward") {
            entry.workspace_bytes = [threads](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                return cpu::rms_norm_backward_workspace_bytes(rows_of(m, r, r.tensors[o.in[1]]).n, threads);
            };
        }
        if (op == "sum_squares") {
            entry.serves = [](const mesh::Mesh&, const ir::Routine& r, const ir::Op& o) {
                return r.tensors[o.in[0]].dtype == Dtype::F32;
            };
            entry.workspace_bytes = [](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                return cpu::sum_of_squares_workspace_bytes(ir::local_elements(m, r, r.tensors[o.in[0]]));
            };
        }
        catalog.entries.push_back(std::move(entry));
    }
    for (ops::KernelEntry& e : reference_catalog().entries) catalog.entries.push_back(std::move(e));
    return catalog;
}

std::unique_ptr<Kernel> make_cpu_kernel(const KernelContext& c) {
    for (const Entry& e : kEntries) {
        if (c.op.kernel == e.kernel && c.op.kind == e.op) return e.make(c);
    }
    return nullptr;
}

}  // namespace lockstep::kernels
