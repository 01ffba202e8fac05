#include "compile/types.h"

#include <fmt/format.h>

namespace lockstep::compile {

Types types_of(const Config& config) {
    const Config::Training& t = config.training;
    Types out;
    out.master = t.dtype;
    const bool narrow = config.optimizer.implementation == OptimizerImplementation::FusedOptStatesBf16;
    out.moments = narrow ? Dtype::BF16 : t.dtype;
    out.precision.wide = t.dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
    out.precision.narrow = t.mixed_precision_param.value_or(t.dtype);
    out.precision.wide_norms = t.mixed_precision_norm.value_or(out.precision.narrow) != out.precision.narrow;
    out.precision.wide_residual = t.fp32_residual_connection;
    const Dtype logits = t.logits.value_or(out.precision.narrow == Dtype::BF16 ? Dtype::BF16 : out.precision.wide);
    out.precision.narrow_logits = logits != out.precision.wide;
    out.reduce = t.mixed_precision_reduce == Dtype::F32 ? out.precision.wide : t.mixed_precision_reduce;
    const bool fixed = t.loss_scale != 0;
    if (fixed || out.precision.narrow == Dtype::F16)
        out.loss_scaling = {fixed ? t.loss_scale : t.initial_loss_scale, t.min_loss_scale, t.loss_scale_window, !fixed};
    return out;
}

std::optional<UserError> objection_to_types(const Config& config) {
    const Config::Training& t = config.training;
    const char *dtype = "training.dtype", *param = "training.mixed_precision_param", *norm = "training.mixed_precision_norm";
    const Dtype narrow = t.mixed_precision_param.value_or(t.dtype), norms = t.mixed_precision_norm.value_or(narrow);
    if (bytes_of(narrow) > bytes_of(t.dtype))
        return UserError(
            "recipe.mixed_precision", param,
            fmt::format(
                "{} = \"{}\" is wider than {} = \"{}\", the type of the master weights: lower the first or raise the second",
                param, word_of(narrow), dtype, word_of(t.dtype)));
    if (norms != narrow && norms != t.dtype)
        return UserError("recipe.mixed_precision", norm,
                         fmt::format("{} = \"{}\": must be the type of the other parameters ({}) or of the master weights ({})",
                                     norm, word_of(norms), name_of(narrow), name_of(t.dtype)));
    const Dtype wide = types_of(config).precision.wide;
    if (t.logits && *t.logits != narrow && *t.logits != wide)
        return UserError("recipe.mixed_precision", "training.logits",
                         fmt::format("training.logits = \"{}\": must be the type of parameters and activations ({}) or {}",
                                     word_of(*t.logits), name_of(narrow), name_of(wide)));
    return std::nullopt;
}

}  // namespace lockstep::compile
