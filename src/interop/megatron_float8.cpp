// Products in 8 bits of a Megatron-LM run: --fp8-format, --fp8-recipe (the scales, as Transformer Engine calls them) and what
// belongs to them. What this version has no technique for is left out of a plan.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

constexpr const char* kInstead = "the plan is of the run in the type of --bf16 or --fp16";

struct Setting {
    const Argument* said;
    std::string key;
    compile::Value value;
};

// What these settings need and this version does not have, as a sentence; empty: nothing.
std::string missing(const std::vector<Setting>& settings) {
    compile::Recipe trial;
    for (const Setting& s : settings) trial.set(s.key, s.value, s.said->where);
    std::vector<std::string> techniques;
    for (const compile::Missing& m : trial.missing()) techniques.push_back(m.technique);
    return techniques.empty() ? "" : fmt::format("this version of Lockstep lacks {}", fmt::join(techniques, " and "));
}

// Layers at both ends of the model that stay as they are, as filters of [quantize].
std::vector<std::string> filters(MegatronJob& j) {
    const int64_t layers = j.required({"num-layers"});
    const auto count = [&](const char* name) { return std::clamp<int64_t>(j.integer({name}, 1), 0, layers); };
    const int64_t at_start = count("num-layers-at-start-in-bf16"), at_end = count("num-layers-at-end-in-bf16");
    std::vector<std::string> out = {"output"};
    for (int64_t i = 0; i < layers; ++i) {
        if (i < at_start || i >= layers - at_end) out.push_back(fmt::format("layers.{}.", i));
    }
    return out;
}

const Argument* format_of(MegatronJob& j) {
    if (const Argument* a = j.take({"fp8-format", "fp8"})) return a;
    const Argument* flag = j.take({"fp8-hybrid", "fp8-e4m3"});
    if (flag) j.args.require_no_value(*flag);
    return flag;
}

}  // namespace

void read_megatron_float8(MegatronJob& j) {
    const Argument* format = format_of(j);
    if (!format) return;
    const bool is_flag = format->name == "fp8-hybrid" || format->name == "fp8-e4m3";
    const bool is_hybrid = is_flag ? format->name == "fp8-hybrid" : j.args.word(*format, {"e4m3", "hybrid"}) == "hybrid";
    const Argument *recipe = j.take({"fp8-recipe"}), *gather = j.take({"fp8-param-gather"}), *wide = j.take({"no-fp8-wgrad"});
    const Argument *ends = j.take({"first-last-layers-bf16"}), *at_start = j.take({"num-layers-at-start-in-bf16"}),
                   *at_end = j.take({"num-layers-at-end-in-bf16"});
    const std::string name = recipe ? j.args.word(*recipe, {"tensorwise", "delayed", "mxfp8", "blockwise", "custom"}) : "delayed";
    const bool is_mx = name == "mxfp8", by_blocks = name == "blockwise", by_tensors = name == "tensorwise";
    if (!is_mx && !by_blocks && !by_tensors)
        return j.leave_out(
            recipe ? *recipe : *format,
            fmt::format("{}: say --fp8-recipe tensorwise; {}",
                        name == "delayed" ? "delayed scaling, the default of --fp8-recipe, takes scales from earlier steps, "
                                            "which no recipe here does; the nearest takes them of the values that they scale"
                                          : "no recipe here scales in this way",
                        kInstead));
    const std::string family = is_mx ? "quantize.linear.mx" : "quantize.linear.float8";
    std::vector<Setting> settings = {{format, "model.converters", std::vector<std::string>{family}},
                                     {recipe, family + ".recipe_name", is_mx ? std::string("mxfp8_cublas_rceil") : name}};
    if (ends) settings.push_back({ends, family + ".filter_fqns", filters(j)});
    if (const std::string lacks = missing(settings); !lacks.empty())
        return j.leave_out(*format, fmt::format("{}: {}", lacks, kInstead));
    for (const Setting& s : settings) j.map(*s.said, s.key, s.value);
    if (is_hybrid != by_tensors)
        j.leave_out(*format, fmt::format("gradients of results are in {} with this recipe", by_tensors ? "E5M2" : "E4M3"));
    if (wide) j.leave_out(*wide, "gradients of weights come from products in 8 bits, too");
    for (const Argument* a : {at_start, at_end}) {
        if (a && !ends) j.no_effect(*a, "acts only with --first-last-layers-bf16");
    }
    if (!gather) return;
    if (is_mx) return j.unmapped(*gather, "weights in MX formats cross ranks in the type of --bf16 or --fp16");
    settings.push_back({gather, family + ".enable_fsdp_float8_all_gather", true});
    if (const std::string lacks = missing(settings); !lacks.empty())
        return j.leave_out(*gather, lacks + ": weights cross ranks in the type of --bf16 or --fp16");
    j.map(*gather, settings.back().key, settings.back().value);
}

}  // namespace lockstep::interop
