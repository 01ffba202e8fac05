// The ops of ops/float8.cpp: any groups, element by element. A float8 tensor that is float64 holds codes
// that are not rounded or clamped (meaning/).
#include <cmath>
#include <utility>

#include "base/elements.h"
#include "base/round.h"
#include "kernels/float8_groups.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

Made make_amax(const KernelContext& c) {
    struct Operand {
        Float8Groups groups;
        int64_t n;
        Dtype type;
    };
    std::vector<Operand> operands;
    for (size_t i = 0; i < c.op.in.size(); ++i)
        operands.push_back({float8_groups(c, c.in(i), c.out(0)), c.elements(c.in(i)), c.in(i).dtype});
    return kernel_from([operands, count = c.elements(c.out(0)), y = c.out(0).dtype](const KernelArgs& a) {
        for (int64_t g = 0; g < count; ++g) set_element(a.out[0], y, g, 0);
        for (size_t k = 0; k < operands.size(); ++k) {
            for (int64_t i = 0; i < operands[k].n; ++i) {
                const int64_t g = operands[k].groups.of(i);
                const double size = std::abs(element(a.in[k], operands[k].type, i));
                if (size > element(a.out[0], y, g) || std::isnan(size)) set_element(a.out[0], y, g, size);
            }
        }
    });
}

Made make_to_float8(const KernelContext& c) {
    const Float8Groups groups = float8_groups(c, c.in(0), c.in(1));
    const bool power_of_two = c.op.attrs.contains("power_of_two") && c.op.integer("power_of_two") != 0;
    const auto scale = [power_of_two, amax = c.in(1).dtype, largest = largest_of(c.out(0).dtype)](
                           const KernelArgs& a, int64_t g) { return scale_of(element(a.in[1], amax, g), largest, power_of_two); };
    return kernel_from(
        [groups, scale, n = c.elements(c.in(0)), x = c.in(0).dtype, q = c.out(0).dtype, s = c.out(1).dtype](const KernelArgs& a) {
            for (int64_t i = 0; i < n; ++i) {
                const float by = scale(a, groups.of(i));
                const double value = element(a.in[0], x, i);
                const double product =
                    x == Dtype::F64 ? value * static_cast<double>(by) : static_cast<double>(static_cast<float>(value) * by);
                set_element(a.out[0], q, i, product);
            }
            for (int64_t g = 0; g < groups.count; ++g) {
                const float by = scale(a, g);
                set_element(a.out[1], s, g, s == Dtype::F64 ? 1 / static_cast<double>(by) : static_cast<double>(1 / by));
            }
        });
}

Made make_to_blocks(const KernelContext& c) {
    const Float8Groups groups = float8_groups(c, c.in(0), c.out(1));
    const std::optional<BlockRounding> rounding = block_rounding(c.op);
    // What values are multiplied by, and the scale.
    const auto scale = [rounding, largest = largest_of(c.out(0).dtype)](double amax) -> std::pair<double, double> {
        if (rounding) {
            const E8M0 s = block_scale(amax, largest, *rounding);
            return {static_cast<double>(s.reciprocal()), static_cast<double>(static_cast<float>(s))};
        }
        const float by = scale_of(amax, largest, false);
        return {static_cast<double>(by), 1 / static_cast<double>(by)};
    };
    return kernel_from([groups, scale, most = std::vector<double>(), n = c.elements(c.in(0)), x = c.in(0).dtype,
                        q = c.out(0).dtype, s = c.out(1).dtype](const KernelArgs& a) mutable {
        most.assign(static_cast<size_t>(groups.count), 0);
        for (int64_t i = 0; i < n; ++i) {
            double& of_block = most[static_cast<size_t>(groups.of(i))];
            const double size = std::abs(element(a.in[0], x, i));
            if (size > of_block || std::isnan(size)) of_block = size;
        }
        for (int64_t i = 0; i < n; ++i) {
            const double value = element(a.in[0], x, i), by = scale(most[static_cast<size_t>(groups.of(i))]).first;
            set_element(a.out[0], q, i, x == Dtype::F64 ? value * by : static_cast<double>(static_cast<float>(value * by)));
        }
        for (int64_t g = 0; g < groups.count; ++g) set_element(a.out[1], s, g, scale(most[static_cast<size_t>(g)]).second);
    });
}

Made make_from_float8(const KernelContext& c) {
    const bool is_scaled = c.op.in.size() > 1;
    const Float8Groups groups = is_scaled ? float8_groups(c, c.in(0), c.in(1)) : Float8Groups();
    return kernel_from([is_scaled, groups, n = c.elements(c.in(0)), q = c.in(0).dtype, s = is_scaled ? c.in(1).dtype : Dtype::F32,
                        x = c.out(0).dtype](const KernelArgs& a) {
        for (int64_t i = 0; i < n; ++i)
            set_element(a.out[0], x, i, element(a.in[0], q, i) * (is_scaled ? element(a.in[1], s, groups.of(i)) : 1));
    });
}

Made make_apply_scales(const KernelContext& c) {
    struct Scale {
        Float8Groups groups;
        Dtype type;
    };
    std::vector<Scale> scales;
    for (size_t i = 1; i < c.op.in.size(); ++i) scales.push_back({float8_groups(c, c.in(0), c.in(i)), c.in(i).dtype});
    return kernel_from([scales, n = c.elements(c.in(0)), x = c.in(0).dtype, y = c.out(0).dtype](const KernelArgs& a) {
        for (int64_t i = 0; i < n; ++i) {
            double value = element(a.in[0], x, i);
            for (size_t k = 0; k < scales.size(); ++k) value *= element(a.in[k + 1], scales[k].type, scales[k].groups.of(i));
            set_element(a.out[0], y, i, value);
        }
    });
}

// The workspace holds both factors and the result in double.
int64_t doubles_bytes(const mesh::Mesh& mesh, const ir::Routine& r, ir::TensorId t) {
    return round_up(8 * ir::local_elements(mesh, r, r.tensors[static_cast<size_t>(t)]), kAlignmentBytes);
}
int64_t scaled_einsum_bytes(const KernelContext& c) {
    int64_t bytes = 0;
    for (const ir::TensorId t : {c.op.in[0], c.op.in[1], c.op.out[0]}) bytes += doubles_bytes(c.mesh, c.routine, t);
    return bytes;
}

Made make_scaled_einsum(const KernelContext& c) {
    const auto wide = std::make_shared<ir::Routine>(c.routine);
    const auto op = std::make_shared<ir::Op>(c.op);
    op->kind = ir::kEinsum, op->in.resize(2);
    std::vector<int64_t> bytes;
    for (const ir::TensorId t : {c.op.in[0], c.op.in[1], c.op.out[0]}) {
        wide->tensors[static_cast<size_t>(t)].dtype = Dtype::F64;
        bytes.push_back(doubles_bytes(c.mesh, c.routine, t));
    }
    struct Factor {
        Float8Groups groups;
        int64_t n;
        Dtype q, s;
    };
    std::vector<Factor> factors;
    for (const size_t i : {0, 1})
        factors.push_back({float8_groups(c, c.in(i), c.in(i + 2)), c.elements(c.in(i)), c.in(i).dtype, c.in(i + 2).dtype});
    const std::shared_ptr<Kernel> product = make_einsum<double>({c.mesh, *wide, *op, c.rank, c.threads});
    return kernel_from([=, n = c.elements(c.out(0)), y = c.out(0).dtype](const KernelArgs& a) {
        char* const at = static_cast<char*>(a.workspace);
        void* const in[] = {at, at + bytes[0]};
        void* const out[] = {at + bytes[0] + bytes[1]};
        for (const size_t i : {0, 1}) {
            const Factor& f = factors[i];
            for (int64_t k = 0; k < f.n; ++k)
                static_cast<double*>(in[i])[k] = element(a.in[i], f.q, k) * element(a.in[i + 2], f.s, f.groups.of(k));
        }
        if (op->accumulates(0) && !a.fresh) {
            for (int64_t k = 0; k < n; ++k) static_cast<double*>(out[0])[k] = element(a.out[0], y, k);
        }
        product->run({in, out, a.fresh, nullptr, a.queue, a.instance});
        for (int64_t k = 0; k < n; ++k) set_element(a.out[0], y, k, static_cast<const double*>(out[0])[k]);
    });
}

template <Dtype type>
bool makes(const KernelContext& c) {
    return c.out(0).dtype == type;
}

}  // namespace

void add_float8(std::vector<Registered>& all) {
    const auto add = [&]<Dtype type>(std::string_view op, Made (*make)(const KernelContext&)) {
        Registered r;
        r.op = op, r.kernel = "reference." + r.op, r.result = type;
        r.takes = makes<type>, r.make = make;
        all.push_back(std::move(r));
        return &all.back();
    };
    add.template operator()<Dtype::F32>(ir::kAmax, make_amax);
    add.template operator()<Dtype::F64>(ir::kAmax, make_amax);
    add.template operator()<Dtype::F8E4M3>(ir::kToFloat8, make_to_float8);
    add.template operator()<Dtype::F8E5M2>(ir::kToFloat8, make_to_float8);
    add.template operator()<Dtype::F64>(ir::kToFloat8, make_to_float8);
    add.template operator()<Dtype::F8E4M3>(ir::kToBlocks, make_to_blocks);
    add.template operator()<Dtype::F8E5M2>(ir::kToBlocks, make_to_blocks);
    add.template operator()<Dtype::F64>(ir::kToBlocks, make_to_blocks);
    for (const Dtype t : kFloatDtypes) {
        with_storage(t, [&]<class T>(std::type_identity<T>) {
            add.template operator()<kDtypeOf<T>>(ir::kFromFloat8, make_from_float8);
            add.template operator()<kDtypeOf<T>>(ir::kApplyScales, make_apply_scales);
            Registered* const r = add.template operator()<kDtypeOf<T>>(ir::kScaledEinsum, make_scaled_einsum);
            r->accumulates = 0, r->workspace_bytes = scaled_einsum_bytes;
        });
    }
}

}  // namespace lockstep::kernels::reference
