// The rows (fields.h) of [[catalog]] and of the rates of kernels.
#pragma once

#include "ops/described_catalog.h"
#include "sim/fields.h"

namespace lockstep::sim {

// Kinds that a kernel may run.
std::vector<std::string> ops_with_kernels();
std::vector<std::string> names_of_dtypes();

// What a kernel may be called.
bool is_kernel_name(const std::string& text);
inline constexpr Allowed kKernelName = of_form("a name of lower-case letters, digits, . and _", is_kernel_name);

inline constexpr Allowed kRateShare = above_to(0, 1), kRateFactor = above_to(0, 100), kRateSize = above_to(0, 1 << 20);

inline constexpr Field<ops::DescribedKernel> kCatalog[] = {
    field<&ops::DescribedKernel::kernel>("kernel", "its name in programs: lower-case letters, digits, . and _", kKernelName),
    field<&ops::DescribedKernel::ops>(
        "ops",
        "kinds of op that it serves. A composite that no kernel serves is expanded into its parts. If a part has no "
        "kernel, the recipe is refused"),
};

// Element types, as words.
struct StoredTypes {
    std::vector<std::string> types;
};
inline constexpr Field<StoredTypes> kCatalogTypes[] = {field<&StoredTypes::types>(
    "types",
    "how the op's data is stored: the narrowest float type among operands and results. A product of bfloat16 that adds "
    "to float32 counts as bf16. Without this key: any type",
    one_of(names_of_dtypes), Printed::UnlessDefault)};

inline constexpr Field<ops::DescribedKernel> kCatalogUse[] = {
    field<&ops::DescribedKernel::only_products>("only_products", "it serves only an einsum that is one product of matrices", {},
                                                Printed::UnlessDefault),
    field<&ops::DescribedKernel::accumulates>("accumulates", "the number of the result that it can add to a gradient",
                                              from_to(0, 63), Printed::UnlessDefault),
    field<&ops::DescribedKernel::in_place>("in_place", "its first result may overwrite the operand that the op's rule names", {},
                                           Printed::UnlessDefault),
};

inline constexpr Field<ops::WorkspaceTerm> kWorkspace[] = {
    field<&ops::WorkspaceTerm::bytes>("bytes", "of workspace, times the sizes of `per` on one rank; terms are summed",
                                      above_to(0, 0x1p40), Printed::Always, "{:.10g}"),
    field<&ops::WorkspaceTerm::per>(
        "per",
        "sizes of the op's dims (batch, seq, kv_seq, hidden, kv_heads, group, head_dim, ffn, vocab; 1 if it has none), or "
        "columns, the last dim of its largest tensor",
        one_of([] { return ops::workspace_sizes(); }), Printed::UnlessDefault),
    field<&ops::WorkspaceTerm::only_grouped>("only_grouped", "only if query heads share keys", {}, Printed::UnlessDefault),
};

inline constexpr Field<ops::KernelRate> kRateShares[] = {
    field<&ops::KernelRate::product>("product_efficiency", "share of the device's FLOPs in a second, in place of that of [rates]",
                                     kRateShare, Printed::UnlessDefault),
    field<&ops::KernelRate::of_products>("of_products", "in place of it: share of product_efficiency of [rates]", kRateShare,
                                         Printed::UnlessDefault),
    field<&ops::KernelRate::bandwidth>("bandwidth_efficiency",
                                       "share of the device's bytes in a second, in place of that of [rates]", kRateShare,
                                       Printed::UnlessDefault),
};

// One number for each size, ramp = { k = 140 }.
struct RampOfSize {
    double half = 0;
};
inline constexpr Field<RampOfSize> kRamp[] = {field<&RampOfSize::half>(
    "SIZE", "a share n / (n + this) of the rate, by a size n: m, n, k of products; heads, seq, kv_seq, head_dim of attention",
    kRateSize)};

inline constexpr Field<ops::Tile> kTiles[] = {
    field<&ops::Tile::rows>("rows", "rows of a tile of a product's result, which one processor computes", kRateSize,
                            Printed::Always, "{}"),
    field<&ops::Tile::columns>("columns", "its columns", kRateSize, Printed::Always, "{}"),
    field<&ops::Tile::share>("share", "share of the rate that it reaches by itself", kRateShare),
};

inline constexpr Field<ops::KernelRate> kRateFactors[] = {
    field<&ops::KernelRate::wave_exponent>("wave_exponent",
                                           "the used share of whole waves of tiles, to this power, is the share of the rate",
                                           from_to(0, 4), Printed::UnlessDefault),
    field<&ops::KernelRate::aligned_to>("aligned_to", "n or k of a product that is no multiple of it has the share `unaligned`",
                                        kRateSize, Printed::UnlessDefault),
    field<&ops::KernelRate::unaligned>("unaligned", "that share of the rate", kRateShare, Printed::UnlessDefault),
    field<&ops::KernelRate::flops>("flops", "executed FLOPs, over the op's", kRateFactor, Printed::UnlessDefault),
    field<&ops::KernelRate::traffic>("traffic", "bytes moved, over operands and results", kRateFactor, Printed::UnlessDefault),
    field<&ops::KernelRate::score_bytes>("score_bytes", "bytes moved for each query, key and head of attention", from_to(0, 1000),
                                         Printed::UnlessDefault),
    field<&ops::KernelRate::turned_bytes>(
        "turned_bytes",
        "bytes moved for each element of a product's factor that must be copied first, as its innermost dim is not summed over",
        from_to(0, 1000), Printed::UnlessDefault),
};

}  // namespace lockstep::sim
