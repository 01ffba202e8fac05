// Float8: scales, conversions, and products of matrices.
#pragma once

#include <bit>
#include <cstring>
#include <vector>

#include "base/round.h"
#include "kernels/cpu/float8_runs.h"
#include "kernels/cpu/registry/products.h"
#include "kernels/cpu/scaled_matmul.h"
#include "kernels/float8_groups.h"
#include "kernels/member_ranges.h"

namespace lockstep::kernels::registry {

// Calls f(group, first, count) for the elements of `all`, a run at a time: of one scale, or of groups.columns() that are next to
// each other.
template <class F>
void for_each_run(const Float8Groups& groups, Range all, const F& f) {
    const int64_t columns = groups.columns(), run = columns > 1 ? columns : groups.run();
    // Of a row in several runs the place of its first scale is looked for, and the others are counted from there.
    const Float8Groups::Along row = groups.dims.empty() ? Float8Groups::Along{1, 1, 0} : groups.dims.back();
    const int64_t size = columns == 1 && run < row.size ? row.size : run;
    for (int64_t i = all.begin; i < all.end;) {
        const int64_t row_begin = i / size * size, row_end = std::min(all.end, row_begin + size);
        if (size == run) {
            f(groups.of(i), i, row_end - i);
            i = row_end;
            continue;
        }
        int64_t group = groups.of(i);
        for (; i < row_end; group += row.stride) {
            const int64_t end = std::min(row_end, row_begin + ((i - row_begin) / run + 1) * run);
            f(group, i, end - i);
            i = end;
        }
    }
}

template <class T>
struct Amax {
    static constexpr Family kFamily{"amax", "amax"};
    using Types = float(T);
    // Of each thread the largest sizes that it has found, as bits.
    static int64_t workspace_bytes(const KernelContext& c) { return c.threads * c.elements(c.out(0)) * 4; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        struct Operand {
            Float8Groups groups;
            int64_t n;
        };
        std::vector<Operand> operands;
        for (size_t i = 0; i < c.op.in.size(); ++i)
            operands.push_back({float8_groups(c, c.in(i), c.out(0)), c.elements(c.in(i))});
        return kernel_from([operands, scales = c.elements(c.out(0))](const KernelArgs& k) {
            auto* const found = static_cast<uint32_t*>(k.workspace);
            k.queue.pool().parallel([&](int thread, int threads) {
                uint32_t* const own = found + thread * scales;
                std::fill_n(own, scales, 0u);
                for (size_t i = 0; i < operands.size(); ++i) {
                    const Float8Groups& groups = operands[i].groups;
                    const T* const x = in<T>(k, static_cast<int>(i));
                    const Range mine = split(operands[i].n, threads, thread, 16);
                    for_each_run(groups, mine, [&, has_columns = groups.columns() > 1](int64_t g, int64_t first, int64_t count) {
                        if (has_columns) cpu::largest_of_columns(1, count, count, x + first, own + g);
                        else own[g] = std::max(own[g], cpu::largest_size(count, x + first));
                    });
                }
            });
            k.queue.pool().parallel([&](int thread, int threads) {
                const Range mine = split(scales, threads, thread, 16);
                for (int64_t g = mine.begin; g < mine.end; ++g) {
                    uint32_t most = 0;
                    for (int t = 0; t < threads; ++t) most = std::max(most, found[t * scales + g]);
                    out(k, 0)[g] = std::bit_cast<float>(most);
                }
            });
        });
    }
};

template <class T, class Q>
struct ToFloat8 {
    static constexpr Family kFamily{"to_float8", "to_float8"};
    using Types = std::tuple<Q, float>(T, float);
    // Of columns, what they are multiplied by.
    static int64_t workspace_bytes(const KernelContext& c) {
        return float8_groups(c, c.in(0), c.in(1)).columns() > 1 ? 4 * c.elements(c.in(1)) : 0;
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const Float8Groups groups = float8_groups(c, c.in(0), c.in(1));
        const bool power_of_two = rounds_to_power_of_two(c.op);
        return kernel_from(
            [groups, has_columns = groups.columns() > 1, power_of_two, n = c.elements(c.in(0))](const KernelArgs& k) {
                const T* const x = in<T>(k, 0);
                const float* const amax = in(k, 1);
                float* const scales = has_columns ? static_cast<float*>(k.workspace) : nullptr;
                Q* const q = out<Q>(k, 0);
                const auto scale = [&](int64_t g) { return scale_of(amax[g], Q::kLargest, power_of_two); };
                k.queue.pool().parallel([&](int thread, int threads) {
                    const Range mine = split(groups.count, threads, thread, 16);
                    for (int64_t g = mine.begin; g < mine.end; ++g) {
                        out(k, 1)[g] = 1 / scale(g);
                        if (has_columns) scales[g] = scale(g);
                    }
                });
                k.queue.pool().parallel([&](int thread, int threads) {
                    for_each_run(groups, split(n, threads, thread, 16), [&](int64_t g, int64_t first, int64_t count) {
                        if (has_columns) cpu::columns_to_float8(1, count, count, count, x + first, scales + g, q + first);
                        else cpu::run_to_float8(count, x + first, scale(g), q + first);
                    });
                });
            });
    }
};

// S: the type of the scales, E8M0 or float.
template <class T, class Q, class S>
struct ToBlocks {
    static constexpr Family kFamily{"to_blocks", "to_blocks"};
    using Types = std::tuple<Q, S>(T);

    // The scales of blocks with these largest sizes, and what their values are multiplied by.
    static void scale(int64_t n, const uint32_t* most, BlockRounding rounding, S* s, float* by) {
        if constexpr (std::is_same_v<S, E8M0>) cpu::block_scales(n, most, Q::kLargest, rounding, s, by);
        else cpu::float_scales(n, most, Q::kLargest, s, by);
    }
    static void of_neighbours(Range blocks, int64_t block, BlockRounding rounding, const T* x, Q* q, S* s) {
        constexpr int64_t kMost = 64;
        uint32_t most[kMost];
        float by[kMost];
        const int64_t together = std::clamp<int64_t>(2048 / block, 1, kMost);  // read twice, the second time from the cache
        for (int64_t b = blocks.begin; b < blocks.end; b += together) {
            const int64_t count = std::min(together, blocks.end - b);
            cpu::largest_of_blocks(count, block, x + b * block, most);
            scale(count, most, rounding, s + b, by);
            cpu::blocks_to_float8(count, block, x + b * block, by, q + b * block);
        }
    }
    // Of `block` rows of `stride` elements, these columns.
    static void of_rows(int64_t block, Range columns, int64_t stride, BlockRounding rounding, const T* x, Q* q, S* s) {
        constexpr int64_t kMost = 4096;  // whole rows: memory is read in its order
        uint32_t most[kMost];
        float by[kMost];
        for (int64_t i = columns.begin; i < columns.end; i += kMost) {
            const int64_t count = std::min(kMost, columns.end - i);
            std::fill_n(most, count, 0u);
            cpu::largest_of_columns(block, count, stride, x + i, most);
            scale(count, most, rounding, s + i, by);
            const int64_t next = i + count < columns.end ? count : block * stride - (i - columns.begin);
            cpu::columns_to_float8(block, count, stride, next, x + i, by, q + i);
        }
    }

    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const std::vector<ir::DimId>& dims = c.in(0).dims;
        const auto along = std::find(dims.begin(), dims.end(), c.routine.dim(c.op.text("along")));
        int64_t inner = 1;
        for (auto d = along + 1; d != dims.end(); ++d) inner *= c.size(c.in(0), static_cast<int>(d - dims.begin()));
        const int64_t blocks = c.elements(c.out(1)) / inner, block = c.op.integer("block");
        const BlockRounding rounding = block_rounding(c.op).value_or(BlockRounding::floor);
        return kernel_from([=](const KernelArgs& k) {
            const T* const x = in<T>(k, 0);
            Q* const q = out<Q>(k, 0);
            S* const s = out<S>(k, 1);
            k.queue.pool().parallel([&](int thread, int threads) {
                if (inner == 1) return of_neighbours(split(blocks, threads, thread, 64), block, rounding, x, q, s);
                const Range mine = split(blocks * inner, threads, thread, 64);  // columns, those of one block first
                for (int64_t i = mine.begin; i < mine.end;) {
                    const int64_t b = i / inner, end = std::min(mine.end, (b + 1) * inner);
                    of_rows(block, {i - b * inner, end - b * inner}, inner, rounding, x + b * block * inner,
                            q + b * block * inner, s + b * inner);
                    i = end;
                }
            });
        });
    }
};

template <class T, class Q>
struct FromFloat8 {
    static constexpr Family kFamily{"from_float8", "from_float8"};
    using Types = T(Q, float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const Float8Groups groups = float8_groups(c, c.in(0), c.in(1));
        return kernel_from([groups, has_columns = groups.columns() > 1, n = c.elements(c.in(0))](const KernelArgs& k) {
            const Q* const q = in<Q>(k, 0);
            const float* const s = in(k, 1);
            T* const x = out<T>(k, 0);
            k.queue.pool().parallel([&](int thread, int threads) {
                for_each_run(groups, split(n, threads, thread, 16), [&](int64_t g, int64_t first, int64_t count) {
                    if (has_columns) cpu::columns_from_float8(count, q + first, s + g, x + first);
                    else cpu::run_from_float8(count, q + first, s[g], x + first);
                });
            });
        });
    }
};

struct Float8Scale {
    static constexpr Family kFamily{"float8_scale", "float8_scale"};
    using Types = float(float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), largest = largest_of(dtype_from(c.op.text("type")).value()),
                            power_of_two = rounds_to_power_of_two(c.op)](const KernelArgs& k) {
            for (int64_t i = 0; i < n; ++i) out(k, 0)[i] = 1 / scale_of(in(k, 0)[i], largest, power_of_two);
        });
    }
};

template <class T>
struct MemberAmax {
    static constexpr Family kFamily{"member_amax", "member_amax"};
    using Types = float(T);
    static int64_t workspace_bytes(const KernelContext& c) { return c.threads * 4; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const auto segment = [&](int64_t i) -> const ir::Tensor& { return c.in(static_cast<size_t>(i)); };
        return kernel_from([ranges = member_ranges(c, segment), op = c.op](const KernelArgs& k) {
            auto* const found = static_cast<uint32_t*>(k.workspace);
            int64_t made = 1;
            k.queue.pool().parallel([&](int thread, int threads) {
                uint32_t most = 0;
                for (const MemberRange& r : ranges) {
                    const Range mine = split(r.end - r.begin, threads, thread, 16);
                    const T* const x = in<T>(k, static_cast<int>(r.which)) + r.begin;
                    most = std::max(most, cpu::largest_size(mine.end - mine.begin, x + mine.begin));
                }
                found[thread] = most;
                if (thread == 0) made = threads;
            });
            const uint32_t most = *std::max_element(found, found + made);
            *out(k, 0) = static_cast<float>(rounded_as(op, std::bit_cast<float>(most)));
        });
    }
};

template <class T>
struct MemberFloat8 {
    static constexpr Family kFamily{"member_float8", "member_float8"};
    using Types = F8E4M3(T, float);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const auto segment = [&](int64_t) -> const ir::Tensor& { return c.in(0); };
        return kernel_from([ranges = member_ranges(c, segment), n = c.elements(c.in(0)),
                            power_of_two = rounds_to_power_of_two(c.op)](const KernelArgs& k) {
            const T* const x = in<T>(k, 0);
            F8E4M3* const q = out<F8E4M3>(k, 0);
            k.queue.pool().parallel([&](int thread, int threads) {
                const Range mine = split(n, threads, thread, 64);
                int64_t at = mine.begin;
                const auto clear = [&](int64_t end) {
                    if (end > at) std::memset(static_cast<void*>(q + at), 0, static_cast<size_t>(end - at));
                };
                for (const MemberRange& r : ranges) {
                    const int64_t begin = std::max(r.begin, mine.begin), end = std::min(r.end, mine.end);
                    if (begin >= end) continue;
                    clear(begin);
                    const float scale = scale_of(*in(k, static_cast<int>(r.which) + 1), F8E4M3::kLargest, power_of_two);
                    cpu::run_to_float8(end - begin, x + begin, scale, q + begin);
                    at = end;
                }
                clear(mine.end);
            });
        });
    }
};

// The scales of a factor along its own dims of the result, and along those that are contracted.
inline cpu::ScaledFactor scaled_factor(const KernelContext& c, size_t operand) {
    const ir::Tensor& q = c.in(operand);
    const Float8Groups groups = float8_groups(c, q, c.in(operand + 2));
    const std::vector<ir::DimId>& kept = c.out(0).dims;
    cpu::ScaledFactor out{q.dtype, {0}, {0}, c.in(operand + 2).dtype == Dtype::E8M0};
    for (size_t i = 0; i < q.dims.size(); ++i) {
        const Float8Groups::Along& d = groups.dims[i];
        const bool is_kept = std::find(kept.begin(), kept.end(), q.dims[i]) != kept.end();
        std::vector<int64_t>& all = is_kept ? out.outer : out.inner;
        std::vector<int64_t> next;
        for (const int64_t before : all) {
            for (int64_t k = 0; k < d.size; ++k) next.push_back(before + k / d.each * d.stride);
        }
        all = std::move(next);
    }
    return out;
}

// Elements of scales as floats: where they are none, a copy in the workspace.
template <class S>
int64_t float_bytes(const KernelContext& c, size_t operand) {
    return std::is_same_v<S, float> ? 0 : round_up(4 * c.elements(c.in(operand)), kAlignmentBytes);
}
template <class S>
const float* as_floats(ThreadPool& pool, int64_t n, const S* s, void* workspace) {
    if constexpr (std::is_same_v<S, float>) {
        return s;
    } else {
        float* const to = static_cast<float*>(workspace);
        pool.parallel([&](int thread, int threads) {
            const Range mine = split(n, threads, thread, 16);
            for (int64_t i = mine.begin; i < mine.end; ++i) to[i] = static_cast<float>(s[i]);
        });
        return to;
    }
}

// S: the type of the scales of both factors, float or E8M0.
template <class A, class B, class S, class Out, cpu::MatmulKernel kernel>
struct ScaledEinsum {
    using Types = Out(A, B, S, S);
    static constexpr Family kFamily{"scaled_einsum",
                                    kernel == cpu::MatmulKernel::amx        ? "scaled_matmul_amx"
                                    : kernel == cpu::MatmulKernel::bf16_dot ? "scaled_matmul_bf16"
                                                                            : "scaled_matmul",
                                    std::is_same_v<Out, float> ? 0 : -1};
    static bool serves(const KernelContext& c) {
        ops::MatmulShape shape;
        return ops::is_matmul(c.mesh, c.routine, c.op, &shape);
    }
    static cpu::ScaledMatmul product(const KernelContext& c, const ops::MatmulShape& s) {
        const size_t a = s.swapped ? 1 : 0, b = 1 - a;
        const auto result = std::is_same_v<Out, float> ? cpu::Matmul::Result::f32 : cpu::Matmul::Result::narrow;
        return {matmul_shape(s), scaled_factor(c, a), scaled_factor(c, b), c.threads, kernel, result};
    }
    static int64_t workspace_bytes(const KernelContext& c) {
        ops::MatmulShape shape;
        ops::is_matmul(c.mesh, c.routine, c.op, &shape);
        return float_bytes<S>(c, 2) + float_bytes<S>(c, 3) + product(c, shape).workspace_bytes();
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        ops::MatmulShape shape;
        ensure(ops::is_matmul(c.mesh, c.routine, c.op, &shape), "cpu.scaled_matmul: not a product of matrices");
        struct Scales {
            int64_t n, bytes;
        };
        const auto scales = [&](size_t i) { return Scales{c.elements(c.in(i)), float_bytes<S>(c, i)}; };
        return kernel_from([matmul = product(c, shape), a = shape.swapped ? 1 : 0, first = scales(2), second = scales(3),
                            adds = c.op.accumulates(0)](const KernelArgs& k) {
            const float* before = nullptr;
            if constexpr (std::is_same_v<Out, float>) before = adds && !k.fresh ? out<Out>(k, 0) : nullptr;
            char* const at = static_cast<char*>(k.workspace);
            ThreadPool& pool = k.queue.pool();
            const float* const s[] = {as_floats(pool, first.n, in<S>(k, 2), at),
                                      as_floats(pool, second.n, in<S>(k, 3), at + first.bytes)};
            matmul.run(pool, k.in[a], k.in[1 - a], s[a], s[1 - a], out<Out>(k, 0), before, at + first.bytes + second.bytes);
        });
    }
    static bool is_available(const InstructionSets& has) { return Matmul<Bf16, float, kernel>::is_available(has); }
    static bool is_slower(const InstructionSets& has) { return Matmul<Bf16, float, kernel>::is_slower(has); }
};

}  // namespace lockstep::kernels::registry
