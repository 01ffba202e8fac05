#include "cli/types.h"

#include <fmt/format.h>

#include "kernels/cpu/matmul.h"

namespace lockstep::cli {
namespace {

const std::string& type_of_parameters(const compile::Recipe& r) {
    const std::string& param = r.text("training.mixed_precision_param");
    return param.empty() ? r.text("training.dtype") : param;
}

}  // namespace

std::string recompute_line(const compile::Recipe& r) {
    const std::string& mode = r.text("activation_checkpoint.mode");
    if (mode == "selective") return fmt::format("selective {}", r.text("activation_checkpoint.selective_ac_option"));
    if (mode == "memory_budget") return fmt::format("memory_budget {}", r.number("activation_checkpoint.memory_budget"));
    if (mode == "budget") return fmt::format("budget of {} bytes", r.integer("activation_checkpoint.budget_bytes"));
    return mode;
}

std::string types_line(const compile::Recipe& r) {
    const std::string &param = type_of_parameters(r), &master = r.text("training.dtype");
    std::string types = param == master ? fmt::format("{} parameters", param)
                                        : fmt::format("{} parameters over {} master weights", param, master);
    if (const std::string& norm = r.text("training.mixed_precision_norm"); !norm.empty() && norm != param)
        types += fmt::format(", norms {}", norm);
    const bool narrow = param == "bfloat16" || param == "float16";
    if (r.flag("training.fp32_residual_connection") && narrow) types += ", residual stream float32";
    if (const std::string& reduce = r.text("training.mixed_precision_reduce"); reduce != "float32")
        types += fmt::format(", gradients cross ranks in {}", reduce);
    if (const double scale = r.number("training.loss_scale"); scale != 0) types += fmt::format(", loss scale {}", scale);
    else if (param == "float16") types += ", dynamic loss scale";
    return types;
}

std::string slow_types_warning(const compile::Recipe& r) {
    if (type_of_parameters(r) == "float16")
        return "float16 is slow on this processor, whose kernels widen it to float32: training.mixed_precision_param = \"float32\" "
               "trains faster and needs more memory";
    if (type_of_parameters(r) != "bfloat16" || kernels::cpu::has_fast_bf16()) return "";
    return "bfloat16 is slow on this processor, which has no fast product of it (AMX, or AVX-512 BF16 on AMD): "
           "training.mixed_precision_param = \"float32\" trains faster and needs more memory";
}

}  // namespace lockstep::cli
