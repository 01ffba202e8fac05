// Which ops give the largest sizes of their results, too (ops::kAmaxOf).
#pragma once

#include "kernels/gpu/float8_kernels.h"

namespace lockstep::kernels::gpu::with_amax {

using namespace float8;

// The place of the amax of a result among all results; -1: it is not wanted.
inline int place_of_amax(const KernelContext& c, int64_t result) {
    const auto& of = std::get<std::vector<int64_t>>(c.op.attrs.at(ops::kAmaxOf));
    const auto at = std::find(of.begin(), of.end(), result);
    return at == of.end() ? -1 : static_cast<int>(c.op.out.size() - of.size() + static_cast<size_t>(at - of.begin()));
}
// Has each group of y whole rows? `amax`: the result that has the groups.
inline bool has_groups_of_rows(const KernelContext& c, const ir::Tensor& y, int amax) {
    const Grouping groups = grouping(c, y, c.out(static_cast<size_t>(amax)));
    return groups.columns == 1 && groups.run % rows_of(c, y).n == 0;
}
inline void clear(const KernelArgs& k, int amax, const Grouping& groups) {
    if (amax >= 0) fill_zero(stream_of(k), 4 * groups.count, k.out[amax]);
}

// RMSNorm; `adds`: 1 where the residual comes as an operand and leaves as a result.
template <class S, class T, class W, int adds>
struct Norms {
    static constexpr bool kGivesAmax = true;
    static bool serves(const KernelContext& c) {
        const int amax = place_of_amax(c, adds);
        return amax >= 0 && has_groups_of_rows(c, c.out(adds), amax);
    }
    static Made make(const KernelContext& c) {
        const int amax = place_of_amax(c, adds);
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps"), amax,
                            groups = grouping(c, c.out(adds), c.out(static_cast<size_t>(amax)))](const KernelArgs& k) {
            clear(k, amax, groups);
            rms_norm_amax(stream_of(k), z.rows, z.n, in<S>(k, 0), adds == 1 ? in<S>(k, 1) : nullptr, in<W>(k, adds + 1), eps,
                          adds == 1 ? out<S>(k, 0) : nullptr, out<T>(k, adds), out(k, adds + 1), groups, out(k, amax));
        });
    }
};
template <class S, class T, class W>
struct RmsNorm : Norms<S, T, W, 0> {
    static constexpr Family kFamily{"rmsnorm", "rmsnorm"};
    using Types = std::tuple<T, float, float>(S, W);
};
template <class S, class T, class W>
struct AddRmsNorm : Norms<S, T, W, 1> {
    static constexpr Family kFamily{"add_rmsnorm", "add_rmsnorm", -1, true};
    using Types = std::tuple<S, T, float, float>(S, S, W);
};

inline bool is_short(const KernelContext& c, const ir::Tensor& y) { return c.elements(y) <= INT32_MAX; }

// Gate and up of a row are one behind the other.
template <class T>
struct SwiGlu {
    static constexpr bool kGivesAmax = true;
    static constexpr Family kFamily{"swiglu", "swiglu"};
    using Types = std::tuple<T, float>(T);
    static bool serves(const KernelContext& c) {
        return c.op.in.size() == 1 && is_short(c, c.out(0)) && has_groups_of_rows(c, c.out(0), 1);
    }
    static Made make(const KernelContext& c) {
        return kernel_from([y = rows_of(c, c.out(0)), groups = grouping(c, c.out(0), c.out(1))](const KernelArgs& k) {
            clear(k, 1, groups);
            swiglu_packed_amax(stream_of(k), y.rows, y.n, in<T>(k, 0), out<T>(k, 0), groups, out(k, 1));
        });
    }
};
template <class T>
struct SwiGluBackward {  // d_y, both -> d_both, and its amax
    static constexpr bool kGivesAmax = true;
    static constexpr Family kFamily{"swiglu_backward", "swiglu_backward"};
    using Types = std::tuple<T, float>(T, T);
    static bool serves(const KernelContext& c) {
        if (c.op.in.size() != 2 || !is_short(c, c.in(0))) return false;
        const int of_d = place_of_amax(c, 0), of_y = place_of_amax(c, 1), one = of_d >= 0 ? of_d : of_y;
        const auto dims = [&](int amax) { return c.out(static_cast<size_t>(amax)).dims; };
        return has_row_dims(c, one) && has_groups_of_rows(c, c.in(0), one) && (of_d < 0 || of_y < 0 || dims(of_d) == dims(of_y));
    }
    static Made make(const KernelContext& c) {
        const int of_d = place_of_amax(c, 0), of_y = place_of_amax(c, 1);
        const bool again = c.out(1).dims == c.in(0).dims;
        return kernel_from(
            [y = rows_of(c, c.in(0)), of_d, of_y, again,
             groups = grouping(c, c.in(0), c.out(static_cast<size_t>(of_d >= 0 ? of_d : of_y)))](const KernelArgs& k) {
                clear(k, of_d, groups), clear(k, of_y, groups);
                swiglu_packed_backward_amax(stream_of(k), y.rows, y.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0),
                                            again ? out<T>(k, 1) : nullptr, groups, of_d >= 0 ? out(k, of_d) : nullptr,
                                            of_y >= 0 ? out(k, of_y) : nullptr);
            });
    }

private:
    // Of d_both the groups of rows of y: none of gate or up alone.
    static bool has_row_dims(const KernelContext& c, int amax) {
        const std::vector<ir::DimId>& row = c.in(0).dims;
        const std::vector<ir::DimId>& dims = c.out(static_cast<size_t>(amax)).dims;
        return std::all_of(dims.begin(), dims.end(), [&](ir::DimId d) {
            const ir::DimId of = c.routine.dims[static_cast<size_t>(d)].of;
            return std::any_of(row.begin(), row.end(), [&](ir::DimId own) { return own == d || own == of; });
        });
    }
};
template <class T>
struct SwiGluBackwardAgain : SwiGluBackward<T> {  // and y
    using Types = std::tuple<T, T, float>(T, T);
};
template <class T>
struct SwiGluBackwardAgainOfBoth : SwiGluBackward<T> {  // and its amax
    using Types = std::tuple<T, T, float, float>(T, T);
};

template <class B, class S, class T, class W>
void add_norms(std::vector<Registered>& r) {
    add_all<B, RmsNorm<S, T, W>, AddRmsNorm<S, T, W>>(r);
}
template <class B>
void add(std::vector<Registered>& r) {
#define COPY(T) add_all<B, SwiGlu<T>, SwiGluBackward<T>, SwiGluBackwardAgain<T>, SwiGluBackwardAgainOfBoth<T>>(r);
    LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(S, T, W) add_norms<B, S, T, W>(r);
    LOCKSTEP_NORMS(COPY)
#undef COPY
}

}  // namespace lockstep::kernels::gpu::with_amax
