// Which ops of float8 the kernels of float8.h serve.
#pragma once

#include "kernels/float8_groups.h"
#include "kernels/gpu/float8.h"
#include "kernels/gpu/movement.h"
#include "kernels/member_ranges.h"
#include "kernels/registry/registry.h"

namespace lockstep::kernels::gpu::float8 {

using namespace registry;
using Made = std::unique_ptr<Kernel>;

inline Stream stream_of(const KernelArgs& k) { return k.queue.handle(); }

inline Grouping grouping(const KernelContext& c, const ir::Tensor& whole, const ir::Tensor& scale) {
    Float8Groups groups = float8_groups(c, whole, scale);
    Grouping out;
    out.columns = groups.columns(), out.count = groups.count;
    for (int64_t n = 1; n < out.columns; groups.dims.pop_back()) n *= groups.dims.back().size;
    out.run = groups.run();
    int64_t inside = out.run;  // rows of a run that dims further out have
    for (auto d = groups.dims.rbegin(); d != groups.dims.rend(); ++d) {
        const int64_t rows = std::min(inside, std::max<int64_t>(d->size, 1));
        inside /= rows;
        const Grouping::Dim own = {d->size / rows, std::max<int64_t>(d->each / rows, 1), d->stride};
        if (own.size <= 1) continue;
        Grouping::Dim* const last = out.dims > 0 ? &out.of[out.dims - 1] : nullptr;
        if (last && last->stride == 0 && own.stride == 0) {
            last->size *= own.size, last->each = last->size;
            continue;
        }
        if (last && last->each == 1 && own.each == 1 && own.stride == last->size * last->stride) {
            last->size *= own.size;
            continue;
        }
        ensure(out.dims < Grouping::kMost, "gpu: a float8 tensor with too many dims");
        out.of[out.dims++] = own;
    }
    return out;
}
inline Grouping one_group(int64_t n) {
    Grouping out;
    out.run = n;
    return out;
}

template <class T>
struct Amax {
    static constexpr Family kFamily{"amax", "amax"};
    using Types = float(T);
    static Made make(const KernelContext& c) {
        struct Operand {
            Grouping groups;
            int64_t n;
        };
        std::vector<Operand> operands;
        for (size_t i = 0; i < c.op.in.size(); ++i) operands.push_back({grouping(c, c.in(i), c.out(0)), c.elements(c.in(i))});
        return kernel_from([operands, bytes = 4 * c.elements(c.out(0))](const KernelArgs& k) {
            fill_zero(stream_of(k), bytes, k.out[0]);
            for (size_t i = 0; i < operands.size(); ++i)
                amax(stream_of(k), operands[i].n, operands[i].groups, in<T>(k, static_cast<int>(i)), out(k, 0));
        });
    }
};

template <class T, class Q>
struct ToFloat8 {
    static constexpr Family kFamily{"to_float8", "to_float8"};
    using Types = std::tuple<Q, float>(T, float);
    static Made make(const KernelContext& c) {
        return kernel_from([groups = grouping(c, c.in(0), c.in(1)), n = c.elements(c.in(0)),
                            power_of_two = rounds_to_power_of_two(c.op)](const KernelArgs& k) {
            to_float8(stream_of(k), n, groups, power_of_two, in<T>(k, 0), in(k, 1), out<Q>(k, 0), out(k, 1));
        });
    }
};

template <class T, class Q, class S>
struct ToBlocks {
    static constexpr Family kFamily{"to_blocks", "to_blocks"};
    using Types = std::tuple<Q, S>(T);
    static Made make(const KernelContext& c) {
        const std::vector<ir::DimId>& dims = c.in(0).dims;
        const auto along = std::find(dims.begin(), dims.end(), c.routine.dim(c.op.text("along")));
        Blocks b = {0, c.op.integer("block"), 1};
        for (auto d = along + 1; d < dims.end(); ++d) b.columns *= c.size(c.in(0), static_cast<int>(d - dims.begin()));
        b.count = c.elements(c.out(1)) / b.columns;
        return kernel_from([b, rounding = block_rounding(c.op).value_or(BlockRounding::floor)](const KernelArgs& k) {
            to_blocks(stream_of(k), b, rounding, in<T>(k, 0), out<Q>(k, 0), out<S>(k, 1));
        });
    }
};

template <class T, class Q, class S>
struct FromFloat8 {
    static constexpr Family kFamily{"from_float8", "from_float8"};
    using Types = T(Q, S);
    static Made make(const KernelContext& c) {
        return kernel_from([groups = grouping(c, c.in(0), c.in(1)), n = c.elements(c.in(0))](const KernelArgs& k) {
            from_float8(stream_of(k), n, groups, in<Q>(k, 0), in<S>(k, 1), out<T>(k, 0));
        });
    }
};

// Codes as they are.
template <class T, class Q>
struct FromCodes {
    static constexpr Family kFamily{"from_float8", "from_codes"};
    using Types = T(Q);
    static Made make(const KernelContext& c) {
        const int64_t n = c.elements(c.in(0));
        return kernel_from([n](const KernelArgs& k) {
            from_float8<T, Q, float>(stream_of(k), n, one_group(n), in<Q>(k, 0), nullptr, out<T>(k, 0));
        });
    }
};

template <class T, class S>
struct ApplyScales {
    static constexpr Family kFamily{"apply_scales", "apply_scales"};
    using Types = T(float, S);
    static bool serves(const KernelContext& c) { return c.op.in.size() <= 3; }
    static Made make(const KernelContext& c) {
        const bool two = c.op.in.size() == 3;
        return kernel_from([two, n = c.elements(c.in(0)), of_a = grouping(c, c.in(0), c.in(1)),
                            of_b = two ? grouping(c, c.in(0), c.in(2)) : Grouping()](const KernelArgs& k) {
            apply_scales(stream_of(k), n, of_a, of_b, in(k, 0), in<S>(k, 1), two ? in<S>(k, 2) : nullptr, out<T>(k, 0));
        });
    }
};

struct Float8Scale {
    static constexpr Family kFamily{"float8_scale", "float8_scale"};
    using Types = float(float);
    static Made make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), largest = largest_of(dtype_from(c.op.text("type")).value()),
                            power_of_two = rounds_to_power_of_two(c.op)](const KernelArgs& k) {
            float8_scale(stream_of(k), n, largest, power_of_two, in(k, 0), out(k, 0));
        });
    }
};

template <class T>
struct MemberAmax {
    static constexpr Family kFamily{"member_amax", "member_amax"};
    using Types = float(T);
    static Made make(const KernelContext& c) {
        const auto segment = [&](int64_t i) -> const ir::Tensor& { return c.in(static_cast<size_t>(i)); };
        const Dtype rounded = c.op.attrs.contains("rounded") ? dtype_from(c.op.text("rounded")).value() : Dtype::F32;
        return kernel_from([ranges = member_ranges(c, segment), rounded](const KernelArgs& k) {
            fill_zero(stream_of(k), 4, k.out[0]);
            for (const MemberRange& r : ranges) {
                const int64_t n = r.end - r.begin;
                amax(stream_of(k), n, one_group(n), in<T>(k, static_cast<int>(r.which)) + r.begin, out(k, 0));
            }
            if (rounded != Dtype::F32) round_to(stream_of(k), rounded, out(k, 0));
        });
    }
};

template <class T>
struct MemberFloat8 {
    static constexpr Family kFamily{"member_float8", "member_float8"};
    using Types = F8E4M3(T, float);
    static Made make(const KernelContext& c) {
        const auto segment = [&](int64_t) -> const ir::Tensor& { return c.in(0); };
        return kernel_from([ranges = member_ranges(c, segment), all = c.elements(c.in(0)),
                            power_of_two = rounds_to_power_of_two(c.op)](const KernelArgs& k) {
            const T* const x = in<T>(k, 0);
            F8E4M3* const q = out<F8E4M3>(k, 0);
            int64_t at = 0;
            for (const MemberRange& r : ranges) {
                const int64_t n = r.end - r.begin;
                fill_zero(stream_of(k), r.begin - at, q + at);
                const float* const amax = in(k, static_cast<int>(r.which) + 1);
                to_float8(stream_of(k), n, one_group(n), power_of_two, x + r.begin, amax, q + r.begin, nullptr);
                at = r.end;
            }
            fill_zero(stream_of(k), all - at, q + at);
        });
    }
};

// Float32, and what is stored in 16 bits, as T.
template <class B, class T, class Q>
void add_of_two(std::vector<Registered>& r) {
    add_all<B, FromCodes<T, Q>, ToFloat8<T, Q>, FromFloat8<T, Q, float>, FromFloat8<T, Q, E8M0>>(r);
    add_all<B, ToBlocks<T, Q, float>, ToBlocks<T, Q, E8M0>>(r);
}
template <class B, class T>
void add_of(std::vector<Registered>& r) {
    add_all<B, Amax<T>, MemberAmax<T>, MemberFloat8<T>, ApplyScales<T, float>, ApplyScales<T, E8M0>>(r);
    add_of_two<B, T, F8E4M3>(r), add_of_two<B, T, F8E5M2>(r);
}
template <class B>
void add(std::vector<Registered>& r) {
    add_of<B, float>(r), add_of<B, Bf16>(r), add_of<B, F16>(r);
    add_all<B, Float8Scale>(r);
}

}  // namespace lockstep::kernels::gpu::float8
