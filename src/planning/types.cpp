#include "planning/types.h"

#include <fmt/format.h>

#include "compile/types.h"
#include "kernels/cpu/matmul.h"

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
