#include "planning/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "compile/compile.h"
#include "compile/conversion.h"
#include "compile/layout.h"
#include "compile/types.h"
#include "kernels/cpu/matmul.h"
#include "passes/sharding_table.h"

namespace lockstep::planning {
std::string recompute_line(const compile::Config& config) {
    const compile::Config::ActivationCheckpoint& c = config.activation_checkpoint;
    switch (c.mode) {
        case compile::RecomputeMode::Selective: {
            const int64_t n = c.selective_ac_option.every_nth;
            return fmt::format("selective {}", n == 0 ? "op" : std::to_string(n));
        }
        case compile::RecomputeMode::MemoryBudget: return fmt::format("memory_budget {}", c.memory_budget);
        case compile::RecomputeMode::Budget: return fmt::format("budget of {} bytes", c.budget_bytes);
        default: return word_of(c.mode);
    }
}

std::string types_line(const compile::Config& config) {
    const compile::Config::Training& t = config.training;
    const Dtype param = t.mixed_precision_param.value_or(t.dtype);
    std::string types = param == t.dtype ? fmt::format("{} parameters", compile::word_of(param))
                                         : fmt::format("{} parameters over {} master weights", compile::word_of(param),
                                                       compile::word_of(t.dtype));
    if (const Dtype norm = t.mixed_precision_norm.value_or(param); norm != param)
        types += fmt::format(", norms {}", compile::word_of(norm));
    if (t.fp32_residual_connection && is_narrow(param)) types += ", residual stream float32";
    if (t.mixed_precision_reduce != Dtype::F32)
        types += fmt::format(", gradients cross ranks in {}", compile::word_of(t.mixed_precision_reduce));
    if (t.loss_scale != 0) types += fmt::format(", loss scale {}", t.loss_scale);
    else if (param == Dtype::F16) types += ", dynamic loss scale";
    if (config.on_gpu() && !config.runtime.deterministic) types += ", attention's gradients added in any order (bits may differ)";
    return types;
}

std::string context_line(const compile::Config& config) {
    const std::vector<ir::Dim> dims = compile::dims_of(config);
    const auto legal = compile::layout_of(config, dims);
    const int64_t cp = config.parallelism.context_parallel_degree;
    if (cp == 1 || compile::refusal_of(legal)) return "";
    const compile::Layout& l = std::get<compile::Layout>(legal);
    const auto size_of = [&](ir::DimRole role) { return compile::size_of(dims, role); };
    const int64_t on_heads = l.context.on_heads, others = cp / on_heads;
    std::vector<std::string> forms;
    if (on_heads > 1) forms.push_back(fmt::format("{} on heads", on_heads));
    if (others > 1)
        forms.push_back(l.context.ring ? fmt::format("a ring of {}", others)
                                       : fmt::format("{} that gather keys and values", others));
    const passes::ShardingTable table(l.mesh, size_of(ir::DimRole::KvHeads), l.sequence_parallel, l.context);
    const int64_t rows =
        l.context.ring ? std::min<int64_t>(3, others) * l.seq_len / others : l.seq_len;  // own, and two that travel
    const int64_t heads = size_of(ir::DimRole::KvHeads) / l.mesh.size(table.most(ir::DimRole::KvHeads));
    const int64_t bytes =
        2 * l.local_batch * rows * heads * size_of(ir::DimRole::HeadDim) * bytes_of(compile::types_of(config).precision.narrow);
    return fmt::format(
        "context: {} ranks, {}{}; {} of {} tokens of a sequence on each; keys and values of a layer {:.4g} MiB at most", cp,
        fmt::join(forms, " and "), l.head_tail > 1 ? ", head-tail" : "", l.seq_len / cp, l.seq_len,
        static_cast<double>(bytes) / (1 << 20));
}

namespace {
// The recipe, and what has a scale. `group`: the tokens that share one.
std::pair<std::string_view, std::string> named(compile::Float8::Recipe recipe, const std::string& group) {
    using Recipe = compile::Float8::Recipe;
    switch (recipe) {
        case Recipe::Tensorwise: return {"float8 tensorwise", group};
        case Recipe::Rowwise: return {"float8 rowwise", "each row, in gradients of weights for each column of " + group};
        case Recipe::RowwiseGwHp: return {"float8 rowwise_with_gw_hp", "each row; gradients of weights stay as they are"};
        case Recipe::Blockwise: return {"float8 blockwise", "128 elements that are summed, of weights for 128 x 128"};
        case Recipe::MxFloor: return {"MX floor", "32 elements that are summed"};
        case Recipe::MxRceil: return {"MX rceil", "32 elements that are summed"};
    }
    throw InternalError("types: a recipe without a name");
}

// "attention.wk, attention.wv of layers 0, 2-3". `all`: the number of layers.
std::string text_of(const compile::ConvertedLayers::Modules& modules, int64_t all) {
    std::map<std::vector<int64_t>, std::vector<std::string>> by_layers;
    for (const auto& [module, layers] : modules) by_layers[layers].push_back(module);
    std::vector<std::string> parts;
    for (const auto& [layers, names] : by_layers) {
        std::vector<std::string> ranges;
        for (size_t i = 0; i < layers.size();) {
            size_t end = i + 1;
            while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
            ranges.push_back(end == i + 1 ? std::to_string(layers[i]) : fmt::format("{}-{}", layers[i], layers[end - 1]));
            i = end;
        }
        parts.push_back(fmt::format("{}{}", fmt::join(names, ", "),
                                    std::ssize(layers) == all ? "" : fmt::format(" of layers {}", fmt::join(ranges, ", "))));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
}
}  // namespace

Float8Lines float8_lines(const compile::Config& config) {
    Float8Lines out;
    const std::optional<compile::Float8> float8 = config.float8();
    if (!float8) return out;
    compile::Config plain = config;
    plain.model.converters.clear();
    const compile::ConvertedLayers layers =
        compile::converted_layers(compile::build_blocks(plain), *float8, config.training.pack_products);
    using Recipe = compile::Float8::Recipe;
    const bool is_mx = float8->recipe == Recipe::MxFloor || float8->recipe == Recipe::MxRceil;
    const char* const filters = is_mx ? "quantize.linear.mx.filter_fqns" : "quantize.linear.float8.filter_fqns";
    const int64_t depth = config.model.size("n_layers");
    if (!layers.uneven.empty())
        out.notes.push_back(fmt::format("as without {}, as a side is no multiple of 16: {}", is_mx ? "MX" : "float8",
                                        text_of(layers.uneven, depth)));
    if (!layers.small.empty())
        out.notes.push_back(fmt::format(
            "as without float8, as auto_filter_small_kn asks of products with {} (k inputs, n results{}): {}",
            compile::rule_of_small(float8->recipe),
            config.training.pack_products ? ", of wq, wk and wv and of w1 and w3 together" : "", text_of(layers.small, depth)));
    if (layers.converted == 0)
        out.warnings.push_back(fmt::format("model.converters converts no linear layer: {}",
                                           layers.filtered == layers.all ? fmt::format("{} names all", filters)
                                                                         : fmt::format("{} names {} of {}, and the others stay",
                                                                                       filters, layers.filtered, layers.all)));
    for (const std::string& filter : layers.idle_filters)
        out.warnings.push_back(fmt::format("{}: {} is part of no layer's name (layers.0.attention.wq)", filters, filter));
    const auto legal = compile::layout_of(config, compile::dims_of(config));
    if (compile::refusal_of(legal)) return out;
    const compile::Layout& l = std::get<compile::Layout>(legal);
    const int64_t n = l.scale_sequences;
    const std::string group = fmt::format(
        "{} of {}", l.scale_context_blocks > 1 ? fmt::format("each of {} parts", l.scale_context_blocks) : "all tokens",
        n == 1 ? "a sequence" : fmt::format("{} sequences", n));
    const auto [name, scales] = named(float8->recipe, group);
    const char* const gathers = !float8->fsdp_gather     ? ""
                                : l.partition.states > 1 ? "; weights cross data ranks in 1 byte"
                                                         : "; codes are of the master weights, of which each rank keeps all";
    out.line = fmt::format("{}: {} of {} linear layers; a scale for {}{}", name, layers.converted, layers.all, scales, gathers);
    return out;
}

std::string slow_types_warning(const compile::Config& config) {
    const Dtype param = compile::types_of(config).precision.narrow;
    if (param == Dtype::F16)
        return "float16 is slow on this processor, whose kernels widen it to float32: training.mixed_precision_param = "
               "\"float32\" "
               "trains faster and needs more memory";
    if (param != Dtype::BF16 || kernels::cpu::has_fast_bf16()) return "";
    return "bfloat16 is slow on this processor, which has no fast product of it (AMX, or AVX-512 BF16 on AMD): "
           "training.mixed_precision_param = \"float32\" trains faster and needs more memory";
}

}  // namespace lockstep::planning
